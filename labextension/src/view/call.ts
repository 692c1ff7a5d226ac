/** A tool call: its command, its output as it streams, its changes. Nothing is shown twice. */

import { callText, endingOf, failed, headline, pathBelow, toolOf } from './call-summary';
import { renderDecisions } from './decisions';
import { renderDiff } from './diff';
import { h, plainText } from './dom';
import { ICallFinished, IFileDiff } from '../generated/events';
import { ICall } from '../trajectory/fold';
import { formatDuration, formatSize } from '../formatting';
import { highlight, languageOf } from './highlight';
import { IHost } from './host';
import { streamsOf } from './observation';
import { OutputBox } from './output';

/** Arguments of the editor that its diff shows. */
const IN_DIFF = new Set(['command', 'path', 'file_text', 'old_str', 'new_str', 'insert_line']);
/** Maximum characters of a diff that is open at first. */
const SHORT_DIFF = 4000;

export class CallView {
  readonly node: HTMLElement;
  private _code = h('div', { class: 'lsn-code', role: 'group' });
  private _box = h('div', { class: 'lsn-box' });
  private _live: OutputBox | null = null;
  private _changes = h('div', { class: 'lsn-changes' });
  private _decisions = h('div', { class: 'lsn-decisions' });
  private _shown: ICallFinished | null = null;
  private _written: string | null = null;
  private _decisionCount = 0;

  constructor(
    private _call: ICall,
    private _host: IHost,
    private _root: string,
    /** True if the step's line is about this call alone. */
    private _alone = false
  ) {
    this._code.setAttribute('aria-label', _host.trans('Call'));
    this._box.append(this._code);
    this.node = h('div', { class: 'lsn-call' }, this._decisions, this._box, this._changes);
    this.update();
  }

  /** Show the call as it is now; what is shown already is left alone. */
  update(): void {
    const { result, decisions } = this._call;
    if (decisions.length !== this._decisionCount) {
      this._decisionCount = decisions.length;
      this._decisions.replaceChildren(...renderDecisions(this._call, this._host));
    }
    if (result && result === this._shown) {
      return;
    }
    this._showCode();
    if (result) {
      this._finish(result);
    } else {
      this._showLive(this._call.liveOutput);
    }
    this._box.hidden = [...this._box.children].every(part => (part as HTMLElement).hidden);
  }

  private _showLive(text: string): void {
    if (!this._live) {
      this._live = new OutputBox('live', this._host, this._host.trans('Output'));
      this._box.append(this._live.node);
    }
    this._live.show(text);
  }

  /** Show the command, or the text that the editor is to write, until a diff shows that text. */
  private _showCode(): void {
    const [text, language] = this._codeText();
    if (text !== this._written) {
      this._written = text;
      highlight(plainText(text), language, this._code);
      this._code.hidden = !text || this._isInLine(text);
    }
  }

  /** Return true if the step's line has the whole text. */
  private _isInLine(text: string): boolean {
    return this._alone && !this._call.decisions.length && headline(this._call, this._root) === text.trim();
  }

  private _codeText(): [string, string | null] {
    const call = this._call;
    const values = call.arguments;
    if (!values) {
      return [call.rawArguments, null];
    }
    switch (toolOf(call)) {
      case 'bash':
        return [callText(call), 'bash'];
      case 'submit':
        return [Object.keys(values).length ? callText(call) : '', null];
      case 'edit': {
        if (call.result?.changes.some(change => change.diff)) {
          const rest = Object.entries(values).filter(([name]) => !IN_DIFF.has(name));
          return [rest.map(([name, value]) => `${name}: ${JSON.stringify(value)}`).join('\n'), null];
        }
        const { command, path, file_text } = values;
        if (command === 'create' && typeof file_text === 'string') {
          return [file_text, languageOf(typeof path === 'string' ? path : '')];
        }
        return [command === 'view' ? '' : callText(call), null];
      }
      case 'other':
        return [callText(call), null];
    }
  }

  private _finish(result: ICallFinished): void {
    const { trans } = this._host;
    this._shown = result;
    const { stdout, stderr, background } = streamsOf(this._call);
    const parts = [
      background && [
        h('div', { class: 'lsn-note' }, trans('Output of background jobs')),
        this._stream('text', background)
      ],
      this._saysMore(result) && this._stream('stdout', stdout, !!stderr && failed(this._call)),
      stderr && this._stream('stderr', stderr),
      this._ending(result)
    ];
    const shown = parts.flat().filter((part): part is HTMLElement => !!part);
    this._box.replaceChildren(this._code, ...shown);
    this._changes.replaceChildren(
      ...result.changes.map(change => this._renderChange(change)),
      ...[result.notice, result.changes_incomplete]
        .filter(note => note)
        .map(note => h('div', { class: 'lsn-note' }, plainText(note)))
    );
  }

  /** Return false for an output that repeats another part: the editor's diff, or the end of the run. */
  private _saysMore(result: ICallFinished): boolean {
    const tool = toolOf(this._call);
    const repeats = tool === 'edit' ? this._call.arguments?.command !== 'view' : tool === 'submit';
    return !repeats || failed(this._call);
  }

  private _stream(kind: 'stdout' | 'stderr' | 'text', text: string, brief = false): HTMLElement {
    const { trans } = this._host;
    const box = new OutputBox(kind, this._host, kind === 'stderr' ? trans('Errors') : trans('Output'), brief);
    box.show(text);
    box.node.classList.toggle('lsn-stderr', kind === 'stderr');
    return box.node;
  }

  private _ending(result: ICallFinished): HTMLElement | null {
    if (!failed(this._call)) {
      return null;
    }
    return h('div', { class: 'lsn-exit' }, `${endingOf(this._call, this._host)} · ${formatDuration(result.duration)}`);
  }

  private _renderChange(change: IFileDiff): HTMLElement {
    const { trans } = this._host;
    const kinds: Record<string, string> = {
      added: trans('Created'),
      modified: trans('Changed'),
      deleted: trans('Deleted')
    };
    const known = Object.hasOwn(kinds, change.kind);
    const path = plainText(pathBelow(change.path, this._root));
    const label = h(
      'span',
      {},
      `${known ? kinds[change.kind] : change.kind} `,
      !this._isInLine(path) && h('code', { dir: 'auto' }, path),
      h('span', { class: 'lsn-quiet' }, ` ${formatSize(change.size)}`),
      change.note && h('span', { class: 'lsn-quiet' }, ` ${plainText(change.note)}`)
    );
    if (!change.diff) {
      return h('div', { class: 'lsn-change', 'data-kind': change.kind }, label);
    }
    const details = h('details', { class: 'lsn-change', 'data-kind': change.kind }, h('summary', {}, label));
    const show = () => {
      details.removeEventListener('toggle', show);
      details.append(renderDiff(change.diff!, this._host, languageOf(change.path)));
    };
    details.addEventListener('toggle', show);
    details.open = change.diff.length < SHORT_DIFF;
    return details;
  }
}
