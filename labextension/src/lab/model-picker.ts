/** The model that cells of the notebook in front use, and a form to choose another. Its kernel lists the models. */

import { visibleName } from '../artifacts/names';
import { errorText, h, makeButton } from '../view/dom';
import { quoted } from './kernel';
import { Trans } from '../formatting';

/** Output of `%sandbox model --json`. */
interface IModels {
  model: string;
  providers: Record<string, string[]>;
  on_this_machine: string[];
  scripted: string[];
  /** Model servers on this machine; null if they were not searched for. */
  local: { program: string; api_base: string; models: string[] }[] | null;
}

interface IChoice {
  name: string;
  apiBase: string;
  label: string;
}

export class ModelPicker {
  readonly node: HTMLDetailsElement;
  private _title = h('span', {});
  private _name: HTMLInputElement;
  private _names: HTMLDataListElement;
  private _use: HTMLButtonElement;
  private _look: HTMLButtonElement;
  private _status = h('div', { class: 'lsn-panel-note', role: 'status' });
  private _problem = h('div', { class: 'lsn-panel-problem', role: 'alert' });
  private _choices = new Map<string, IChoice>();
  private _asked = 0;

  /**
   * `_ask` executes a subcommand of `%sandbox` in the notebook's kernel, and rejects with a sentence if it cannot. If
   * a running cell must end first, `_ask` calls `waits`.
   */
  constructor(
    private _ask: (line: string, waits: () => void) => Promise<string>,
    private _trans: Trans
  ) {
    this._names = h('datalist', { id: 'lsn-panel-models' });
    this._name = h('input', {
      type: 'text',
      list: 'lsn-panel-models',
      'aria-label': _trans('Model'),
      spellcheck: 'false'
    });
    this._name.placeholder = _trans('provider/model');
    this._use = h('button', { type: 'submit' }, _trans('Use'));
    this._look = makeButton(_trans('Look for local servers'), () => void this._list(true));
    const form = h('form', { class: 'lsn-panel-row' }, this._name, this._names, this._use);
    form.addEventListener('submit', event => {
      event.preventDefault();
      void this._choose();
    });
    const summary = h('summary', {}, this._title);
    this.node = h('details', { class: 'lsn-panel-model' }, summary, form, this._look, this._status, this._problem);
    this.node.addEventListener('toggle', () => {
      if (this.node.open) {
        void this._list(false);
      }
    });
    this.clear();
  }

  /** Forget the models, because another notebook came to the front. */
  clear(): void {
    this._asked++;
    this.node.open = false;
    this._title.textContent = this._trans('Model');
    this._status.textContent = this._problem.textContent = this._name.value = '';
  }

  private async _list(local: boolean): Promise<void> {
    const line = local ? 'model --local --json' : 'model --json';
    const found = await this._execute(line, local ? this._trans('Looking at the usual ports of this machine…') : '');
    if (found === null) {
      return;
    }
    const models = JSON.parse(found) as IModels;
    this._title.textContent = models.model
      ? this._trans('Model: %1', visibleName(models.model))
      : this._trans('Model: none is chosen');
    this._offer(models);
    if (models.local) {
      this._status.textContent = models.local.length
        ? models.local.map(one => this._trans('%1 answers at %2.', visibleName(one.program), one.api_base)).join(' ')
        : this._trans('No model server answers at the usual ports of this machine.');
    }
  }

  private _offer({ providers, on_this_machine, scripted, local }: IModels): void {
    this._choices.clear();
    const add = (name: string, apiBase: string, label: string) => {
      const shown = this._choices.has(name) ? `${name} (${apiBase})` : name;
      this._choices.set(shown, { name, apiBase, label });
    };
    local?.forEach(one => one.models.forEach(name => add(name, one.api_base, `${one.program}, ${one.api_base}`)));
    Object.entries(providers).forEach(([provider, names]) => names.forEach(name => add(name, '', provider)));
    on_this_machine.forEach(name => add(name, '', this._trans('on this machine: needs no key')));
    scripted.forEach(name => add(name, '', this._trans('scripted: needs no key')));
    this._names.replaceChildren(
      ...[...this._choices].map(([value, { label }]) => h('option', { value }, visibleName(label)))
    );
  }

  private async _choose(): Promise<void> {
    const typed = this._name.value.trim();
    if (!typed) {
      this._problem.textContent = this._trans('Write the name of a model, such as openai/gpt-5.');
      return;
    }
    const { name, apiBase } = this._choices.get(typed) ?? { name: typed, apiBase: '' };
    const address = apiBase ? ` --api-base ${quoted(apiBase)}` : '';
    const told = await this._execute(`model ${quoted(name)}${address}`, '');
    if (told !== null) {
      this._title.textContent = this._trans('Model: %1', visibleName(name));
      this._status.textContent = told;
    }
  }

  /** Return the kernel's output; null after a failure, which is shown, and if another notebook came to the front. */
  private async _execute(line: string, told: string): Promise<string | null> {
    const asked = ++this._asked;
    this._problem.textContent = '';
    this._status.textContent = told;
    this._use.disabled = this._look.disabled = true;
    try {
      const printed = await this._ask(line, () => {
        if (asked === this._asked) {
          this._status.textContent = this._trans('The kernel is busy: this waits until its cell has ended.');
        }
      });
      if (asked === this._asked) {
        this._status.textContent = '';
      }
      return asked === this._asked ? printed : null;
    } catch (error) {
      if (asked === this._asked) {
        this._status.textContent = '';
        this._problem.textContent = errorText(error);
      }
      return null;
    } finally {
      this._use.disabled = this._look.disabled = false;
    }
  }
}
