/** The head of the view: the state of the run in a word, and the task in a line. */

import { h, plainText, setText } from './dom';
import { Trajectory } from '../trajectory/fold';
import { IHost } from './host';
import { oneLine } from './one-line';
import { Away } from '../trajectory/status';

/** The style of each meaning. */
const KINDS = { ok: 'done', bad: 'error', plain: 'plain', wait: 'wait', run: 'live', away: 'away' };
/** Maximum characters of the task in the line. A longer task can be unfolded. */
const TASK_LINE = 300;

export class Header {
  readonly node: HTMLElement;
  /** The place for buttons for the whole run. */
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

  /** Show the present state. `live` is true while more events may come; `away` names the part that does not answer. */
  update(live: boolean, away: Away): void {
    const { start } = this._trajectory;
    const { words, meaning } = this._trajectory.status.runState(live, this._host.trans, away);
    setText(this._state, plainText(words));
    this._state.dataset.state = KINDS[meaning];
    if (start && !this._line.textContent) {
      setText(this._line, oneLine(start.task, TASK_LINE));
      setText(this._whole, plainText(start.task));
    }
  }
}
