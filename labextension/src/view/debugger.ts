/** The panel that shows while a call is held: what is about to happen, why it stopped, and what a person can decide. */

import { ArgumentsEditor, editArea } from './arguments';
import { IMessage } from './conversation';
import { h, plainText } from './dom';
import { ICallHeld } from './events';
import { ICall } from './fold';
import { IControls, IDecisions, IHost } from './host';
import { MessagesView } from './messages';
import { SettingsForm } from './settings-form';

export interface IStop {
  held: ICallHeld;
  /** The call that is held; none when the record does not tell. */
  call: ICall | null;
  messages(): IMessage[];
  model: string;
}

export class StopPanel {
  readonly node: HTMLElement;
  private _status = h('span', { class: 'lsn-count', role: 'status' });
  private _editor: ArgumentsEditor | null = null;
  private _run: HTMLButtonElement | null = null;
  private _deciding = false;

  constructor(
    readonly stop: IStop,
    private _controls: IControls,
    private _decisions: IDecisions,
    private _host: IHost
  ) {
    const title = this._title();
    const rows = stop.held.at === 'call' ? this._beforeCall() : this._beforeModel();
    this.node = h(
      'section',
      { class: 'lsn-stop-panel', 'aria-label': title, tabindex: -1 },
      h('h3', {}, title),
      this._reason(),
      ...rows,
      new MessagesView(() => stop.messages(), _host).node,
      new SettingsForm(stop.model, changed => this._decisions.change(changed), _host).node,
      this._status
    );
    this.node.addEventListener('keydown', event => this._key(event));
  }

  /** Go on, and do not stop before the next call unless something else asks for it. */
  continue(): void {
    this._do(call => this._decisions.continue(call));
  }

  /** Go on to the next place where the run can stop. */
  step(): void {
    this._do(call => this._decisions.step(call));
  }

  /** End the run. */
  end(): void {
    this._do(() => this._controls.stop());
  }

  private _title(): string {
    const { trans } = this._host;
    const { held, call } = this.stop;
    const tool = plainText(call?.tool ?? '');
    return held.at === 'call'
      ? trans('Stopped at step %1, before %2', held.step, tool)
      : trans('Stopped at step %1, before the model sees what %2 gave', held.step, tool);
  }

  private _reason(): HTMLElement {
    const { trans } = this._host;
    const { reason, text } = this.stop.held;
    const words = {
      step: trans('You go step by step.'),
      breakpoint: trans('A breakpoint was met.'),
      approval: trans('This call needs your approval.'),
      pause: trans('You paused the run.')
    };
    const known = Object.prototype.hasOwnProperty.call(words, reason) ? words[reason] : '';
    return h('div', { class: 'lsn-note' }, known ? `${known} ` : '', text && h('code', {}, plainText(text)));
  }

  private _beforeCall(): HTMLElement[] {
    const { trans } = this._host;
    const { call } = this.stop;
    const values = call?.arguments;
    this._run = this._button(trans('Run edited'), () => this._runEdited());
    this._run.disabled = true;
    const given: HTMLElement[] = [];
    if (values) {
      this._editor = new ArgumentsEditor(values, this._host, () => {
        this._run!.disabled = !this._editor!.edited;
      });
      given.push(this._editor.node);
    } else if (call) {
      const broken = trans('What the model wrote as arguments cannot be read:');
      given.push(h('div', { class: 'lsn-error' }, broken), h('pre', { tabindex: 0 }, plainText(call.rawArguments)));
    }
    return [this._toolbar(this._run), ...given, this._skipForm()];
  }

  private _beforeModel(): HTMLElement[] {
    const { trans } = this._host;
    const area = editArea(this.stop.call?.result?.observation ?? '', trans('Observation'));
    const give = this._button(trans('Give the edited observation'), () =>
      this._do(call => this._decisions.observe(call, area.value))
    );
    give.disabled = true;
    const before = area.value;
    area.addEventListener('input', () => {
      give.disabled = area.value === before;
    });
    const label = h('label', { class: 'lsn-arguments' }, trans('What the model will read:'), area);
    return [this._toolbar(give), label];
  }

  private _toolbar(...more: HTMLElement[]): HTMLElement {
    const { trans } = this._host;
    const stop = this._button(trans('Stop'), () => this.end());
    stop.classList.add('lsn-stop');
    return h(
      'div',
      { class: 'lsn-stop-buttons', role: 'toolbar', 'aria-label': trans('Stopped') },
      this._button(trans('Continue'), () => this.continue(), 'F9'),
      this._button(trans('Step'), () => this.step(), 'F10'),
      ...more,
      stop
    );
  }

  private _skipForm(): HTMLElement {
    const { trans } = this._host;
    const area = editArea('', trans('What the model reads as the result'));
    area.placeholder = trans('What the model reads as the result');
    const skip = this._button(trans('Skip'), () => this._do(call => this._decisions.skip(call, area.value.trim())));
    skip.disabled = true;
    area.addEventListener('input', () => {
      skip.disabled = !area.value.trim();
    });
    const label = trans('Skip this call and answer in its place');
    return h('details', { class: 'lsn-skip' }, h('summary', {}, label), area, skip);
  }

  private _button(label: string, action: () => void, key?: string): HTMLButtonElement {
    return h(
      'button',
      { type: 'button', onclick: action, 'aria-keyshortcuts': key, title: key && `${label} (${key})` },
      label,
      key && h('kbd', { 'aria-hidden': 'true' }, key)
    );
  }

  private _runEdited(): void {
    let values: Record<string, unknown>;
    try {
      values = this._editor!.values;
    } catch (error) {
      this._tell(error);
      return;
    }
    this._do(call => this._decisions.edit(call, values));
  }

  /** Carry a decision out, once: a second press of the key must not decide about the next call. */
  private _do(action: (call: string) => Promise<void>): void {
    if (this._deciding) {
      return;
    }
    this._deciding = true;
    this.node.setAttribute('aria-busy', 'true');
    this._status.textContent = this._host.trans('…');
    action(this.stop.held.call_id).catch(error => {
      this._deciding = false;
      this.node.removeAttribute('aria-busy');
      this._tell(error);
    });
  }

  private _tell(error: unknown): void {
    this._status.textContent = error instanceof Error ? error.message : String(error);
  }

  /** For pages without commands of their own; elsewhere these keys are commands. */
  private _key(event: KeyboardEvent): void {
    const actions: Record<string, () => void> = { F9: () => this.continue(), F10: () => this.step() };
    const plain = !event.ctrlKey && !event.metaKey && !event.altKey && !event.shiftKey;
    if (plain && Object.prototype.hasOwnProperty.call(actions, event.key)) {
      event.preventDefault();
      event.stopPropagation();
      actions[event.key]();
    }
  }
}
