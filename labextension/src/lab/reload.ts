/**
 * After a reload of the page: show runs that were not saved in the notebook in their cells again.
 *
 * Jupyter loses the output of a cell when the page is reloaded before the notebook was saved. The server knows the runs
 * of the notebook's kernel and their cells. Of a run that is still live, the cell also shows all later messages of the
 * kernel, as if the page had never been reloaded.
 */

import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import type { ICodeCellModel } from '@jupyterlab/cells';
import { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import { Kernel, KernelMessage } from '@jupyterlab/services';

import { IRunCell, IRunState, isLive, RunApi } from './run-api';
import { showsRun, writesFor } from './settle';
import { liveRunData } from './tab';

type Data = Record<string, unknown>;
/** Milliseconds in which the page that executes a cell has to show the cell's run. */
const SHOW_MS = 5000;
/** A run whose cell is known. */
type ShownRun = IRunState & { cell: IRunCell };

export const reloadPlugin: JupyterFrontEndPlugin<void> = {
  id: 'llm-sandbox-nb:reload',
  description: 'Shows runs again after a page was reloaded before the notebook was saved.',
  autoStart: true,
  requires: [INotebookTracker],
  activate: (app: JupyterFrontEnd, notebooks: INotebookTracker) => {
    const api = new RunApi(app.serviceManager.serverSettings);
    notebooks.widgetAdded.connect((_sender, panel) => void bringBack(panel, api));
  }
};

async function bringBack(panel: NotebookPanel, api: RunApi): Promise<void> {
  const { context, sessionContext } = panel;
  await Promise.all([context.ready, sessionContext.ready]);
  const kernel = sessionContext.session?.kernel;
  const runs = kernel ? await api.list().catch(() => []) : [];
  if (!kernel || panel.isDisposed) {
    return;
  }
  if (context.model.collaborative) {
    await putBackShared(panel, runs.filter(isShown));
    return;
  }
  const newest = new Map<string, ShownRun>();
  for (const run of runs) {
    if (run.kernel_id === kernel.id && isShown(run) && run.cell.client !== kernel.clientId) {
      newest.set(run.cell.id || run.id, run);
    }
  }
  const saved = Date.parse(context.contentsModel?.last_modified ?? '');
  for (const run of newest.values()) {
    const cell = findCell(panel, run);
    // A run that had ended when the notebook was saved is in the saved notebook, or a person removed it.
    const missed = isLive(run) || (run.ended !== null && Date.parse(run.ended) > saved);
    if (cell && missed) {
      const output = new RunOutput(cell, run);
      output.show();
      if (isLive(run)) {
        output.follow(kernel);
      }
    }
  }
}

/**
 * If several pages have a notebook open, the page that executes a cell writes the cell's outputs, and all pages show
 * them. If no cell shows a live run after a while, that page is gone. Then one of the other pages puts the card into
 * the cell.
 */
async function putBackShared(panel: NotebookPanel, runs: ShownRun[]): Promise<void> {
  await new Promise(done => setTimeout(done, SHOW_MS));
  if (panel.isDisposed || !writesFor(panel.context.model)) {
    return;
  }
  const { path } = panel.context;
  runs
    .filter(run => run.notebook === path && isLive(run))
    .forEach(run => {
      const cell = findCell(panel, run);
      if (cell) {
        new RunOutput(cell, run).show();
      }
    });
}

function isShown(run: IRunState): run is ShownRun {
  return run.cell !== null;
}

/** Return the cell of a run: the cell with its id, or, as ids may not last, the only cell with the run's task. */
function findCell(panel: NotebookPanel, run: ShownRun): ICodeCellModel | null {
  const cells = [...(panel.content.model?.cells ?? [])].filter((cell): cell is ICodeCellModel => cell.type === 'code');
  const task = run.task?.trim() ?? '';
  const asks = (cell: ICodeCellModel) => {
    const [magic, ...lines] = cell.sharedModel.getSource().split('\n');
    return task !== '' && magic.startsWith('%%sandbox') && lines.join('\n').trim().startsWith(task);
  };
  const same = cells.filter(asks);
  return cells.find(cell => cell.id === run.cell.id) ?? (same.length === 1 ? same[0] : null);
}

/** The output of a cell that shows a run. */
class RunOutput {
  constructor(
    private _cell: ICodeCellModel,
    private _run: ShownRun
  ) {}

  /** Replace the cell's outputs by the run, unless they show the run already. */
  show(): void {
    if (this._place() >= 0) {
      return;
    }
    // From now on, all outputs come from this execution and none from the file: trusted, as after a person executes it.
    this._cell.outputs.clear();
    this._cell.trusted = true;
    this._cell.executionCount = this._run.cell.count;
    this._add('display_data', { data: liveRunData(this._run.id, null), metadata: {} });
  }

  /** Show messages of the kernel for the cell until its execution ends. */
  follow(kernel: Kernel.IKernelConnection): void {
    const { cell } = this._run;
    this._cell.executionState = 'running';
    const take = (_kernel: unknown, message: KernelMessage.IIOPubMessage) => {
      const parent = message.parent_header as Partial<KernelMessage.IHeader>;
      if (parent.msg_id === cell.request && this._take(message)) {
        kernel.iopubMessage.disconnect(take);
        this._cell.executionCount = cell.count;
        this._cell.executionState = 'idle';
      }
    };
    kernel.iopubMessage.connect(take);
  }

  /** Show a message of the cell's execution. Return true at the end of the execution. */
  private _take(message: KernelMessage.IIOPubMessage): boolean {
    const { content } = message;
    if (KernelMessage.isStatusMsg(message)) {
      return message.content.execution_state === 'idle';
    }
    if (KernelMessage.isUpdateDisplayDataMsg(message)) {
      this._replace(message.content.data);
    } else if (KernelMessage.isClearOutputMsg(message)) {
      this._cell.outputs.clear(message.content.wait);
    } else if (KernelMessage.isDisplayDataMsg(message) || KernelMessage.isStreamMsg(message)) {
      this._add(message.header.msg_type, content);
    } else if (KernelMessage.isErrorMsg(message) || KernelMessage.isExecuteResultMsg(message)) {
      this._add(message.header.msg_type, content);
    }
    return false;
  }

  /** Replace the output that shows the run by another bundle of the run. */
  private _replace(data: Data): void {
    const place = this._place();
    if (place >= 0 && showsRun(data, this._run.id)) {
      this._cell.outputs.set(place, { output_type: 'display_data', data: data as never, metadata: {} });
    }
  }

  private _add(type: string, content: object): void {
    // Data for this session only must not be saved in the notebook.
    this._cell.outputs.add({ output_type: type, ...content, transient: undefined });
  }

  private _place(): number {
    const { outputs } = this._cell;
    for (let place = 0; place < outputs.length; place++) {
      if (showsRun(outputs.get(place).data, this._run.id)) {
        return place;
      }
    }
    return -1;
  }
}
