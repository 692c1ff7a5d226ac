/** The steps of a run in a row, and below it the branches that were left and the runs that were forked off. */

import { h, plainText, setText } from './dom';
import { Trajectory } from './fold';
import type { IStep } from './fold';
import { IHost } from './host';
import { failed } from './call';

/** Branches and forks that are shown; a journal may claim any number. */
const ROWS_MOST = 20;
/** Cells that are laid out together, so that one more does not lay out all of a long run. */
const GROUP = 32;

/** A step that was chosen: of the branch that goes on, or of one that was left. */
export interface IChosen {
  trajectory: Trajectory;
  /** 0 is before the first step. */
  number: number;
  head: boolean;
}

export class Timeline {
  readonly node: HTMLElement;
  private _head = h('div', { class: 'lsn-timeline-row', role: 'group' });
  private _others = h('div', {});
  private _cells = new Map<IStep, HTMLButtonElement>();
  private _rows = 0;

  constructor(
    private _trajectory: Trajectory,
    private _host: IHost,
    private _choose: (chosen: IChosen | null) => void
  ) {
    const { trans } = _host;
    this._head.setAttribute('aria-label', trans('Steps of this branch'));
    this.node = h(
      'nav',
      { class: 'lsn-timeline', 'aria-label': trans('Timeline') },
      h('div', { class: 'lsn-timeline-rows' }, this._head, this._others)
    );
    this.node.hidden = true;
    this.node.addEventListener('keydown', event => this._key(event));
  }

  /** The run is on another branch: all is drawn anew with the next update. */
  reset(): void {
    this._cells.clear();
    this._head.replaceChildren();
    this._rows = -1;
  }

  /** Show these steps as they are now. */
  touch(steps: Iterable<IStep>): void {
    for (const step of steps) {
      const cell = this._cells.get(step) ?? this._addCell(step);
      describe(cell, this._trajectory, step, this._host);
    }
  }

  /** Show branches and forks, if there are others than before. */
  update(): void {
    const { rewinds, forks, steps, start, checkpoints } = this._trajectory;
    if (checkpoints.has(0) && !this._head.querySelector('[data-step="0"]')) {
      this._head.prepend(this._start());
    }
    const rows = rewinds.length + forks.length + (start?.forked_from ? 1 : 0);
    if (rows !== this._rows) {
      this._rows = rows;
      this._others.replaceChildren(...this._drawOthers());
    }
    this.node.hidden = steps.length < 2 && !rows;
  }

  /** Mark nothing as chosen. */
  unchoose(): void {
    this.node.querySelectorAll('[aria-pressed="true"]').forEach(cell => cell.setAttribute('aria-pressed', 'false'));
  }

  private _addCell(step: IStep): HTMLButtonElement {
    const cell = this._cell({ trajectory: this._trajectory, number: step.number, head: true });
    if (this._cells.size % GROUP === 0) {
      this._head.append(h('span', { class: 'lsn-cells' }));
    }
    this._cells.set(step, cell);
    this._head.lastElementChild!.append(cell);
    return cell;
  }

  private _start(): HTMLButtonElement {
    const cell = this._cell({ trajectory: this._trajectory, number: 0, head: true });
    cell.setAttribute('aria-label', this._host.trans('Before the first step, files kept'));
    cell.dataset.files = 'true';
    return cell;
  }

  private _cell(chosen: IChosen): HTMLButtonElement {
    const cell = h(
      'button',
      { type: 'button', 'data-step': chosen.number, 'aria-pressed': 'false', class: 'lsn-cell' },
      String(chosen.number)
    );
    const first = !this.node.querySelector('.lsn-cell[tabindex="0"]');
    cell.tabIndex = first ? 0 : -1;
    cell.addEventListener('click', () => {
      const again = cell.getAttribute('aria-pressed') === 'true';
      this.unchoose();
      cell.setAttribute('aria-pressed', String(!again));
      this._choose(again ? null : chosen);
    });
    return cell;
  }

  private _drawOthers(): HTMLElement[] {
    const { trans } = this._host;
    const { forks, start } = this._trajectory;
    const left = this._trajectory.branches.filter(branch => !branch.head);
    const rows = [
      ...left.slice(-ROWS_MOST).map(branch => this._branchRow(branch.tip, branch.step)),
      ...forks.slice(-ROWS_MOST).map(fork => this._runRow(trans('Fork of step %1', fork.step), fork.folder, fork.step))
    ];
    if (start?.forked_from) {
      const { step, folder } = start.forked_from;
      rows.unshift(this._runRow(trans('This run goes on from step %1 of', step), folder, 0));
    }
    const more = left.length + forks.length - rows.length;
    return more > 0 ? [...rows, h('div', { class: 'lsn-note' }, trans('… and %1 more', more))] : rows;
  }

  private _branchRow(tip: string, shared: number): HTMLElement {
    const { trans } = this._host;
    const branch = this._trajectory.at(tip);
    const label = trans('Branch that was left after step %1', shared);
    const row = h('div', { class: 'lsn-timeline-row lsn-left', role: 'group', 'aria-label': label });
    row.style.setProperty('--lsn-at', String(shared + (this._trajectory.checkpoints.has(0) ? 1 : 0)));
    for (const step of branch?.steps ?? []) {
      if (step.number > shared) {
        const cell = this._cell({ trajectory: branch!, number: step.number, head: false });
        describe(cell, branch!, step, this._host);
        row.append(cell);
      }
    }
    row.append(h('span', { class: 'lsn-note' }, trans('left')));
    return row;
  }

  private _runRow(label: string, folder: string, step: number): HTMLElement {
    const name = plainText(folder);
    const run = h('a', { class: 'lsn-run-link' }, name);
    run.title = `%sandbox load ${name} -o other`;
    this._host.linkRun?.(run, folder);
    const row = h('div', { class: 'lsn-timeline-row lsn-fork' }, h('span', { class: 'lsn-note' }, `${label} `), run);
    row.style.setProperty('--lsn-at', String(step));
    return row;
  }

  /** The arrows move between the steps, as within any group of buttons. */
  private _key(event: KeyboardEvent): void {
    const row = (event.target as HTMLElement).closest('.lsn-timeline-row');
    const moves: Record<string, [number, number]> = {
      ArrowLeft: [0, -1],
      ArrowRight: [0, 1],
      ArrowUp: [-1, 0],
      ArrowDown: [1, 0]
    };
    if (!row || !Object.prototype.hasOwnProperty.call(moves, event.key)) {
      return;
    }
    const [down, right] = moves[event.key];
    const rows = [...this.node.querySelectorAll('.lsn-timeline-row')].filter(one => one.querySelector('.lsn-cell'));
    const cells = (one: Element) => [...one.querySelectorAll<HTMLElement>('.lsn-cell')];
    const target = rows[rows.indexOf(row) + down] ?? row;
    const place = cells(row).indexOf(event.target as HTMLElement) + right;
    const list = cells(target);
    const next = list[Math.min(Math.max(place, 0), list.length - 1)];
    if (next) {
      event.preventDefault();
      event.stopPropagation();
      this.node.querySelectorAll<HTMLElement>('.lsn-cell[tabindex="0"]').forEach(one => (one.tabIndex = -1));
      next.tabIndex = 0;
      next.focus();
    }
  }
}

/** What a cell says of its step, in colours and in words. */
function describe(cell: HTMLElement, trajectory: Trajectory, step: IStep, host: IHost): void {
  const { trans } = host;
  const wrong = step.failures.length > 0 || step.calls.some(failed);
  const kept = trajectory.checkpoints.has(step.number);
  const decided = step.calls.some(call => call.decided.some(one => one.action !== 'run'));
  cell.dataset.state = wrong ? 'error' : step.calls.every(call => call.result) && step.replied ? 'done' : 'live';
  cell.dataset.files = String(kept);
  cell.dataset.decided = String(decided);
  const words = [
    trans('Step %1', step.number),
    wrong && trans('failed'),
    decided && trans('decided by a person'),
    kept && trans('files kept')
  ];
  const label = words.filter(word => word).join(', ');
  cell.setAttribute('aria-label', label);
  cell.title = label;
  setText(cell, String(step.number));
}
