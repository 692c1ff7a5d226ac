/** The files of a sandbox: folders, opening, downloads, and uploads by dropping. */

import { visibleName } from '../artifacts/names';
import { errorText, h, makeButton } from '../view/dom';
import { FolderList, nameButton, parentOf, sortedEntries } from '../view/folder-list';
import { Newest } from '../view/newest';
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

const SHOWN_ENTRIES = 500;
/** Maximum shown characters of an error, which may contain a long file name. */
const ERROR_CHARACTERS = 300;

export class FilesView {
  readonly node: HTMLElement;
  private _folder: string;
  private _list: FolderList;
  private _note = h('div', { class: 'lsn-panel-note', role: 'status' });
  private _picker = h('input', { type: 'file', multiple: true, hidden: true, 'aria-hidden': true, tabindex: -1 });
  private _newest = new Newest();

  constructor(private _source: IFilesSource) {
    const { trans, root } = this._source;
    this._folder = root;
    this._list = new FolderList('lsn-files-list', trans, folder => void this.refresh(folder));
    this._picker.onchange = () => void this._upload([...(this._picker.files ?? [])]);
    const bar = h(
      'div',
      { class: 'lsn-files-bar' },
      this._list.up,
      this._list.place,
      makeButton(trans('Refresh'), () => void this.refresh()),
      makeButton(trans('Upload…'), () => this._picker.click(), { title: trans('Or drop files here') }),
      this._picker
    );
    this.node = h('div', { class: 'lsn-files' }, bar, this._list.node, this._note);
    this._acceptDrops();
  }

  /** List the shown folder again, or list another folder. */
  refresh(folder = this._folder): Promise<void> {
    return this._newest.ask(
      this._source.list(folder),
      files => this._show(folder, files),
      error => this._showError(error)
    );
  }

  /** Show a folder that was listed. Dropped files go into the shown folder, so never into one that cannot be listed. */
  private _show(folder: string, files: IFile[]): void {
    const { trans } = this._source;
    this._folder = folder;
    const shown = sortedEntries(files).slice(0, SHOWN_ENTRIES);
    this._list.show(this._folder, shown, (file, name) => this._parts(file, name));
    this._list.place.textContent = visibleName(this._short(this._folder));
    this._list.place.title = visibleName(this._folder);
    const more = files.length - shown.length;
    this._note.textContent =
      more > 0 ? trans('… and %1 more', more) : files.length ? '' : trans('This folder is empty.');
  }

  private _parts(file: IFile, name: string): HTMLElement[] {
    const { trans, open, download } = this._source;
    if (file.kind !== 'file') {
      return [h('span', { class: 'lsn-file-name', dir: 'auto' }, name), h('span', {}, trans(file.kind))];
    }
    const attempt = (action: (file: IFile) => Promise<void>) => () =>
      void action(file).catch(error => this._showError(error));
    return [
      nameButton(name, attempt(open)),
      h('span', { class: 'lsn-file-size' }, formatSize(file.size)),
      makeButton('⤓', attempt(download), { 'aria-label': trans('Download %1', name), title: trans('Download') })
    ];
  }

  /** Return a folder as seen from the parent of the working directory. */
  private _short(folder: string): string {
    const { root } = this._source;
    const inRoot = folder === root || folder.startsWith(`${root}/`);
    return inRoot ? folder.slice(parentOf(root).replace(/\/$/, '').length + 1) : folder;
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
      this._showError(error);
    } finally {
      this._picker.value = '';
    }
  }

  private _showError(error: unknown): void {
    this._note.textContent = visibleName(oneLine(errorText(error), ERROR_CHARACTERS));
  }
}
