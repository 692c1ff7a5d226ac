/** What can be seen of one step, and done from it: its files as they were then, what differs from others, going back. */

import { renderComparison } from './compare';
import { h, plainText } from './dom';
import { IStep, Trajectory } from './fold';
import { countInWords } from './format';
import { IHost, RewindWhat } from './host';
import { OldChangesView } from './old-changes';
import { OldFilesView } from './old-files';
import { StepView } from './step';
import { IChosen } from './timeline';

export interface IHistoryActions {
  /** Bring the step into sight. */
  show(number: number): void;
  /** Say what was done, when the panel is gone because of it. */
  told(text: string): void;
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
    private _actions: IHistoryActions
  ) {
    const { trans } = _host;
    const { number, head } = _chosen;
    const title = number ? trans('Step %1', number) : trans('Before the first step');
    const close = h('button', { type: 'button', onclick: () => _actions.close(), 'aria-label': trans('Close') }, '×');
    const heading = h('h3', {}, head ? title : trans('%1 of a branch that was left', title));
    this.node = h(
      'section',
      { class: 'lsn-history', 'aria-label': trans('%1: its files, and going back', title) },
      h('div', { class: 'lsn-history-head' }, heading, close),
      this._buttons(),
      head && this._travel(),
      this._status,
      this._body
    );
    if (!head) {
      this._showStep();
    }
  }

  /** The files kept at this step: its own checkpoint, else the newest before it, since it then changed nothing. */
  get checkpoint(): string | null {
    return filesAt(this._chosen.trajectory, this._chosen.number);
  }

  private get _step(): IStep | undefined {
    return this._chosen.trajectory.steps.find(step => step.number === this._chosen.number);
  }

  private _buttons(): HTMLElement {
    const { trans } = this._host;
    const { number, head } = this._chosen;
    const { history } = this._host;
    const bar = h('div', { class: 'lsn-history-buttons', role: 'toolbar', 'aria-label': trans('Look at') });
    if (head && number) {
      bar.append(this._button(trans('Go to the step'), () => this._actions.show(number)));
    }
    if (!head) {
      const compare = () =>
        this._body.replaceChildren(renderComparison(this._chosen.trajectory, this._head, this._host));
      bar.append(
        this._button(trans('The step'), () => this._showStep()),
        this._button(trans('Compare the branches'), compare)
      );
    }
    if (history && this.checkpoint) {
      bar.append(
        this._button(trans('Files as they were'), () => this._showFiles()),
        this._button(trans('Changes'), () => this._showChanges())
      );
    } else {
      const why = history
        ? trans('The files were not kept at this step.')
        : trans('The files of a step can be read while the Jupyter server knows the run.');
      bar.append(h('span', { class: 'lsn-note' }, why));
    }
    return bar;
  }

  private _button(label: string, action: () => void): HTMLElement {
    return h('button', { type: 'button', onclick: action }, label);
  }

  private _showStep(): void {
    const step = this._step;
    if (step) {
      const view = new StepView(step, this._host);
      view.setNear(true);
      this._body.replaceChildren(view.node);
    }
  }

  private _showFiles(): void {
    this._body.replaceChildren(new OldFilesView(this._host.history!, this.checkpoint!, this._host).node);
  }

  /** Against any other step of the branch that goes on; at first against the one before. */
  private _showChanges(): void {
    const { trans } = this._host;
    const { number } = this._chosen;
    const view = new OldChangesView(this._host.history!, this._host);
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
      void view.show(from ?? this.checkpoint!, this.checkpoint!);
    };
    select.addEventListener('change', show);
    this._body.replaceChildren(h('label', { class: 'lsn-compare' }, trans('Compared with'), ' ', select), view.node);
    show();
  }

  // --- going back ---

  private _travel(): HTMLElement | null {
    const { timeTravel } = this._host;
    const { trans } = this._host;
    const { number } = this._chosen;
    if (!timeTravel) {
      return null;
    }
    const what = h(
      'select',
      { 'aria-label': trans('What goes back') },
      h('option', { value: 'both' }, trans('conversation and files')),
      h('option', { value: 'files' }, trans('files only')),
      h('option', { value: 'conversation' }, trans('conversation only'))
    );
    const told = h('span', { class: 'lsn-note', role: 'status' });
    const tell = () => void this._tellRewind(what.value as RewindWhat, told);
    what.addEventListener('change', tell);
    tell();
    const rewind = this._act(trans('Rewind to here'), trans('Going back…'), () =>
      timeTravel.rewind(number, what.value as RewindWhat)
    );
    const fork = this._act(trans('Fork here'), trans('Starting a second run…'), () => timeTravel.fork(number));
    const undo = this._head.rewinds.length
      ? this._act(trans('Undo the last rewind'), trans('Going back…'), () => timeTravel.undo())
      : null;
    fork.title = trans('A second run, with a sandbox of its own that has the files of this step');
    const bar = { class: 'lsn-history-buttons', role: 'toolbar', 'aria-label': trans('Go back') };
    return h('div', {}, h('div', bar, rewind, what, fork, undo), told);
  }

  private _act(label: string, meanwhile: string, action: () => Promise<string>): HTMLButtonElement {
    const button = h('button', { type: 'button' }, label);
    button.addEventListener('click', () => {
      button.disabled = true;
      this._status.textContent = meanwhile;
      const show = (text: string) => {
        button.disabled = false;
        if (this.node.isConnected) {
          this._status.textContent = plainText(text);
        } else {
          this._actions.told(plainText(text));
        }
      };
      action()
        .then(async text => {
          await this._host.refresh?.();
          show(text);
        })
        .catch(error => show(error instanceof Error ? error.message : String(error)));
    });
    return button;
  }

  /** Say what a rewind restores, before anything is pressed. */
  private async _tellRewind(what: RewindWhat, place: HTMLElement): Promise<void> {
    const { trans, history } = this._host;
    const { number } = this._chosen;
    const last = this._head.steps[this._head.steps.length - 1]?.number ?? 0;
    const left = last - number;
    const talk =
      what === 'files'
        ? trans('The conversation stays as it is.')
        : left === 1
          ? trans('1 step of the conversation is taken back; it stays as a branch.')
          : trans('%1 steps of the conversation are taken back; they stay as a branch.', countInWords(left));
    place.textContent = talk;
    const [now, then] = [this._head.files, this.checkpoint];
    if (what === 'conversation' || !history || !now || !then) {
      place.textContent = what === 'conversation' ? `${talk} ${trans('The files stay as they are.')}` : talk;
      return;
    }
    try {
      const { total } = await history.changes(now, then);
      const files = total === 1 ? trans('1 path changes') : trans('%1 paths change', countInWords(total));
      place.textContent = `${files}. ${talk} ${trans('Running processes end.')}`;
    } catch (error) {
      place.textContent = `${talk} ${error instanceof Error ? error.message : ''}`;
    }
  }
}

/** The checkpoint that holds the files as they were after a step. */
export function filesAt(trajectory: Trajectory, number: number): string | null {
  let found: string | null = null;
  let at = -1;
  for (const [step, { checkpoint }] of trajectory.checkpoints) {
    if (step <= number && step >= at) {
      [found, at] = [checkpoint, step];
    }
  }
  return found;
}

function stepsWithFiles(trajectory: Trajectory): number[] {
  return [...trajectory.checkpoints.keys()].sort((a, b) => a - b);
}
