/** A new `%%sandbox` cell, with the options that the settings ask for. */

import { Notebook, NotebookActions } from '@jupyterlab/notebook';

export interface ICellSettings {
  model: string;
  isolation: string;
  image: string;
  steps: number | null;
  budget: number | null;
  time: string;
}

const LOAD = '%load_ext llm_sandbox_nb';

/** Return the first line of a cell. Settings without a value are left out, so that the kernel's defaults apply. */
export function firstLine(settings: Partial<ICellSettings>): string {
  const options: [string, string | number | null | undefined][] = [
    ['-m', settings.model],
    ['--isolation', settings.isolation],
    ['--image', settings.image],
    ['--steps', settings.steps],
    ['--budget', settings.budget],
    ['--time', settings.time]
  ];
  const given = options.filter(([, value]) => value !== undefined && value !== null && value !== '');
  return ['%%sandbox', ...given.map(([name, value]) => `${name} ${quoted(String(value))}`)].join(' ');
}

/** Quote a value as one word of the magic's line. */
function quoted(value: string): string {
  return /^[\w@%+=:,./-]+$/.test(value) ? value : `'${value.replace(/[\r\n]+/g, ' ').replace(/'/g, `'"'"'`)}'`;
}

/** Insert a task cell below the active cell. If no cell loads the extension, insert one that does before the task. */
export async function insertCell(notebook: Notebook, settings: Partial<ICellSettings>, task: string): Promise<void> {
  if (!loads(notebook)) {
    insert(notebook, LOAD);
  }
  insert(notebook, `${firstLine(settings)}\n${task}`);
  notebook.mode = 'edit';
  const cell = notebook.activeCell;
  await cell?.ready;
  // The editor shows the new text after its next update. A selection that was made before would be lost.
  await new Promise(done => requestAnimationFrame(done));
  cell?.editor?.setSelection({ start: { line: 1, column: 0 }, end: { line: 1, column: task.length } });
  cell?.editor?.focus();
}

/** Insert a cell that executes a subcommand of `%sandbox` below the active cell, and make the new cell active. */
export function insertLine(notebook: Notebook, line: string): void {
  insert(notebook, loads(notebook) ? `%sandbox ${line}` : `${LOAD}\n%sandbox ${line}`);
  notebook.mode = 'command';
}

/** Return true if a cell loads the extension. */
function loads(notebook: Notebook): boolean {
  return [...(notebook.model?.cells ?? [])].some(cell => cell.sharedModel.getSource().includes(LOAD));
}

function insert(notebook: Notebook, source: string): void {
  NotebookActions.insertBelow(notebook);
  NotebookActions.changeCellType(notebook, 'code');
  notebook.activeCell?.model.sharedModel.setSource(source);
}
