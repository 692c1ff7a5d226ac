/** The files of a sandbox: look into folders, open, download, and drop files to hand them in. */

import { visibleName } from '../artifacts/names';
import { errorText, h } from '../view/dom';
import { oneLine } from '../view/one-line';
import { formatSize } from '../formatting';
import { IFile } from './api';

export interface IFilesSource {
  /** The working directory. */
  readonly root: string;
  list(path: string): Promise<IFile[]>;
  open(file: IFile): Promise<void>;
  download(file: IFile): Promise<void>;
  upload(path: string, file: File): Promise<void>;
  trans(text: string, ...args: (string | number)[]): string;
}

/** Entries shown of one folder. */
const SHOWN = 500;
/** Characters of an error, which may name a file. */
const SAID = 300;

export class FilesView {
  readonly node: HTMLElement;
  private _folder: string;
  private _place = h('code', { class: 'lsn-files-place', dir: 'auto' });
  private _up: HTMLButtonElement;
  private _list = h('ul', { class: 'lsn-files-list' });
  private _note = h('div', { class: 'lsn-panel-note', role: 'status' });
  private _picker = h('input', { type: 'file', multiple: true, hidden: true, 'aria-hidden': true, tabindex: -1 });
  private _asked = 0;

  constructor(private _source: IFilesSource) {
    const { trans, root } = this._source;
    this._folder = root;
    this._up = h('button', { type: 'button', title: trans('Folder above'), 'aria-label': trans('Folder above') }, '↑');
    this._up.onclick = () => this._enter(parent(this._folder));
    this._picker.onchange = () => void this._upload([...(this._picker.files ?? [])]);
    const pick = () => this._picker.click();
    this.node = h(
      'div',
      { class: 'lsn-files' },
      h(
        'div',
        { class: 'lsn-files-bar' },
        this._up,
        this._place,
        h('button', { type: 'button', onclick: () => void this.refresh() }, trans('Refresh')),
        h('button', { type: 'button', onclick: pick, title: trans('Or drop files here') }, trans('Upload…')),
        this._picker
      ),
      this._list,
      this._note
    );
    this._acceptDrops();
  }

  /** List the folder anew. */
  async refresh(): Promise<void> {
    const asked = ++this._asked;
    try {
      const files = await this._source.list(this._folder);
      if (asked === this._asked) {
        this._show(files);
      }
    } catch (error) {
      if (asked === this._asked) {
        this._say(error);
      }
    }
  }

  private _show(files: IFile[]): void {
    const { trans } = this._source;
    const rank = (file: IFile) => (file.kind === 'directory' ? 0 : 1);
    const sorted = [...files].sort((a, b) => rank(a) - rank(b) || a.path.localeCompare(b.path));
    this._place.textContent = visibleName(this._short(this._folder));
    this._place.title = visibleName(this._folder);
    this._up.disabled = this._folder === '/' || this._folder === '';
    this._list.replaceChildren(...sorted.slice(0, SHOWN).map(file => this._row(file)));
    const more = sorted.length - SHOWN;
    this._note.textContent =
      more > 0 ? trans('… and %1 more', more) : files.length ? '' : trans('This folder is empty.');
  }

  private _row(file: IFile): HTMLElement {
    const { trans } = this._source;
    const name = visibleName(file.path.slice(file.path.lastIndexOf('/') + 1));
    if (file.kind === 'directory') {
      const enter = () => this._enter(file.path);
      return h(
        'li',
        {},
        h('button', { class: 'lsn-file-name', type: 'button', onclick: enter, dir: 'auto' }, `${name}/`)
      );
    }
    if (file.kind !== 'file') {
      return h('li', {}, h('span', { class: 'lsn-file-name', dir: 'auto' }, name), h('span', {}, trans(file.kind)));
    }
    const open = () => void this._source.open(file).catch(error => this._say(error));
    const download = () => void this._source.download(file).catch(error => this._say(error));
    return h(
      'li',
      {},
      h('button', { class: 'lsn-file-name', type: 'button', onclick: open, dir: 'auto' }, name),
      h('span', { class: 'lsn-file-size' }, formatSize(file.size)),
      h(
        'button',
        { type: 'button', onclick: download, 'aria-label': trans('Download %1', name), title: trans('Download') },
        '⤓'
      )
    );
  }

  /** A folder as seen from the working directory's own parent. */
  private _short(folder: string): string {
    const above = parent(this._source.root).replace(/\/$/, '');
    return folder === this._source.root || folder.startsWith(`${this._source.root}/`)
      ? folder.slice(above.length + 1)
      : folder;
  }

  private _enter(folder: string): void {
    this._folder = folder;
    void this.refresh();
  }

  private _acceptDrops(): void {
    const over = (event: DragEvent, inside: boolean) => {
      if (event.dataTransfer?.types.includes('Files')) {
        event.preventDefault();
        event.stopPropagation();
        this.node.classList.toggle('lsn-dropping', inside);
      }
    };
    this.node.addEventListener('dragover', event => over(event, true));
    this.node.addEventListener('dragleave', event => over(event, false));
    this.node.addEventListener('drop', event => {
      over(event, false);
      void this._upload([...(event.dataTransfer?.files ?? [])]);
    });
  }

  private async _upload(files: File[]): Promise<void> {
    const { trans } = this._source;
    const folder = this._folder.replace(/\/$/, '');
    try {
      for (const file of files) {
        this._note.textContent = trans('Uploading %1…', visibleName(file.name));
        await this._source.upload(`${folder}/${file.name}`, file);
      }
      await this.refresh();
    } catch (error) {
      this._say(error);
    } finally {
      this._picker.value = '';
    }
  }

  private _say(error: unknown): void {
    const said = errorText(error);
    this._note.textContent = visibleName(oneLine(said, SAID));
  }
}

function parent(path: string): string {
  return path.slice(0, path.lastIndexOf('/')) || '/';
}
