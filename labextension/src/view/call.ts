/** One tool call: its arguments, its output as it streams, what it changed. */

import { renderDecisions } from './decided';
import { renderDiff } from './diff';
import { h, plainText, setText } from './dom';
import { ICallFinished, IFileDiff } from './events';
import { ICall } from './fold';
import { secondsInWords, sizeInWords } from './format';
import { IHost } from './host';

/** Characters shown at first: more than the box has room for. A browser lays out all that is in it. */
const OUTPUT_SHOWN = 3000;

/** Whether a call went wrong: of itself, by its exit code, or by the clock. */
export function failed(call: ICall): boolean {
  const result = call.result;
  return !!result && (!!result.error || result.timed_out || !!result.exit_code);
}

/** What a person reads as the call: the command itself, or the editor's arguments. */
export function callText(call: ICall): string {
  const values = call.arguments;
  if (!values) {
    return call.rawArguments;
  }
  if (call.tool === 'execute_bash' && typeof values.command === 'string') {
    return values.command;
  }
  return Object.entries(values)
    .map(([name, value]) => `${name}:${argumentText(value)}`)
    .join('\n');
}

function argumentText(value: unknown): string {
  const text = typeof value === 'string' ? value : JSON.stringify(value);
  return text.includes('\n') ? `\n${text}` : ` ${text}`;
}

export class CallView {
  readonly node: HTMLElement;
  private _badge: HTMLElement;
  private _code: HTMLElement;
  private _output: HTMLElement;
  private _changes: HTMLElement;
  private _decisions = h('div', { class: 'lsn-decisions' });
  private _shown: ICallFinished | null = null;
  private _decided = 0;
  private _more: HTMLElement | null = null;

  constructor(
    private _call: ICall,
    private _host: IHost
  ) {
    this._badge = h('span', { class: 'lsn-badge' });
    this._code = h('pre', { class: 'lsn-code', tabindex: 0 });
    this._output = h('pre', {
      class: 'lsn-output',
      tabindex: 0,
      'aria-label': _host.trans('Output'),
      'aria-live': 'off'
    });
    this._changes = h('div', { class: 'lsn-changes' });
    this.node = h(
      'div',
      { class: 'lsn-call' },
      h('div', { class: 'lsn-call-head' }, h('code', {}, _call.tool), this._badge),
      this._code,
      this._decisions,
      this._output,
      this._changes
    );
    this.update();
  }

  /** Show the call as it is now; what is shown already is left alone. */
  update(): void {
    const { result, decided } = this._call;
    if (decided.length !== this._decided) {
      this._decided = decided.length;
      this._decisions.replaceChildren(...renderDecisions(this._call, this._host));
    }
    if (result && result === this._shown) {
      return;
    }
    setText(this._code, plainText(callText(this._call)));
    this._code.hidden = !this._code.textContent;
    this._updateBadge();
    if (result) {
      this._finish(result);
    } else {
      this._updateLive();
    }
  }

  private _updateBadge(): void {
    const result = this._call.result;
    const trans = this._host.trans;
    let text = this._call.started === null ? trans('proposed') : trans('running');
    if (result) {
      text = result.error
        ? result.error
        : result.timed_out
          ? trans('timed out')
          : result.exit_code === null
            ? trans('done')
            : trans('exit %1', result.exit_code);
      text += ` · ${secondsInWords(result.duration)}`;
    }
    setText(this._badge, text);
    this._badge.dataset.state = failed(this._call) ? 'error' : result ? 'done' : 'live';
  }

  private _updateLive(): void {
    const follow = this._output.scrollTop + this._output.clientHeight >= this._output.scrollHeight - 8;
    setText(this._output, plainText(this._call.liveOutput));
    this._output.hidden = !this._call.liveOutput;
    if (follow) {
      this._output.scrollTop = this._output.scrollHeight;
    }
  }

  private _finish(result: ICallFinished): void {
    this._shown = result;
    this._more?.remove();
    this._changes.replaceChildren();
    this._showOutput(result.observation, OUTPUT_SHOWN);
    for (const change of result.changes) {
      this._changes.append(this._renderChange(change));
    }
    for (const note of [result.notice, result.changes_incomplete]) {
      if (note) {
        this._changes.append(h('div', { class: 'lsn-note' }, note));
      }
    }
  }

  private _showOutput(text: string, limit: number): void {
    const shown = text.length > limit ? text.slice(0, limit) : text;
    this._output.textContent = '';
    if (this._host.renderAnsi && shown.includes('\u001b')) {
      this._host.renderAnsi(shown, this._output);
    } else {
      setText(this._output, plainText(shown));
    }
    this._output.hidden = !text;
    if (shown.length < text.length) {
      const label = this._host.trans('Show all %1', sizeInWords(text.length));
      const more = h('button', { class: 'lsn-more', type: 'button' }, label);
      this._more = more;
      more.addEventListener('click', () => {
        more.remove();
        this._showOutput(text, Infinity);
      });
      this._output.after(more);
    }
  }

  private _renderChange(change: IFileDiff): HTMLElement {
    const label = h(
      'span',
      {},
      `${change.kind} `,
      h('code', {}, plainText(change.path)),
      ` (${sizeInWords(change.size)}) ${change.note}`
    );
    if (!change.diff) {
      return h('div', { class: 'lsn-change', 'data-kind': change.kind }, label);
    }
    const details = h('details', { class: 'lsn-change', 'data-kind': change.kind }, h('summary', {}, label));
    const show = () => {
      details.removeEventListener('toggle', show);
      details.append(renderDiff(change.diff!, this._host));
    };
    details.addEventListener('toggle', show);
    details.open = change.diff.length < 4000;
    return details;
  }
}
