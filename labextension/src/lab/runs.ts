/** The runs of the notebook in front, newest first; forks stand under their run. */

import { visibleName } from '../artifacts/names';
import { plural, Trans } from '../formatting';
import { errorText, h, makeButton } from '../view/dom';
import { Newest } from '../view/newest';
import { oneLine } from '../view/one-line';
import { INotebookRun, IRunState, isLive, RunApi } from './run-api';

/** Maximum characters of a task, an answer and the doubts in a row. */
const TASK_CHARACTERS = 80;
const ANSWER_CHARACTERS = 120;
const DOUBT_CHARACTERS = 160;
/** Deepest indentation of forks of forks. */
const DEEPEST = 4;

/** Signs of states. A state that is missing here has the sign of its meaning. */
const SIGNS: Record<string, [sign: string, kind: string]> = {
  ready: ['○', 'live'],
  interrupted: ['■', 'stopped'],
  repeated: ['■', 'stopped']
};
const OF_MEANING: Record<string, [sign: string, kind: string]> = {
  ok: ['✓', 'done'],
  plain: ['•', 'plain'],
  run: ['●', 'live'],
  wait: ['●', 'wait'],
  away: ['●', 'live'],
  bad: ['✗', 'error']
};

export class RunsView {
  readonly node: HTMLElement;
  private _list = h('ul', { class: 'lsn-runs' });
  private _note = h('div', { class: 'lsn-panel-note' });
  private _shown = '';
  private _runs: INotebookRun[] = [];
  private _earlier = 0;
  private _problem = '';
  private _notebook: string | null = null;
  private _newest = new Newest();

  constructor(
    private _api: RunApi,
    private _open: (run: INotebookRun) => void,
    private _trans: Trans
  ) {
    const title = _trans('Runs of this notebook');
    this.node = h('section', { class: 'lsn-panel-runs', 'aria-label': title }, this._list, this._note);
  }

  /** Read the runs of a notebook again, and show them. `known` are the runs that kernels published to the server. */
  show(notebook: string | null, known: readonly IRunState[]): Promise<void> {
    const none = { runs: [], total: 0 };
    const read = notebook ? this._api.ofNotebook(notebook) : Promise.resolve(none);
    const show = ({ runs, total }: { runs: INotebookRun[]; total: number }, problem = '') => {
      this._notebook = notebook;
      this._runs = runs;
      this._earlier = total - runs.length;
      this._problem = problem;
      this.update(known);
    };
    return this._newest.ask(read, show, error =>
      show(none, this._trans('The runs cannot be read: %1', errorText(error)))
    );
  }

  /** Show the present state of live runs. */
  update(known: readonly IRunState[]): void {
    const live = new Map(known.filter(isLive).map(run => [run.id, run]));
    const rows = nested(this._runs).map(([run, depth]) => this._row(current(run, live.get(run.id)), depth));
    const shown = JSON.stringify([this._notebook, this._earlier, this._problem, rows.map(row => row.key)]);
    this.node.hidden = !this._notebook;
    if (shown === this._shown) {
      return;
    }
    this._shown = shown;
    const focused = this._list.querySelector<HTMLElement>(':focus')?.dataset.run;
    this._list.replaceChildren(...rows.map(row => row.node));
    if (focused) {
      [...this._list.querySelectorAll<HTMLElement>('[data-run]')].find(one => one.dataset.run === focused)?.focus();
    }
    const none = this._problem || this._trans('No run yet.');
    this._note.textContent =
      this._earlier > 0 ? this._trans('… and %1 earlier', this._earlier) : rows.length ? '' : none;
  }

  private _row(run: INotebookRun, depth: number): { key: string; node: HTMLElement } {
    const { _trans: trans } = this;
    const [sign, kind] = SIGNS[run.state] ?? OF_MEANING[run.meaning] ?? OF_MEANING.bad;
    const when = whenText(run.started);
    const state = run.words;
    const task = visibleName(oneLine(run.task, TASK_CHARACTERS)) || run.id;
    const steps = run.steps < 0 ? '' : plural(run.steps, trans('step'), trans('steps'));
    const answer = run.live ? '' : visibleName(oneLine(run.answer ?? '', ANSWER_CHARACTERS));
    const told = answer ? trans('Answer: %1', answer) : '';
    const doubts = visibleName(oneLine((run.doubts ?? []).map(one => one.line).join(' · '), DOUBT_CHARACTERS));
    const doubted = doubts ? trans('Doubts: %1', doubts) : '';
    const said = [`${when} ${state}: ${task}`, told, doubted, steps, depth ? trans('a fork') : '']
      .filter(part => part)
      .join(', ');
    const button = makeButton(
      h('small', {}, when),
      () => this._open(run),
      {
        class: 'lsn-run',
        'data-run': run.id,
        'aria-label': said,
        title: [`${state}. ${task}`, told, doubted].filter(part => part).join('\n')
      },
      h('span', { class: 'lsn-run-sign', 'data-state': kind }, depth ? `⑂ ${sign}` : sign),
      h('span', { class: 'lsn-run-task', dir: 'auto' }, task),
      h('small', {}, run.meaning === 'wait' && run.live ? trans('waiting') : steps),
      answer ? h('span', { class: 'lsn-run-answer', dir: 'auto' }, `→ ${answer}`) : null,
      doubts ? h('span', { class: 'lsn-run-answer lsn-run-doubts', dir: 'auto' }, doubts) : null
    );
    button.style.paddingInlineStart = `${12 + 14 * Math.min(depth, DEEPEST)}px`;
    return { key: `${said} ${run.id}`, node: h('li', {}, button) };
  }
}

/** Return the run in its live state, which is newer than the journal that was read. */
function current(run: INotebookRun, live: IRunState | undefined): INotebookRun {
  return live ? { ...run, ...live.status, steps: live.steps, live: true } : run;
}

/** Return each run with its depth: forks stand below their parent. */
function nested(runs: readonly INotebookRun[]): [INotebookRun, number][] {
  const ids = new Set(runs.map(run => run.id));
  const forks = new Map<string, INotebookRun[]>();
  for (const run of runs) {
    if (run.forked_from && run.forked_from !== run.id && ids.has(run.forked_from)) {
      forks.set(run.forked_from, [...(forks.get(run.forked_from) ?? []), run]);
    }
  }
  const below = new Set([...forks.values()].flat());
  const rows: [INotebookRun, number][] = [];
  const placed = new Set<INotebookRun>();
  const add = (run: INotebookRun, depth: number) => {
    if (!placed.has(run)) {
      placed.add(run);
      rows.push([run, depth]);
      forks.get(run.id)?.forEach(fork => add(fork, depth + 1));
    }
  };
  runs.filter(run => !below.has(run)).forEach(run => add(run, 0));
  // Journals that name each other as parents stand alone.
  runs.forEach(run => add(run, 0));
  return rows;
}

/** Return the time of a run of today, and the day and time of an earlier run. */
function whenText(seconds: number): string {
  const began = new Date(seconds * 1000);
  const time = began.toLocaleTimeString([], { hour: '2-digit', minute: '2-digit', hour12: false });
  const today = began.toDateString() === new Date().toDateString();
  return today ? time : `${began.toLocaleDateString([], { day: 'numeric', month: 'short' })} ${time}`;
}
