/** The panel while a call waits for a person: the call, its dangers, and the ways to decide. */

import { ArgumentsEditor, editArea } from './arguments';
import { callText, toolOf } from './call-summary';
import { IMessage } from '../trajectory/conversation';
import { dangersOf, IDanger, MAX_CHECKED_CHARACTERS } from './danger';
import { errorText, h, makeButton, plainText } from './dom';
import { ICallHeld } from '../generated/events';
import { ISOLATIONS } from '../generated/words';
import { ICall } from '../trajectory/fold';
import { isIsolated } from './facts';
import { IChangedSettings, IControls, IDecisions, IHost } from './host';
import { MessagesView } from './messages';
import { SettingsForm } from './settings-form';

export interface IPausePoint {
  held: ICallHeld;
  /** The call that is held; null if the record lacks it. */
  call: ICall | null;
  /** The model's text with the call. */
  thought: string;
  messages(): IMessage[];
  model: string;
  /** The protection in force, as the sandbox reported it. */
  protection: Record<string, unknown>;
  /** True if the files are kept, so that a rewind can undo the call's changes. */
  kept: boolean;
  /** True if the call acts outside the sandbox, where a rewind does not undo it. */
  outside: boolean;
  /** The MCP server that executes the call, and its place; '' for other calls. */
  place: string;
  /** Return true if the record knows a file at a path. */
  exists(path: string): boolean;
  /** The button that sets a breakpoint for such calls; null if no breakpoint fits. */
  always: HTMLElement | null;
}

/** Maximum shown characters of the model's text with the call. */
const THOUGHT_MOST = 600;
/** Maximum number of refused hosts that have buttons. */
const HOSTS_MOST = 5;

export class PausePanel {
  readonly node: HTMLElement;
  private _status = h('span', { class: 'lsn-count', role: 'status' });
  private _form = h('div', { class: 'lsn-stop-form', hidden: true });
  private _open: HTMLButtonElement | null = null;
  /** Function that returns a warning if the open form has unsent text, else ''. Other buttons show it. */
  private _unsent = () => '';
  private _deciding = false;

  constructor(
    readonly stop: IPausePoint,
    private _controls: IControls,
    private _decisions: IDecisions,
    private _host: IHost
  ) {
    const rows = stop.held.at === 'call' ? this._beforeCall() : this._beforeModel();
    this.node = h(
      'section',
      { class: 'lsn-stop-panel', 'aria-label': this._title(), tabindex: -1 },
      ...rows,
      this._form,
      this._status,
      new MessagesView(() => stop.messages(), _host).node,
      new SettingsForm(stop.model, changed => this._decisions.change(changed), _host).node
    );
    this.node.addEventListener('keydown', event => this._key(event));
  }

  /** Run the call, and continue until a rule or a person asks for another pause. */
  continue(): void {
    this._doAsProposed(call => this._decisions.continue(call));
  }

  /** Run the call, and pause at the next place where a run can pause. */
  step(): void {
    this._doAsProposed(call => this._decisions.step(call));
  }

  /** End the run. */
  end(): void {
    this._do(() => this._controls.stop());
  }

  private _title(): string {
    const { trans } = this._host;
    const { held, call } = this.stop;
    if (held.at !== 'call') {
      return trans('Step %1: the model has not read the result yet', held.step);
    }
    const tool = call ? toolOf(call) : 'other';
    const question = { bash: trans('Run this command?'), edit: trans('Make this edit?'), submit: trans('Submit?') };
    return tool === 'other' ? trans('Run this call?') : question[tool];
  }

  // --- before a call ---

  private _beforeCall(): HTMLElement[] {
    const { trans } = this._host;
    const { call, thought, held } = this.stop;
    const text = plainText(call ? callText(call).slice(0, MAX_CHECKED_CHARACTERS + 1) : '');
    const dangers = call && toolOf(call) === 'bash' ? dangersOf(text, this.stop.exists, this._host) : [];
    const said = plainText(thought.length > THOUGHT_MOST ? `${thought.slice(0, THOUGHT_MOST)}…` : thought);
    const rows: (HTMLElement | null)[] = [
      this._banner(this._consequence(dangers)),
      said ? h('p', { class: 'lsn-stop-thought' }, said) : null
    ];
    if (call && !call.arguments) {
      rows.push(h('div', { class: 'lsn-error' }, trans('The arguments that the model wrote cannot be read:')));
    }
    const name = call && toolOf(call) !== 'bash' ? h('code', {}, plainText(call.tool)) : null;
    const where = plainText(this.stop.place.slice(0, THOUGHT_MOST));
    const place = where ? h('span', { class: 'lsn-note' }, where) : null;
    rows.push(
      name,
      place,
      h(
        'pre',
        { class: 'lsn-code lsn-held-call', tabindex: 0 },
        ...marked(text, dangers),
        text.length > MAX_CHECKED_CHARACTERS && '…'
      )
    );
    const approval = held.reason === 'approval';
    const all = this._button(trans('Approve all commands of this run'), () =>
      this._doAsProposed(async id => {
        await this._decisions.change({ approve: 'auto' });
        await this._decisions.continue(id);
      })
    );
    all.classList.add('lsn-plain', 'lsn-push');
    const edit = call?.arguments ? this._opens(trans('Edit…'), () => this._editForm(call)) : null;
    const deny = this._opens(trans('Deny…'), () => this._denyForm());
    rows.push(
      this._toolbar(
        approval ? trans('Approve') : trans('Continue'),
        edit,
        deny,
        this.stop.always,
        approval ? all : null
      )
    );
    return rows.filter((row): row is HTMLElement => row !== null);
  }

  private _banner(more: string): HTMLElement {
    const label = h('b', {}, this._title());
    const words = h('div', { class: 'lsn-banner-text' }, label, more && h('small', {}, more), this._reason());
    return h('div', { class: 'lsn-banner', 'data-kind': 'wait' }, words);
  }

  private _reason(): HTMLElement {
    const { trans } = this._host;
    const { reason, text, step } = this.stop.held;
    const words = {
      step: trans('Paused before each call.'),
      breakpoint: trans('A breakpoint stopped the run here.'),
      approval: '',
      pause: trans('You paused the run.')
    };
    const known = Object.hasOwn(words, reason) ? words[reason] : '';
    const shown = plainText(text);
    return h(
      'small',
      {},
      `${trans('Step %1.', step)} `,
      known ? `${known} ` : '',
      reason === 'approval' ? shown : shown && h('code', {}, shown)
    );
  }

  /** Return for example "It deletes files. Docker sandbox, no network; you can rewind afterwards." */
  private _consequence(dangers: IDanger[]): string {
    const { trans } = this._host;
    const { protection, kept } = this.stop;
    if (this.stop.outside) {
      return trans('Outside the sandbox; a rewind does not undo it.');
    }
    const effects = [...new Set(dangers.map(one => one.text))].join(' ');
    const name = ISOLATIONS.get(String(protection.isolation));
    const isolated = isIsolated(protection);
    const place = !isolated
      ? trans('Not isolated: it runs on this machine')
      : name && protection.network === 'none'
        ? trans('%1 sandbox, no network', name)
        : name
          ? trans('%1 sandbox with network', name)
          : '';
    const outside = dangers.some(one => one.outside);
    const rewind = outside
      ? trans('a rewind does not undo what it does elsewhere')
      : kept && isolated
        ? trans('you can rewind afterwards')
        : '';
    const rest = [place, rewind].filter(part => part).join('; ');
    return [effects, rest && `${rest.charAt(0).toUpperCase()}${rest.slice(1)}.`].filter(part => part).join(' ');
  }

  private _editForm(call: ICall): HTMLElement[] {
    const { trans } = this._host;
    const editor = new ArgumentsEditor(call.arguments!, this._host, () => {
      run.disabled = !editor.edited;
    });
    const send = () => {
      let changes: Record<string, unknown>;
      try {
        changes = editor.changes;
      } catch (error) {
        this._tell(error);
        return;
      }
      this._do(id => this._decisions.edit(id, changes));
    };
    const run = this._button(trans('Run edited'), send, 'Control+Enter');
    run.disabled = true;
    editor.node.addEventListener('keydown', event => {
      if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        run.click();
      }
    });
    this._unsent = () =>
      editor.edited ? trans('You changed the call. Press “Run edited”, or press “Edit…” to drop the change.') : '';
    return [editor.node, run];
  }

  private _denyForm(): HTMLElement[] {
    const { trans } = this._host;
    const label = trans('Reason; the model reads it in place of a result');
    const area = editArea('', label);
    area.placeholder = label;
    const send = () =>
      this._do(id => this._decisions.skip(id, area.value.trim() || trans('A person denied this call.')));
    area.addEventListener('keydown', event => {
      if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        send();
      }
    });
    this._unsent = () =>
      area.value.trim() ? trans('You wrote a reason. Press “Deny”, or press “Deny…” to drop the reason.') : '';
    return [area, this._button(trans('Deny'), send, 'Enter')];
  }

  // --- before the model reads a result ---

  private _beforeModel(): HTMLElement[] {
    const { trans } = this._host;
    const area = editArea(this.stop.call?.result?.observation ?? '', trans('Result'));
    const give = this._button(trans('Use the edited result'), () =>
      this._do(call => this._decisions.observe(call, area.value))
    );
    give.disabled = true;
    const before = area.value;
    area.addEventListener('input', () => {
      give.disabled = area.value === before;
    });
    this._unsent = () =>
      area.value === before
        ? ''
        : trans('You changed the result. Press “Use the edited result”, or write it as it was.');
    const label = h('label', { class: 'lsn-arguments' }, trans('What the model will read:'), area);
    return [this._banner(''), ...this._refusedHosts(), label, this._toolbar(trans('Continue'), give)];
  }

  /** Buttons for the hosts that were refused to the call. The run stays paused, and the model is told what is allowed. */
  private _refusedHosts(): HTMLElement[] {
    const { trans } = this._host;
    return (this.stop.held.hosts ?? []).slice(0, HOSTS_MOST).map(host => {
      const row = h('div', { class: 'lsn-stop-buttons lsn-refused-host' }, h('code', {}, plainText(host)));
      const allow = (label: string, changed: IChangedSettings) =>
        this._button(label, () => {
          this._decisions
            .change(changed)
            .then(() => row.replaceChildren(h('code', {}, plainText(host)), trans('Allowed; the model reads a note.')))
            .catch(error => this._tell(error));
        });
      row.append(
        allow(trans('Allow once'), { allow_once: [host] }),
        allow(trans('Allow for this run'), { allow: [host] })
      );
      return row;
    });
  }

  // --- buttons ---

  private _toolbar(label: string, ...more: (HTMLElement | null)[]): HTMLElement {
    const { trans } = this._host;
    const go = this._button(label, () => this.continue(), 'F9');
    go.classList.add('lsn-primary');
    const stop = this._button(trans('Stop'), () => this.end());
    stop.classList.add('lsn-stop');
    const step = this._button(trans('Step'), () => this.step(), 'F10');
    const push = more.filter(one => one?.classList.contains('lsn-push'));
    const near = more.filter(one => !one?.classList.contains('lsn-push'));
    return h(
      'div',
      { class: 'lsn-stop-buttons', role: 'toolbar', 'aria-label': trans('Decide') },
      go,
      ...near,
      step,
      stop,
      ...push
    );
  }

  /** Return a button that opens a form below, and closes it again. */
  private _opens(label: string, make: () => HTMLElement[]): HTMLButtonElement {
    const button = this._button(label, () => {
      const open = this._open !== button;
      this._open?.setAttribute('aria-expanded', 'false');
      this._open = open ? button : null;
      button.setAttribute('aria-expanded', String(open));
      this._unsent = () => '';
      this._status.textContent = '';
      this._form.hidden = !open;
      this._form.replaceChildren(...(open ? make() : []));
      this._form.querySelector('textarea')?.focus();
    });
    button.setAttribute('aria-expanded', 'false');
    return button;
  }

  private _button(label: string, action: () => void, key?: string): HTMLButtonElement {
    return makeButton(
      label,
      action,
      { 'aria-keyshortcuts': key, title: key && `${label} (${key})` },
      key && h('kbd', { 'aria-hidden': 'true' }, key)
    );
  }

  /** Run the call as the model proposed it; refused while a form has unsent text. */
  private _doAsProposed(action: (call: string) => Promise<void>): void {
    const unsent = this._unsent();
    if (unsent) {
      this._status.textContent = unsent;
    } else {
      this._do(action);
    }
  }

  /** Execute a decision once: a second press of the key must not decide about the next call. */
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
    this._status.textContent = errorText(error);
  }

  /** Handle F9 and F10 on pages without commands. In JupyterLab, these keys are commands. */
  private _key(event: KeyboardEvent): void {
    const actions: Record<string, () => void> = { F9: () => this.continue(), F10: () => this.step() };
    const plain = !event.ctrlKey && !event.metaKey && !event.altKey && !event.shiftKey;
    if (plain && Object.hasOwn(actions, event.key)) {
      event.preventDefault();
      event.stopPropagation();
      actions[event.key]();
    }
  }
}

/** Return a text with its dangerous parts marked. */
function marked(text: string, dangers: IDanger[]): (HTMLElement | string)[] {
  const parts: (HTMLElement | string)[] = [];
  let at = 0;
  for (const { from, to, text: why } of dangers) {
    parts.push(text.slice(at, from));
    if (to > from) {
      parts.push(h('mark', { title: why }, text.slice(from, to)));
    }
    at = to;
  }
  return [...parts, text.slice(at)];
}
