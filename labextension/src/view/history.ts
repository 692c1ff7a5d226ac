/** Actions on a step: rewind to it, fork from it, see its files, compare attempts, link to it. */

import { CheckpointChangesView } from './checkpoint-changes';
import { CheckpointFilesView } from './checkpoint-files';
import { renderComparison } from './compare';
import { errorText, h, makeButton, plainText } from './dom';
import { IStep, Trajectory } from '../trajectory/fold';
import { IHost, ITimeTravel } from './host';
import { RewindForm } from './rewind-form';
import { StepView } from './step';
import { StepAction } from './step-actions';
import { stepLink } from './step-link';
import { IChosen } from './timeline';

export interface IHistoryActions {
  /** Show the result of an action after which the panel is gone. */
  told(text: string): void;
  /** Show how the run continues, because it was rewound. */
  rewound(): void;
  close(): void;
}

export class HistoryPanel {
  readonly node: HTMLElement;
  private _status = h('div', { class: 'lsn-note', role: 'status' });
  private _body = h('div', { class: 'lsn-history-body' });

  constructor(
    private _chosen: IChosen,
    private _head: Trajectory,
    private _host: IHost,
    private _actions: IHistoryActions,
    action: StepAction | null = null
  ) {
    const { trans } = _host;
    const { number, head } = _chosen;
    const title = number ? trans('Step %1', number) : trans('Before the first step');
    const close = makeButton('×', () => _actions.close(), { 'aria-label': trans('Close') });
    const heading = h('h3', {}, head ? title : trans('%1 of an earlier attempt', title));
    this.node = h(
      'section',
      { class: 'lsn-history', 'aria-label': trans('%1: rewind, fork, files', title), tabindex: -1 },
      h('div', { class: 'lsn-history-head' }, heading, this._buttons(), close),
      this._status,
      this._body
    );
    this.node.addEventListener('keydown', event => {
      if (event.key === 'Escape') {
        event.stopPropagation();
        _actions.close();
      }
    });
    this._begin(action);
  }

  /** Id of the checkpoint with the files of this step; null if no files are kept. See `filesAt`. */
  get checkpoint(): string | null {
    return filesAt(this._chosen.trajectory, this._chosen.number);
  }

  private get _step(): IStep | undefined {
    return this._chosen.trajectory.steps.find(step => step.number === this._chosen.number);
  }

  private _begin(action: StepAction | null): void {
    const { timeTravel } = this._host;
    switch (action) {
      case 'rewind':
        return timeTravel && this._showRewind(timeTravel);
      case 'fork':
        return timeTravel && void this._fork(timeTravel);
      case 'files':
        return this._showFiles();
      case 'link':
        return this._showLink();
      default:
        return this._chosen.head ? undefined : this._showStep();
    }
  }

  private _buttons(): HTMLElement {
    const { trans, history, timeTravel } = this._host;
    const { number, head } = this._chosen;
    const bar = h('div', { class: 'lsn-history-buttons', role: 'toolbar', 'aria-label': trans('Step') });
    const add = (label: string, action: () => void) => bar.append(makeButton(label, action));
    if (head && timeTravel) {
      add(trans('Rewind'), () => this._showRewind(timeTravel));
      add(trans('Fork'), () => void this._fork(timeTravel));
    }
    if (!head) {
      add(trans('The step'), () => this._showStep());
      add(trans('Compare attempts'), () =>
        this._body.replaceChildren(renderComparison(this._chosen.trajectory, this._head, this._host))
      );
    }
    const readable = history && this.checkpoint;
    if (readable) {
      add(trans('Files'), () => this._showFiles());
      add(trans('Changes'), () => this._showChanges());
    }
    if (head && timeTravel && this._head.rewinds.length && this._head.readyAt === null) {
      add(trans('Undo the last rewind'), () => void this._undo(timeTravel));
    }
    if (head && number) {
      add(trans('Link'), () => this._showLink());
    }
    if (!readable) {
      const why = history
        ? trans('The files were not kept at this step.')
        : trans('The files of a step can be read while the Jupyter server knows the run.');
      bar.append(h('span', { class: 'lsn-note' }, why));
    }
    return bar;
  }

  private _showStep(): void {
    const step = this._step;
    if (step) {
      const root = () => this._head.sandbox?.root ?? '';
      const view = new StepView(step, { host: this._host, root });
      view.suggest(true);
      view.setNear(true);
      this._body.replaceChildren(view.node);
    }
  }

  private _showFiles(): void {
    const { history, trans } = this._host;
    if (history && this.checkpoint) {
      this._body.replaceChildren(new CheckpointFilesView(history, this.checkpoint, this._host).node);
    } else {
      this._status.textContent = trans('The files were not kept at this step.');
    }
  }

  /** Show the changes since another step of the present attempt, at first since the step before. */
  private _showChanges(): void {
    const { trans } = this._host;
    const { number } = this._chosen;
    const view = new CheckpointChangesView(this._host.history!, this._host);
    const others = stepsWithFiles(this._head);
    const select = h('select', { 'aria-label': trans('Compare with') });
    for (const other of others) {
      const label = other ? trans('step %1', other) : trans('before the first step');
      select.append(h('option', { value: other }, label));
    }
    const before = [...others].reverse().find(other => other < number) ?? others[0] ?? number;
    select.value = String(before);
    const show = () => {
      const from = filesAt(this._head, Number(select.value));
      view.show(from ?? this.checkpoint!, this.checkpoint!);
    };
    select.addEventListener('change', show);
    this._body.replaceChildren(h('label', { class: 'lsn-compare' }, trans('Compared with'), ' ', select), view.node);
    show();
  }

  private _showLink(): void {
    const { trans } = this._host;
    const link = stepLink(this._head.start?.run_id ?? '', this._chosen.number);
    const input = h('input', { type: 'text', class: 'lsn-link', readonly: true, 'aria-label': trans('Link') });
    input.value = link;
    input.setAttribute('data-lm-suppress-shortcuts', 'true');
    this._body.replaceChildren(input);
    input.select();
    const copied = navigator.clipboard?.writeText(link) ?? Promise.reject(new Error());
    copied.then(
      () => (this._status.textContent = trans('The link is copied.')),
      () => (this._status.textContent = trans('Copy this link:'))
    );
  }

  // --- rewind, undo, fork ---

  private _showRewind(travel: ITimeTravel): void {
    const place = { head: this._head, number: this._chosen.number, checkpoint: this.checkpoint };
    const done = (error: string) => {
      if (error && !this.node.isConnected) {
        this._actions.told(error);
      }
      if (!error && form.what !== 'files') {
        this._actions.rewound();
      }
    };
    const form = new RewindForm(place, travel, this._host, done, () => this._actions.close());
    this._body.replaceChildren(form.node);
  }

  private async _undo(travel: ITimeTravel): Promise<void> {
    this._status.textContent = this._host.trans('Undoing…');
    try {
      const text = await travel.undo(false);
      await this._host.refresh?.();
      this._tell(text);
    } catch (error) {
      this._tell(error);
    }
  }

  private async _fork(travel: ITimeTravel): Promise<void> {
    const { trans } = this._host;
    const { number } = this._chosen;
    this._status.textContent = trans('Creating a fork…');
    const before = this._head.forks.length;
    try {
      const made = await travel.fork(number);
      await this._host.refresh?.();
      const added = this._head.forks.slice(before).find(fork => fork.step === number);
      const folder = made?.folder ?? added?.folder ?? null;
      this._status.textContent = '';
      this._body.replaceChildren(this._forked(travel, folder));
    } catch (error) {
      this._tell(error);
    }
  }

  /** Render a banner: "Fork created", with the buttons Open and Continue. */
  private _forked(travel: ITimeTravel, folder: string | null): HTMLElement {
    const { trans, linkRun } = this._host;
    const told = h('span', { role: 'status' });
    const text = h('div', { class: 'lsn-banner-text' }, h('b', {}, trans('Fork created.')), ' ', told);
    const banner = h('div', { class: 'lsn-banner', 'data-kind': 'back', role: 'group' }, text);
    banner.setAttribute('aria-label', trans('Fork created'));
    if (folder === null) {
      return banner;
    }
    if (linkRun) {
      const open = h('a', { class: 'lsn-button', title: plainText(folder) }, trans('Open'));
      this._host.linkRun!(open, folder);
      banner.append(open);
    }
    if (travel.resume) {
      const resume = h('button', { type: 'button', class: 'lsn-primary' }, trans('Continue'));
      resume.addEventListener('click', () => {
        resume.disabled = true;
        told.textContent = trans('It runs in a new cell below.');
        travel.resume!({ run: folder }).catch(error => {
          resume.disabled = false;
          told.textContent = errorText(error);
        });
      });
      banner.append(resume);
    }
    return banner;
  }

  private _tell(result: unknown): void {
    const text = errorText(result);
    if (this.node.isConnected) {
      this._status.textContent = text;
    } else {
      this._actions.told(text);
    }
  }
}

/**
 * Return the id of the checkpoint with the files of a step: its own, or the newest earlier one, because a step without
 * a checkpoint changed no file. Null if no checkpoint is kept.
 */
export function filesAt(trajectory: Trajectory, number: number): string | null {
  let found: string | null = null;
  let at = -1;
  for (const [step, { checkpoint, after_step }] of trajectory.checkpoints) {
    if (step <= number && step >= at) {
      // after a rewind of only the conversation, the sandbox still has later files than the step had
      const own = step === number ? (after_step ?? checkpoint) : checkpoint;
      [found, at] = [own || null, step];
    }
  }
  return found;
}

function stepsWithFiles(trajectory: Trajectory): number[] {
  return [...trajectory.checkpoints.keys()].sort((a, b) => a - b);
}
