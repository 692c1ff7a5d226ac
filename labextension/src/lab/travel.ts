/** Going back in time with the kernel that did the run: what `%sandbox rewind` and its like do, by a button. */

import { INotebookTracker } from '@jupyterlab/notebook';
import { Kernel, KernelMessage } from '@jupyterlab/services';

import type { ITimeTravel, RewindWhat } from '../view/host';
import { IRunState, RunApi } from './run-api';

type Trans = (text: string, ...args: (string | number)[]) => string;

export class KernelTravel implements ITimeTravel {
  constructor(
    private _runId: string,
    private _api: RunApi,
    private _notebooks: INotebookTracker | null,
    private _trans: Trans
  ) {}

  rewind(step: number, what: RewindWhat): Promise<string> {
    return this._go(`rewind ${step} ${what}`, 'rewind', { step, what }, this._halts());
  }

  undo(): Promise<string> {
    return this._go('undo', 'undo', {}, this._halts());
  }

  fork(step: number): Promise<string> {
    const told = this._trans(
      'Forked. The new run is named below the steps: load it in a cell, and go on with it there.'
    );
    return this._go(`fork ${step}`, 'fork', { step }, told);
  }

  /** By the run itself while it goes on, which keeps its kernel busy; else in the kernel. */
  private async _go(command: string, action: string, more: Record<string, unknown>, told: string): Promise<string> {
    const run = await this._api.run(this._runId);
    if (!goesOn(run)) {
      return this._execute(run, command);
    }
    await this._api.control(this._runId, action, more);
    return told;
  }

  private _halts(): string {
    return this._trans('Done. The run halts here until it is told to go on.');
  }

  /** Run a subcommand in the kernel of the run's notebook; what it printed. Rejects with what went wrong. */
  private async _execute(run: IRunState, command: string): Promise<string> {
    // The id was made by the server's own rule: letters, digits, `-` and `_`.
    return execute(this._kernel(run), `%sandbox ${command} --run ${this._runId}`);
  }

  private _kernel(run: IRunState): Kernel.IKernelConnection {
    const widget = this._notebooks?.find(one => one.sessionContext.session?.kernel?.id === run.kernel_id);
    const kernel = widget?.sessionContext.session?.kernel;
    if (!kernel) {
      throw new Error(
        this._trans('The notebook of this run is not open, or its kernel was restarted: load the run with Run.load.')
      );
    }
    return kernel;
  }
}

function goesOn(run: IRunState): boolean {
  return run.state === 'live' || run.state === 'away';
}

/** Run code without a cell; what it printed. Its displays go where they belong. */
async function execute(kernel: Kernel.IKernelConnection, code: string): Promise<string> {
  const future = kernel.requestExecute({ code, store_history: false, stop_on_error: false, allow_stdin: false });
  let printed = '';
  let problem = '';
  future.onIOPub = message => {
    if (KernelMessage.isStreamMsg(message)) {
      printed += message.content.text;
    } else if (KernelMessage.isErrorMsg(message)) {
      problem = message.content.evalue || message.content.ename;
    }
  };
  const reply = await future.done;
  if (reply.content.status !== 'ok') {
    throw new Error(problem || printed || reply.content.status);
  }
  return printed.trim();
}
