/** The head of the view: the state of the run in a word, and the task in a line. */

import { h, plainText, setText } from './dom';
import { Trajectory } from './fold';
import { formatCost, formatCount, formatDuration, formatModelFailure, formatState } from '../formatting';
import { IHost } from './host';
import { oneLine } from './one-line';

/** Who is silent at this moment, so that what is shown may be old. */
export type Away = 'server' | 'kernel' | null;

/** Characters of a task that fits its line; a longer one can be unfolded. */
const TASK_LINE = 300;

export class Header {
  readonly node: HTMLElement;
  /** Where buttons for the whole run stand. */
  readonly actions = h('span', { class: 'lsn-head-actions' });
  private _state = h('span', { class: 'lsn-badge', role: 'status' });
  private _line = h('span', { class: 'lsn-task-line' });
  private _whole = h('div', { class: 'lsn-task' });
  private _task = h('details', { class: 'lsn-task-box' }, h('summary', {}, this._line), this._whole);

  constructor(
    private _trajectory: Trajectory,
    private _host: IHost
  ) {
    this._line.title = _host.trans('The task');
    this.node = h('header', { class: 'lsn-header' }, this._state, this._task, this.actions);
  }

  /** Show the run as it is now; `live` while more may come, `away` while who tells of it is silent. */
  update(live: boolean, away: Away): void {
    const { start } = this._trajectory;
    const { text, kind } = stateOf(this._trajectory, live, away, this._host);
    setText(this._state, text);
    this._state.dataset.state = kind;
    if (start && !this._line.textContent) {
      setText(this._line, oneLine(start.task, TASK_LINE));
      setText(this._whole, plainText(start.task));
    }
  }
}

interface IState {
  text: string;
  /** What its colour says. */
  kind: 'done' | 'error' | 'limit' | 'live' | 'wait' | 'away';
}

function stateOf(trajectory: Trajectory, live: boolean, away: Away, host: IHost): IState {
  const { trans } = host;
  const { finish, held, paused, steps, readyAt, controls } = trajectory;
  const last = steps.length ? steps[steps.length - 1].number : '';
  if (finish) {
    // With an error it was the model's context, not the run's own limit of tokens.
    const limit = finish.stop_reason === 'tokens' && finish.error ? 'context' : finish.stop_reason;
    const reason = finish.without_answer ? 'without_answer' : limit;
    const well = reason === 'submitted' || reason === 'answered';
    return {
      text: plainText(formatState(reason, reasonDetail(trajectory, host), trans)),
      kind: well ? 'done' : 'error'
    };
  }
  if (!live) {
    return readyAt !== null
      ? { text: formatState('ready', last, trans), kind: 'live' }
      : { text: formatState('cut_off', last, trans), kind: 'error' };
  }
  if (away) {
    return { text: formatState(away === 'server' ? 'server_away' : 'kernel_away', '', trans), kind: 'away' };
  }
  if (held) {
    return { text: formatState('waiting', '', trans), kind: 'wait' };
  }
  if (paused) {
    return { text: formatState('paused', '', trans), kind: 'wait' };
  }
  const asked = controls.filter(one => one.action !== 'say').pop()?.action === 'pause';
  return { text: asked ? formatState('pausing', '', trans) : formatState('running', last, trans), kind: 'live' };
}

/** The limit that was reached, or what the model failed of. */
function reasonDetail(trajectory: Trajectory, host: IHost): string {
  const reason = trajectory.finish!.stop_reason;
  if (reason === 'model_error') {
    const failures = trajectory.steps[trajectory.steps.length - 1]?.failures ?? [];
    return formatModelFailure(failures[failures.length - 1]?.error ?? '', host.trans);
  }
  const limit = limitOf(trajectory, reason);
  switch (limit === null ? '' : reason) {
    case 'steps':
    case 'tokens':
    case 'total_tokens':
      return formatCount(limit!);
    case 'cost':
      return formatCost(limit) ?? '';
    case 'time':
      return formatDuration(limit!);
    default:
      return '';
  }
}

/** A limit in force, as the run began with it or as it was changed since; null when there is none. */
export function limitOf(trajectory: Trajectory, name: string): number | null {
  const all = [trajectory.start?.settings.limits, ...trajectory.changed.map(one => one.limits)];
  const values = all.map(limits => (limits as Record<string, unknown> | undefined)?.[name]);
  const last = values.filter(value => typeof value === 'number').pop();
  return typeof last === 'number' ? last : null;
}
