/** Time travel by buttons: rewind, resume or fork a run in its kernel, as `%sandbox rewind` and similar commands do. */

import { INotebookTracker, NotebookActions, NotebookPanel } from '@jupyterlab/notebook';

import type { IForkMade, IResumeOptions, IRewindPreview, ITimeTravel, RewindWhat } from '../view/host';
import { executeMagicAnew, quoted } from './kernel';
import { IRunState, isLive, RunApi } from './run-api';
import { Trans } from '../formatting';

/** Matches the names that server and kernel give to runs. No other text may become part of a line of code. */
const NAME = /^[\w.-]{1,200}$/;

export class KernelTimeTravel implements ITimeTravel {
  constructor(
    private _runId: string,
    private _api: RunApi,
    private _notebooks: INotebookTracker | null,
    private _trans: Trans
  ) {}

  async preview(step: number, what: RewindWhat): Promise<IRewindPreview | null> {
    const run = await this._api.run(this._runId);
    if (isLive(run)) {
      return null; // The kernel is busy with the run, and nobody else uses the sandbox.
    }
    return JSON.parse(await this._execute(run, `preview ${step} ${what} --json`)) as IRewindPreview;
  }

  rewind(step: number, what: RewindWhat, others: boolean): Promise<string> {
    const line = `rewind ${step} ${what}${others ? ' --others' : ''}`;
    return this._go(line, 'rewind', { step, what, others }, this._pauses());
  }

  undo(others: boolean): Promise<string> {
    return this._go(`undo${others ? ' --others' : ''}`, 'undo', { others }, this._pauses());
  }

  async fork(step: number): Promise<IForkMade | null> {
    const made = await this._go(`fork ${step} --json`, 'fork', { step }, '');
    return made ? (JSON.parse(made) as IForkMade) : null;
  }

  async resume({ say, edit, run: other }: IResumeOptions): Promise<void> {
    const run = await this._api.run(this._runId);
    if (other !== undefined) {
      await this._inNewCell(run, `%sandbox resume --run ${checked(other)}`);
      return;
    }
    const words = [
      'resume --in-place',
      say === undefined ? '' : `--say ${quoted(say)}`,
      edit === undefined ? '' : `--edit ${quoted(JSON.stringify(edit))}`
    ];
    await this._execute(run, words.filter(word => word).join(' '));
  }

  /** If the run is live, its kernel is busy: send `action` to the run, and return `told`. Else execute `line`. */
  private async _go(line: string, action: string, more: Record<string, unknown>, told: string): Promise<string> {
    const run = await this._api.run(this._runId);
    if (!isLive(run)) {
      return this._execute(run, line);
    }
    await this._api.control(this._runId, action, more);
    return told;
  }

  private _pauses(): string {
    return this._trans('Done. The run is paused here.');
  }

  /** Execute a subcommand in the kernel of the run's notebook, and return its output. Rejects with the error. */
  private async _execute(run: IRunState, line: string): Promise<string> {
    const { kernel } = this._notebook(run).sessionContext.session!;
    return executeMagicAnew(kernel!, `${line} --run ${checked(this._runId)}`);
  }

  /** Execute a line in a new cell below the active cell, so that the notebook keeps the card. */
  private async _inNewCell(run: IRunState, code: string): Promise<void> {
    const { content, sessionContext } = this._notebook(run);
    NotebookActions.insertBelow(content);
    NotebookActions.changeCellType(content, 'code');
    content.activeCell?.model.sharedModel.setSource(code);
    await NotebookActions.run(content, sessionContext);
  }

  /** Return the open notebook of the run's kernel, or of the same path: a new kernel reads the run from disk. */
  private _notebook(run: IRunState): NotebookPanel {
    const kernelOf = (one: NotebookPanel) => one.sessionContext.session?.kernel;
    const widget =
      this._notebooks?.find(one => kernelOf(one)?.id === run.kernel_id) ??
      this._notebooks?.find(one => one.context.path === run.notebook && !!kernelOf(one));
    if (!widget) {
      throw new Error(
        run.notebook
          ? this._trans('The kernel of this run has ended: open %1 and start a kernel, then try again.', run.notebook)
          : this._trans('No open notebook has the kernel of this run: run %sandbox load %1 in a notebook.', this._runId)
      );
    }
    return widget;
  }
}

function checked(name: string): string {
  if (!NAME.test(name)) {
    throw new Error(name);
  }
  return name;
}
