/** One step. Its body exists only while it is near the visible part of the page. */

import { CallView, callText, failed } from './call';
import { h, setText } from './dom';
import { IStep } from './fold';
import { countInWords, secondsInWords } from './format';
import { IHost } from './host';

const HEIGHT_GUESS = 160;

export class StepView {
  readonly node: HTMLElement;
  private _title: HTMLElement;
  private _toggle: HTMLButtonElement;
  private _place: HTMLElement;
  private _body: StepBody | null = null;
  private _near = false;
  private _folded = false;
  private _height = HEIGHT_GUESS;
  private _text: string | null = null;

  constructor(
    readonly step: IStep,
    private _host: IHost
  ) {
    this._title = h('span', { class: 'lsn-step-title' });
    this._toggle = h(
      'button',
      { class: 'lsn-step-head', type: 'button', 'aria-expanded': 'true', onclick: () => this.fold(!this._folded) },
      this._title
    );
    this._place = h('div', { class: 'lsn-step-body' });
    this._place.style.minHeight = `${HEIGHT_GUESS}px`;
    this.node = h(
      'section',
      { class: 'lsn-step', 'aria-label': _host.trans('Step %1', step.number), 'data-step': step.number },
      this._toggle,
      this._place
    );
    this.update();
  }

  get failed(): boolean {
    return this.step.failures.length > 0 || this.step.calls.some(failed);
  }

  /** Everything that a search looks in, in lower case. */
  get text(): string {
    if (this._text === null) {
      const { thought, reasoning, calls } = this.step;
      const parts = calls.map(call => `${call.tool}\n${callText(call)}\n${call.result?.observation ?? ''}`);
      this._text = [thought, reasoning, ...parts].join('\n').toLowerCase();
    }
    return this._text;
  }

  /** Something of the step has changed. */
  update(): void {
    const { number, usage, modelTime, calls } = this.step;
    const parts = [this._host.trans('Step %1', number)];
    if (usage) {
      parts.push(this._host.trans('%1 tokens', countInWords(usage.prompt_tokens + usage.completion_tokens)));
    }
    if (modelTime) {
      parts.push(secondsInWords(modelTime));
    }
    if (this._folded) {
      parts.push(calls.map(call => call.tool).join(', '));
    }
    setText(this._title, parts.join(' · '));
    this.node.classList.toggle('lsn-failed', this.failed);
    this._text = null;
    this._body?.update();
  }

  /** Show only the title, or all. */
  fold(folded: boolean): void {
    this._folded = folded;
    this._toggle.setAttribute('aria-expanded', String(!folded));
    this._place.hidden = folded;
    this.update();
    this._render();
  }

  /** The step came near the visible part of the page, or left it. */
  setNear(near: boolean): void {
    this._near = near;
    this._render();
  }

  /** Whether its body is kept. */
  get near(): boolean {
    return this._near;
  }

  /** Keep its height for the time when it has no body. */
  measure(): void {
    if (this._body) {
      this._height = this._place.offsetHeight || this._height;
    }
  }

  private _render(): void {
    const wanted = this._near && !this._folded;
    if (wanted && !this._body) {
      this._body = new StepBody(this.step, this._host);
      this._place.style.minHeight = '';
      this._place.append(this._body.node);
    } else if (!this._near && this._body) {
      this._place.style.minHeight = `${this._height}px`;
      this._body.node.remove();
      this._body = null;
    }
  }
}

class StepBody {
  readonly node: HTMLElement;
  private _reasoning: HTMLElement;
  private _reasoningBox: HTMLDetailsElement;
  private _thought: HTMLElement;
  private _failures: HTMLElement;
  private _calls: HTMLElement;
  private _nudge: HTMLElement;
  private _views: CallView[] = [];
  private _rendered = false;

  constructor(
    private _step: IStep,
    private _host: IHost
  ) {
    this._reasoning = h('div', { class: 'lsn-reasoning' });
    this._reasoningBox = h('details', {}, h('summary', {}, _host.trans('Reasoning')), this._reasoning);
    this._thought = h('div', { class: 'lsn-thought' });
    this._failures = h('div', { class: 'lsn-failures' });
    this._calls = h('div', {});
    this._nudge = h('div', { class: 'lsn-note' });
    this.node = h('div', {}, this._reasoningBox, this._thought, this._failures, this._calls, this._nudge);
    this.update();
  }

  update(): void {
    const { reasoning, failures, calls, nudge } = this._step;
    setText(this._reasoning, reasoning);
    this._reasoningBox.hidden = !reasoning;
    this._updateThought();
    for (const failure of failures.slice(this._failures.childElementCount)) {
      const wait =
        failure.retry_in === null ? '' : this._host.trans(' (again in %1)', secondsInWords(failure.retry_in));
      this._failures.append(h('div', { class: 'lsn-error' }, `${failure.error}: ${failure.message}${wait}`));
    }
    for (const call of calls.slice(this._views.length)) {
      const view = new CallView(call, this._host);
      this._views.push(view);
      this._calls.append(view.node);
    }
    this._views.forEach(view => view.update());
    setText(this._nudge, nudge);
    this._nudge.hidden = !nudge;
  }

  private _updateThought(): void {
    const { thought, replied } = this._step;
    this._thought.hidden = !thought;
    if (this._rendered) {
      return;
    }
    if (replied && this._host.renderMarkdown) {
      this._rendered = true;
      this._thought.textContent = '';
      this._host.renderMarkdown(thought, this._thought);
    } else {
      setText(this._thought, thought);
    }
  }
}
