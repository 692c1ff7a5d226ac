/** The files of the sandbox as they were at a checkpoint: folders, content, downloads. */

import { renderArtifact } from '../artifacts';
import { visibleName } from '../artifacts/names';
import { errorText, h } from './dom';
import { FolderList, nameButton, sortedEntries } from './folder-list';
import { formatSize } from '../formatting';
import { IHistory, IHost, IOldFile, IOldFolder } from './host';
import { Newest } from './newest';

const LARGEST_FILE_BYTES = 32 * 1024 * 1024;

export class CheckpointFilesView {
  readonly node: HTMLElement;
  private _list: FolderList;
  private _note = h('div', { class: 'lsn-note', role: 'status' });
  private _file = h('div', { class: 'lsn-old-file' });
  private _newest = new Newest();

  constructor(
    private _history: IHistory,
    private _checkpoint: string,
    private _host: IHost
  ) {
    this._list = new FolderList('lsn-old-files', _host.trans, folder => this._enter(folder));
    const bar = h('div', { class: 'lsn-files-bar' }, this._list.up, this._list.place);
    this.node = h('div', { class: 'lsn-old' }, bar, this._list.node, this._note, this._file);
    this._enter('');
  }

  private _enter(folder: string): void {
    this._ask(this._history.files(this._checkpoint, folder), found => this._show(found));
  }

  private _ask<T>(answer: Promise<T>, show: (value: T) => void): void {
    this._note.textContent = this._host.trans('…');
    void this._newest.ask(answer, show, error => (this._note.textContent = errorText(error)));
  }

  private _show(found: IOldFolder): void {
    const { trans } = this._host;
    this._list.show(found.path, sortedEntries(found.files), (file, name) => this._parts(file, name));
    this._file.replaceChildren();
    const more = found.total - found.files.length;
    this._note.textContent = found.base
      ? trans('This folder was as in the sandbox’s image; the history does not list it.')
      : more > 0
        ? trans('… and %1 more', more)
        : found.files.length
          ? ''
          : trans('This folder was empty.');
  }

  private _parts(file: IOldFile, name: string): HTMLElement[] {
    const { trans } = this._host;
    const note = (text: string) => h('span', { class: 'lsn-note' }, text);
    if (file.kind !== 'file') {
      const target = file.target ? ` → ${visibleName(file.target)}` : '';
      return [h('span', { dir: 'auto' }, name, target), note(trans(file.kind))];
    }
    return [
      nameButton(name, () => this._open(file)),
      note(file.base ? trans('as in the image') : formatSize(file.size))
    ];
  }

  private _open(file: IOldFile): void {
    this._file.replaceChildren();
    if (file.size > LARGEST_FILE_BYTES) {
      const tooLarge = this._host.trans('%1 is too large to be shown here.', visibleName(file.path));
      this._ask(Promise.resolve(), () => (this._note.textContent = tooLarge));
      return;
    }
    this._ask(this._history.read(this._checkpoint, file.path), data => {
      this._note.textContent = '';
      this._file.replaceChildren(this._render(file, data));
    });
  }

  /** Render a file like the files that a run keeps, because its content comes from the model too. */
  private _render(file: IOldFile, data: Uint8Array): HTMLElement {
    const mime = isText(data) ? 'text/plain' : 'application/octet-stream';
    const artifact = { id: `${this._checkpoint}:${file.path}`, path: file.path, mime, size: file.size, sha256: '' };
    const host = Object.create(this._host, { artifact: { value: async () => ({ mime, data }) } }) as IHost;
    return renderArtifact(artifact, host);
  }
}

/** Return true for bytes that begin with UTF-8 text. */
function isText(data: Uint8Array): boolean {
  const start = data.subarray(0, 64 * 1024);
  try {
    new TextDecoder('utf-8', { fatal: true }).decode(start, { stream: true });
  } catch {
    return false;
  }
  return !start.includes(0);
}
