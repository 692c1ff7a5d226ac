/** Doubts in one line under the answer, the worst first: why the result may be wrong, each with a link to its step. */

import { h, makeButton, plainText } from './dom';
import { IDoubt } from '../generated/events';
import { Trajectory } from '../trajectory/fold';
import { IHost } from './host';

/** Maximum number of shown doubts, and of characters of one. A record may have any number. */
const SHOWN_DOUBTS = 20;
const DOUBT_CHARACTERS = 300;

export class Doubts {
  readonly node = h('div', { class: 'lsn-doubts', role: 'note', hidden: true });
  private _drawn: readonly IDoubt[] | null = null;
  private _steps = 0;

  constructor(
    private _trajectory: Trajectory,
    private _host: IHost,
    private _show: (step: number) => void
  ) {
    this.node.setAttribute('aria-label', _host.trans('Doubts'));
  }

  /** Show the present doubts. */
  update(): void {
    const { doubts, steps } = this._trajectory;
    if (doubts === this._drawn && steps.length === this._steps) {
      return;
    }
    this._drawn = doubts;
    this._steps = steps.length;
    const shown = doubts.slice(0, SHOWN_DOUBTS).map(doubt => this._render(doubt));
    const parts = shown.flatMap((node, at) => (at ? [' · ', node] : [node]));
    this.node.hidden = !parts.length;
    this.node.replaceChildren(h('b', {}, this._host.trans('Doubts')), ...parts);
  }

  private _render(doubt: IDoubt): HTMLElement {
    const { step } = doubt;
    const text = plainText(doubtLine(doubt)).slice(0, DOUBT_CHARACTERS);
    const known = step !== null && this._trajectory.steps.some(one => one.number === step);
    const attributes = { class: 'lsn-doubt', 'data-severity': doubt.severity, title: plainText(doubt.rule) };
    return known ? makeButton(text, () => this._show(step), { ...attributes }) : h('span', attributes, text);
  }
}

/** Return a doubt with its step, as it is shown everywhere. Twin of `Doubt.line` in `trajectory/events.py`. */
export function doubtLine({ step, until, text }: IDoubt): string {
  if (step === null || step === undefined) {
    return text;
  }
  return typeof until === 'number' && until !== step ? `${step}-${until}: ${text}` : `${step}: ${text}`;
}
