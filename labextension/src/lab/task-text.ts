/** Cells whose text is a task for a model: their editor colours it as text, not as Python. */

import type { ICellModel } from '@jupyterlab/cells';
import { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';

const TASK = /^\s*%%sandbox\b/;
const PLAIN = 'text/plain';

/** Keep the editors of tasks plain in all notebooks, including notebooks that are opened later. */
export function plainTasks(notebooks: INotebookTracker): void {
  notebooks.forEach(panel => void watch(panel));
  notebooks.widgetAdded.connect((_sender, panel) => void watch(panel));
}

async function watch(panel: NotebookPanel): Promise<void> {
  await panel.context.ready;
  const seen = new WeakSet<ICellModel>();
  const all = () => {
    for (const cell of panel.content.model?.cells ?? []) {
      if (cell.type === 'code' && !seen.has(cell)) {
        seen.add(cell);
        const colour = () => colourCell(cell, panel);
        cell.contentChanged.connect(colour);
        cell.mimeTypeChanged.connect(colour); // the notebook sets it when it learns the language of its kernel
        colour();
      }
    }
  };
  all();
  panel.content.model?.cells.changed.connect(all);
}

function colourCell(cell: ICellModel, panel: NotebookPanel): void {
  const language = panel.content.codeMimetype;
  const wanted = TASK.test(cell.sharedModel.getSource()) ? PLAIN : language;
  if (cell.mimeType !== wanted && (wanted === PLAIN || cell.mimeType === PLAIN)) {
    cell.mimeType = wanted;
  }
}
