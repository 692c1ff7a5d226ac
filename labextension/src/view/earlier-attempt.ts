/** The call of the same step in the newest earlier attempt, with the differing parts marked. */

import { callText } from './call-summary';
import { h, plainText } from './dom';
import { IStep, Trajectory } from '../trajectory/fold';
import { IHost } from './host';
import { markDifferences } from './text-diff';

const TEXT_MOST = 2000;

export class EarlierAttempt {
  private _tip: string | null = null;
  private _steps = new Map<number, IStep>();

  constructor(private _trajectory: Trajectory) {}

  /** Return the step of the same number in the newest earlier attempt; null if it is missing, or the same step. */
  of(step: IStep): IStep | null {
    if (!this._trajectory.rewinds.length) {
      return null;
    }
    const left = this._trajectory.branches.filter(branch => !branch.head);
    const newest = left[left.length - 1];
    if (!newest) {
      return null;
    }
    if (newest.tip !== this._tip) {
      const other = this._trajectory.at(newest.tip);
      this._tip = newest.tip;
      this._steps = new Map(other?.steps.filter(one => one.number > newest.step).map(one => [one.number, one]));
    }
    return this._steps.get(step.number) ?? null;
  }
}

/** Render the earlier call; null if the calls are the same. */
export function renderEarlierAttempt(step: IStep, earlier: IStep, host: IHost): HTMLElement | null {
  const [mine, other] = [textOf(step), textOf(earlier)];
  if (mine === other) {
    return null;
  }
  const [marked] = markDifferences(other, mine);
  return h(
    'div',
    { class: 'lsn-earlier' },
    h('div', { class: 'lsn-soft' }, host.trans('Earlier attempt, step %1:', earlier.number)),
    h('pre', { class: 'lsn-code', tabindex: 0 }, ...marked)
  );
}

function textOf(step: IStep): string {
  const text = step.calls.map(callText).join('\n') || step.thought;
  return plainText(text.slice(0, TEXT_MOST));
}
