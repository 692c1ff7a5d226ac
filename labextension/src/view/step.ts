/** A step: a line and a body. Both exist only while the step is near the visible part of the page. */

import { CallView } from './call';
import { callText } from './call-summary';
import { Cause } from './cause';
import { h, makeButton, setText } from './dom';
import { IStep } from '../trajectory/fold';
import { formatClock, formatCount, formatDuration } from '../formatting';
import { IHost } from './host';
import { saysAll } from './one-line';
import { IChip, IStepLine, lineOf, stepDecided, stepFailed } from './step-line';

const HEIGHT_GUESS = 160;
/** Maximum characters of a step that is open in a short run. */
const SMALL = 1500;

const SIGNS = { bash: '$', edit: '✎', submit: '✓', other: '•', none: '…' };

/** The context that all steps of a view share. */
export interface IStepContext {
  host: IHost;
  /** Return the folder in which the run works, which is left out of paths. */
  root(): string;
  /** The settings of the run. */
  settings?(): Record<string, unknown>;
  /** Fill the place for buttons at the end of a step's line; called when the step comes near the visible part. */
  fillActions?(place: HTMLElement, step: IStep): void;
  /** The causes of steps, and their losses. */
  cause?: Cause;
  /** Return true if more steps may come. Then only steps that a person opened show their causes. */
  live?(): boolean;
  /** Return true if the model may still reply in a step. */
  running?(step: IStep): boolean;
  /** Return true if an outside agent drives the run. Its next call may come at any time. */
  outside?(): boolean;
}

export class StepView {
  readonly node: HTMLElement;
  private _row: StepRow | null = null;
  private _place = h('div', { class: 'lsn-step-body', hidden: true });
  private _body: StepBody | null = null;
  private _near = false;
  private _keepsLine = false;
  private _height = 0;
  private _text: string | null = null;
  private _chosen: boolean | null = null;
  private _found = false;
  private _suggested = false;
  private _ended = false;

  constructor(
    readonly step: IStep,
    private _context: IStepContext
  ) {
    const { trans } = _context.host;
    this.node = h('div', {
      class: 'lsn-step',
      role: 'listitem',
      'aria-label': trans('Step %1', step.number),
      'data-step': step.number
    });
    this.update();
  }

  get failed(): boolean {
    return stepFailed(this.step);
  }

  get decided(): boolean {
    return stepDecided(this.step);
  }

  /** True if the whole step is short. */
  get small(): boolean {
    const { thought, calls } = this.step;
    let size = thought.length;
    for (const call of calls) {
      size += callText(call).length + (call.result?.observation.length ?? 0);
      size += call.result?.changes.reduce((sum, change) => sum + (change.diff?.length ?? 0), 0) ?? 0;
    }
    return size < SMALL;
  }

  get open(): boolean {
    return this._chosen ?? (this._found || this._suggested);
  }

  /** All searchable text of the step, in lower case. */
  get text(): string {
    if (this._text === null) {
      const { thought, reasoning, calls } = this.step;
      const parts = calls.map(call => `${call.tool}\n${callText(call)}\n${call.result?.observation ?? ''}`);
      this._text = [thought, reasoning, ...parts].join('\n').toLowerCase();
    }
    return this._text;
  }

  /** Show the step again, because it has changed. */
  update(): void {
    const failed = this.failed;
    const done = this.step.replied && this.step.calls.every(call => call.result);
    this.node.dataset.state = failed ? 'error' : done ? 'done' : 'live';
    this.node.classList.toggle('lsn-failed', failed);
    this._row?.update();
    this.tick();
    this._text = null;
    this._updateBody();
  }

  /** Show how long the running call has taken so far. */
  tick(now = Date.now() / 1000): void {
    this._row?.tick(now, this._ended);
  }

  /** Start or stop the clock of a running call. If no more events come, the call has no end, so its clock stops. */
  setLive(live: boolean): void {
    if (live === this._ended) {
      this._ended = !live;
      this.tick();
    }
  }

  /** Open or close the step, as a person chose. */
  fold(folded: boolean): void {
    this._chosen = !folded;
    this._render();
  }

  /** Draw and open the step, whatever was chosen before, because a person goes to it. */
  reveal(): void {
    this._chosen = true;
    this.setNear(true);
    this._updateBody();
  }

  /** True if a row of calm steps is shown in place of this step. */
  get folded(): boolean {
    return this.node.classList.contains('lsn-folded');
  }

  setFolded(folded: boolean): void {
    this.node.classList.toggle('lsn-folded', folded);
  }

  /** Open or close the step unless a person has chosen. */
  suggest(open: boolean): void {
    if (open !== this._suggested) {
      this._suggested = open;
      this._render();
    }
  }

  /** Open the step because a search found something in it. */
  setFound(found: boolean): void {
    if (found !== this._found) {
      this._found = found;
      this._render();
    }
  }

  /** Keep the step's line even when it is far away, so that a person who jumps there sees the line at once. */
  keepLine(): void {
    if (!this._keepsLine) {
      this._keepsLine = true;
      this._render();
    }
  }

  /** Note that the step came near the visible part of the page, or left it. */
  setNear(near: boolean): void {
    this._near = near;
    this._render();
  }

  /** Make the buttons of the line again, because the host may offer others now. */
  refillActions(): void {
    if (this._row) {
      this._context.fillActions?.(this._row.actions, this.step);
    }
  }

  get near(): boolean {
    return this._near;
  }

  /** Remember the height of the step, for the time when it is not drawn. */
  measure(): void {
    if (this._row) {
      this._height = this.node.offsetHeight;
    }
  }

  private _updateBody(): void {
    this._body?.update(this._chosen === true || !this._context.live?.());
  }

  private _render(): void {
    const open = this.open;
    const drawn = this._near || this._keepsLine;
    if (drawn && !this._row) {
      this._row = new StepRow(this.step, this._context, () => this.fold(this.open));
      this.node.prepend(...this._row.nodes, this._place);
      this.tick();
    } else if (!drawn) {
      this._row?.nodes.forEach(node => node.remove());
      this._row = null;
      this._place.remove();
    }
    const height = open || this._height ? `${this._height || HEIGHT_GUESS}px` : '';
    this.node.style.minHeight = this._near ? '' : height;
    this._row?.setOpen(open);
    this._place.hidden = !open;
    if (open && this._near && !this._body) {
      this._body = new StepBody(this.step, this._context);
      this._updateBody();
      this._place.append(this._body.node);
    } else if (!(open && this._near)) {
      this._body?.node.remove();
      this._body = null;
    }
  }
}

/** The line of a step. It exists only while the step is near the visible part of the page. */
class StepRow {
  readonly nodes: HTMLElement[];
  private _toggle: HTMLButtonElement;
  private _icon = h('span', { class: 'lsn-icon', 'aria-hidden': 'true' });
  private _thought = h('em', {});
  private _what = h('code', {});
  private _counts = h('span', { class: 'lsn-counts' });
  private _chips = h('span', { class: 'lsn-chips' });
  private _clock: HTMLElement | null = null;
  private _figures = h('span', { class: 'lsn-fig' });
  private _drawnChips = '';
  private _open = false;
  /** The place for buttons for this step. */
  readonly actions = h('span', { class: 'lsn-acts' });

  constructor(
    private _step: IStep,
    private _context: IStepContext,
    toggle: () => void
  ) {
    this._toggle = makeButton(
      h('span', { class: 'lsn-n' }, String(_step.number)),
      toggle,
      { class: 'lsn-step-head', 'aria-expanded': 'false' },
      this._icon,
      h('span', { class: 'lsn-what' }, this._thought, this._what, this._counts)
    );
    _context.fillActions?.(this.actions, _step);
    this.nodes = [this._toggle, this._chips, this.actions, this._figures];
    this.update();
  }

  update(): void {
    const line = this._line();
    setText(this._icon, SIGNS[line.tool]);
    this._icon.dataset.tool = stepFailed(this._step) ? 'failed' : line.tool;
    setText(this._thought, line.thought);
    setText(this._what, line.what);
    this._showOnce(line);
    this._counts.replaceChildren(...countsOf(line));
    this._drawChips(this._context.cause?.chips(this._step, line.chips) ?? line.chips);
    setText(this._figures, line.figures);
  }

  setOpen(open: boolean): void {
    if (open !== this._open) {
      this._open = open;
      this._toggle.setAttribute('aria-expanded', String(open));
      this._showOnce(this._line());
    }
  }

  private _line(): IStepLine {
    return lineIn(this._context, this._step);
  }

  /** Hide the parts of the line that the body of an open step shows in full. */
  private _showOnce({ thought, what, tool }: IStepLine): void {
    const { calls, thought: said } = this._step;
    const whole = calls.length === 1 && callText(calls[0]).trim() === what;
    this._thought.hidden = this._open && !!said && !saysAll(thought, said);
    this._what.hidden = !what || (this._open && tool === 'bash' && !whole);
  }

  tick(now: number, ended: boolean): void {
    const { trans } = this._context.host;
    const running = this._step.calls.find(call => call.started !== null && !call.result);
    const asked = !this._step.replied && !this._context.outside?.() && this._step.requested;
    const since = running ? running.started! : asked || null;
    if (since === null || ended) {
      this._clock?.remove();
      this._clock = null;
      return;
    }
    if (!this._clock) {
      this._clock = h('span', { class: 'lsn-chip', 'data-kind': 'run', 'aria-live': 'off' });
      this._chips.append(this._clock);
    }
    const time = formatClock(now - since);
    setText(this._clock, running ? trans('running %1', time) : trans('thinking %1', time));
  }

  private _drawChips(chips: IChip[]): void {
    const drawn = JSON.stringify(chips);
    if (drawn !== this._drawnChips) {
      this._drawnChips = drawn;
      this._clock = null;
      this._chips.replaceChildren(...chips.map(chip => renderChip(chip)));
    }
  }
}

function lineIn({ host, root, running, settings, outside }: IStepContext, step: IStep): IStepLine {
  return lineOf(step, root(), host, !!running?.(step), settings?.(), outside?.());
}

function countsOf({ added, removed }: { added?: number; removed?: number }): (HTMLElement | string)[] {
  return [
    added ? h('span', { class: 'lsn-add' }, ` +${added}`) : '',
    removed ? h('span', { class: 'lsn-del' }, ` −${removed}`) : ''
  ];
}

function renderChip(chip: IChip): HTMLElement {
  return h('span', { class: 'lsn-chip', 'data-kind': chip.kind, title: chip.text }, chip.text, ...countsOf(chip));
}

class StepBody {
  readonly node: HTMLElement;
  private _reasoning: HTMLElement | null = null;
  private _thought = h('div', { class: 'lsn-thought' });
  private _reduced = h('div', { class: 'lsn-note', hidden: true });
  private _failures = h('div', { class: 'lsn-failures' });
  private _calls = h('div');
  private _connections = h('div', { class: 'lsn-connections' });
  private _nudge: HTMLElement | null = null;
  private _cause: HTMLElement | null = null;
  private _views: CallView[] = [];
  private _rendered = false;

  constructor(
    private _step: IStep,
    private _context: IStepContext
  ) {
    this.node = h('div', {}, this._reduced, this._thought, this._failures, this._calls, this._connections);
  }

  /** Show the present step. If `causes` is true, also show what led to the step. */
  update(causes: boolean): void {
    const { host } = this._context;
    const { reasoning, failures, calls, nudge, connections } = this._step;
    if (reasoning) {
      this._showReasoning(reasoning);
    }
    this._updateThought();
    this._showReduced();
    for (const failure of failures.slice(this._failures.childElementCount)) {
      const wait =
        failure.retry_in === null ? '' : ` ${host.trans('Asked again after %1.', formatDuration(failure.retry_in))}`;
      this._failures.append(h('div', { class: 'lsn-error' }, `${failure.message}${wait}`));
    }
    for (const call of calls.slice(this._views.length)) {
      const view = new CallView(call, host, this._context.root(), calls.length === 1);
      this._views.push(view);
      this._calls.append(view.node);
    }
    this._views.forEach(view => view.update());
    for (const one of connections.slice(this._connections.childElementCount)) {
      const kind = one.decision === 'allowed' ? 'lsn-note' : 'lsn-error';
      this._connections.append(h('div', { class: kind }, host.trans('Network: %1', one.line)));
    }
    if (nudge && !this._nudge) {
      this._nudge = h('div', { class: 'lsn-note' }, nudge);
      this._calls.after(this._nudge);
    }
    if (causes && !this._cause && this._context.cause && this._step.replied && calls.every(call => call.result)) {
      this._cause = this._context.cause.render(this._step);
      this.node.append(this._cause);
    }
  }

  private _line(): IStepLine {
    return lineIn(this._context, this._step);
  }

  /** Say what the model no longer sees. */
  private _showReduced(): void {
    const { reduced } = this._step;
    this._reduced.hidden = !reduced;
    if (!reduced) {
      return;
    }
    const { trans } = this._context.host;
    const [before, after] = [formatCount(reduced.tokens_before), formatCount(reduced.tokens_after)];
    const texts = {
      mask: trans('From here on, old results are shortened for the model: %1 of %2 tokens are sent.', after, before),
      summary: trans(
        'From here on, the model sees a summary in place of older messages: %1 of %2 tokens are sent.',
        after,
        before
      ),
      repeats: trans('The model repeated its reply. From here on, the equal replies are not sent to it.')
    };
    setText(this._reduced, texts[reduced.how] ?? '');
  }

  private _showReasoning(text: string): void {
    if (!this._reasoning) {
      this._reasoning = h('div', { class: 'lsn-reasoning' });
      const { trans } = this._context.host;
      this.node.prepend(h('details', {}, h('summary', {}, trans('Reasoning')), this._reasoning));
    }
    setText(this._reasoning, text);
  }

  private _updateThought(): void {
    const { host } = this._context;
    const { thought, replied } = this._step;
    this._thought.hidden = !thought || saysAll(this._line().thought, thought);
    if (this._rendered) {
      return;
    }
    if (replied && host.renderMarkdown) {
      this._rendered = true;
      this._thought.textContent = '';
      host.renderMarkdown(thought, this._thought);
    } else {
      setText(this._thought, thought);
    }
  }
}
