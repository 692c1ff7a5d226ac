/** The runs that a notebook left in the folder beside it, newest first. */

import { PathExt } from '@jupyterlab/coreutils';
import { Contents } from '@jupyterlab/services';

import { h } from '../view/dom';

/** The folder for records beside a notebook, as `%config SandboxMagics.output_dir` has it unless it is set. */
const RECORDS = 'sandbox-runs';
const SHOWN = 20;

export interface IRun {
  name: string;
  /** Path of its journal. */
  journal: string;
}

/** Where a notebook's runs are; the name is made as the kernel makes it. */
export function runsFolder(notebook: string): string {
  const stem = PathExt.basename(notebook, PathExt.extname(notebook));
  const name = stem.replace(/[^\p{L}\p{N}_.-]+/gu, '-').replace(/^[-.]+|[-.]+$/g, '');
  return PathExt.join(PathExt.dirname(notebook), RECORDS, name.slice(0, 80) || 'notebook');
}

/** The runs of a notebook; none when it has no folder for them. */
export async function listRuns(contents: Contents.IManager, notebook: string): Promise<IRun[]> {
  let found: Contents.IModel[] = [{ path: PathExt.dirname(notebook) } as Contents.IModel];
  const name = PathExt.basename(runsFolder(notebook));
  for (const folder of [RECORDS, name]) {
    const parent = await entries(contents, found[0].path);
    found = parent.filter(one => one.type === 'directory' && one.name === folder);
    if (!found.length) {
      return [];
    }
  }
  return (await entries(contents, found[0].path))
    .filter(one => one.type === 'directory')
    .sort((a, b) => b.name.localeCompare(a.name))
    .map(one => ({ name: one.name, journal: PathExt.join(one.path, 'journal.jsonl') }));
}

async function entries(contents: Contents.IManager, folder: string): Promise<Contents.IModel[]> {
  return (await contents.get(folder)).content as Contents.IModel[];
}

export class RunsView {
  readonly node: HTMLElement;
  private _list = h('ul', { class: 'lsn-runs' });
  private _note = h('div', { class: 'lsn-panel-note' });
  private _shown = '';

  constructor(
    private _contents: Contents.IManager,
    private _open: (journal: string) => void,
    private _trans: (text: string, ...args: (string | number)[]) => string
  ) {
    const title = _trans('Runs of this notebook');
    this.node = h(
      'section',
      { class: 'lsn-panel-section', 'aria-label': title },
      h('header', {}, h('h2', {}, title)),
      this._list,
      this._note
    );
  }

  async show(notebook: string | null): Promise<void> {
    const runs = notebook ? await listRuns(this._contents, notebook).catch(() => []) : [];
    const shown = JSON.stringify([notebook, runs]);
    this.node.hidden = !notebook;
    if (shown === this._shown) {
      return;
    }
    this._shown = shown;
    const open = (run: IRun) => () => this._open(run.journal);
    this._list.replaceChildren(
      ...runs
        .slice(0, SHOWN)
        .map(run => h('li', {}, h('button', { type: 'button', class: 'lsn-file-name', onclick: open(run) }, run.name)))
    );
    const more = runs.length - SHOWN;
    const none = this._trans('None yet.');
    this._note.textContent = more > 0 ? this._trans('… and %1 earlier', more) : runs.length ? '' : none;
  }
}
