/**
 * Puts the final card of a run into the notebook, in place of the card that was saved while the run was live.
 *
 * Normally the kernel does this at the end of a run. It cannot if the output was missing at that moment: the page was closed,
 * the cell was deleted and restored, or the server or the kernel ended before.
 */

import type { ICodeCellModel } from '@jupyterlab/cells';
import type { DocumentRegistry } from '@jupyterlab/docregistry';
import type { IOutput } from '@jupyterlab/nbformat';
import { INotebookTracker } from '@jupyterlab/notebook';

import { TRAJECTORY_MIME } from '../embedded';
import { RunApi } from './run-api';

/** Return true if this page may change the notebook. Of all pages that share a notebook, exactly one may change it. */
export function writesFor(document: DocumentRegistry.IModel): boolean {
  if (!document.collaborative) {
    return true;
  }
  const { awareness } = document.sharedModel as unknown as { awareness?: IPresence };
  return !awareness || awareness.clientID === Math.min(awareness.clientID, ...awareness.getStates().keys());
}

/** The pages that have the notebook open. */
interface IPresence {
  readonly clientID: number;
  getStates(): Map<number, unknown>;
}

/** True for an output of this run. */
export function showsRun(output: Readonly<Record<string, unknown>>, runId: string): boolean {
  return (output[TRAJECTORY_MIME] as { run_id?: unknown } | undefined)?.run_id === runId;
}

/**
 * Make the card of the run in `place` final, unless it is final. If `resumed` is true, replace a final card too,
 * because it may show an earlier end of the run. Rejects if the server has no record of the run.
 */
export async function settle(
  place: HTMLElement,
  runId: string,
  notebooks: INotebookTracker | null,
  api: RunApi,
  resumed = false
): Promise<void> {
  const panel = notebooks?.find(one => one.node.contains(place));
  const cell = panel?.content.widgets.find(one => one.node.contains(place))?.model;
  if (!panel || cell?.type !== 'code' || !writesFor(panel.context.model)) {
    return;
  }
  const { outputs } = cell as ICodeCellModel;
  const open = () =>
    Array.from({ length: outputs.length }, (_, at) => at).filter(at => {
      const { data } = outputs.get(at);
      return showsRun(data, runId) && (resumed || 'live' in (data[TRAJECTORY_MIME] as object));
    });
  if (open().length) {
    const card = await api.card(runId, panel.context.path);
    for (const at of open()) {
      outputs.set(at, { output_type: 'display_data', ...card } as IOutput);
    }
  }
}
