/** The files of the sandbox as they were at a checkpoint: look into folders, read, download. */

import { renderArtifact } from '../artifacts';
import { visibleName } from '../artifacts/names';
import { errorText, h } from './dom';
import { formatSize } from '../formatting';
import { IHistory, IHost, IOldFile, IOldFolder } from './host';

/** Larger files are not loaded to be shown. */
const LARGEST = 32 * 1024 * 1024;

export class CheckpointFilesView {
  readonly node: HTMLElement;
  private _place = h('code', { class: 'lsn-files-place', dir: 'auto' });
  private _up: HTMLButtonElement;
  private _list = h('ul', { class: 'lsn-old-files' });
  private _note = h('div', { class: 'lsn-note', role: 'status' });
  private _file = h('div', { class: 'lsn-old-file' });
  private _folder = '';
  private _asked = 0;

  constructor(
    private _history: IHistory,
    private _checkpoint: string,
    private _host: IHost
  ) {
    const { trans } = _host;
    this._up = h('button', { type: 'button', title: trans('Folder above'), 'aria-label': trans('Folder above') }, '↑');
    this._up.onclick = () => void this._enter(parent(this._folder));
    const bar = h('div', { class: 'lsn-files-bar' }, this._up, this._place);
    this.node = h('div', { class: 'lsn-old' }, bar, this._list, this._note, this._file);
    void this._enter('');
  }

  private async _enter(folder: string): Promise<void> {
    const asked = ++this._asked;
    this._note.textContent = this._host.trans('…');
    try {
      const found = await this._history.files(this._checkpoint, folder);
      if (asked === this._asked) {
        this._show(found);
      }
    } catch (error) {
      if (asked === this._asked) {
        this._note.textContent = errorText(error);
      }
    }
  }

  private _show(found: IOldFolder): void {
    const { trans } = this._host;
    this._folder = found.path;
    this._place.textContent = visibleName(found.path);
    this._up.disabled = found.path === '/';
    const rank = (file: IOldFile) => (file.kind === 'directory' ? 0 : 1);
    const sorted = [...found.files].sort((a, b) => rank(a) - rank(b) || a.path.localeCompare(b.path));
    this._list.replaceChildren(...sorted.map(file => this._row(file)));
    this._file.replaceChildren();
    const more = found.total - sorted.length;
    this._note.textContent = found.base
      ? trans('This folder was as in the sandbox’s image; the history does not list it.')
      : more > 0
        ? trans('… and %1 more', more)
        : sorted.length
          ? ''
          : trans('This folder was empty.');
  }

  private _row(file: IOldFile): HTMLElement {
    const { trans } = this._host;
    const name = visibleName(file.path.slice(file.path.lastIndexOf('/') + 1));
    if (file.kind === 'directory') {
      const enter = () => void this._enter(file.path);
      return h(
        'li',
        {},
        h('button', { class: 'lsn-file-name', type: 'button', onclick: enter, dir: 'auto' }, `${name}/`)
      );
    }
    if (file.kind !== 'file') {
      const target = file.target ? ` → ${visibleName(file.target)}` : '';
      return h('li', {}, h('span', { dir: 'auto' }, name, target), h('span', { class: 'lsn-note' }, trans(file.kind)));
    }
    const open = () => void this._open(file);
    return h(
      'li',
      {},
      h('button', { class: 'lsn-file-name', type: 'button', onclick: open, dir: 'auto' }, name),
      h('span', { class: 'lsn-note' }, file.base ? trans('as in the image') : formatSize(file.size))
    );
  }

  private async _open(file: IOldFile): Promise<void> {
    const { trans } = this._host;
    const asked = ++this._asked;
    this._note.textContent = trans('…');
    let shown: HTMLElement | string = '';
    let note = '';
    if (file.size > LARGEST) {
      note = trans('%1 is too large to be shown here.', visibleName(file.path));
    } else {
      try {
        shown = this._render(file, await this._history.read(this._checkpoint, file.path));
      } catch (error) {
        note = errorText(error);
      }
    }
    if (asked === this._asked) {
      this._note.textContent = note;
      this._file.replaceChildren(shown);
    }
  }

  /** As the files that a run keeps are shown: what is in them is the model's. */
  private _render(file: IOldFile, data: Uint8Array): HTMLElement {
    const mime = isText(data) ? 'text/plain' : 'application/octet-stream';
    const artifact = { id: `${this._checkpoint}:${file.path}`, path: file.path, mime, size: file.size, sha256: '' };
    const host = Object.create(this._host, { artifact: { value: async () => ({ mime, data }) } }) as IHost;
    return renderArtifact(artifact, host);
  }
}

/** Whether bytes are text, as far as their beginning tells. */
function isText(data: Uint8Array): boolean {
  const start = data.subarray(0, 64 * 1024);
  try {
    new TextDecoder('utf-8', { fatal: true }).decode(start, { stream: true });
  } catch {
    return false;
  }
  return !start.includes(0);
}

function parent(path: string): string {
  return path.slice(0, path.lastIndexOf('/')) || '/';
}
