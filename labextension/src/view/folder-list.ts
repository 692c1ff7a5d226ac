/** The entries of one folder: folders first, each a button that leads into it, and a button to the folder above. */

import { visibleName } from '../artifacts/names';
import { h, makeButton } from './dom';
import { IFileEntry, IHost } from './host';

export class FolderList {
  /** The path of the folder. */
  readonly place = h('code', { class: 'lsn-files-place', dir: 'auto' });
  readonly up: HTMLButtonElement;
  readonly node: HTMLElement;
  private _folder = '';

  constructor(
    css: string,
    trans: IHost['trans'],
    private _enter: (folder: string) => void
  ) {
    const label = trans('Folder above');
    this.up = makeButton('↑', () => _enter(parentOf(this._folder)), { title: label, 'aria-label': label });
    this.node = h('ul', { class: css });
  }

  /** Show a folder; `partsOf` gives the row of an entry that is not a folder. */
  show<F extends IFileEntry>(
    folder: string,
    files: readonly F[],
    partsOf: (file: F, name: string) => HTMLElement[]
  ): void {
    this._folder = folder;
    this.place.textContent = visibleName(folder);
    this.up.disabled = folder === '/' || folder === '';
    this.node.replaceChildren(
      ...files.map(file => {
        const name = visibleName(file.path.slice(file.path.lastIndexOf('/') + 1));
        const isFolder = file.kind === 'directory';
        return h(
          'li',
          {},
          ...(isFolder ? [nameButton(`${name}/`, () => this._enter(file.path))] : partsOf(file, name))
        );
      })
    );
  }
}

export function nameButton(name: string, open: () => void): HTMLButtonElement {
  return makeButton(name, open, { class: 'lsn-file-name', dir: 'auto' });
}

/** Return the entries in the order in which they are listed. */
export function sortedEntries<F extends IFileEntry>(files: readonly F[]): F[] {
  const rank = (file: F) => (file.kind === 'directory' ? 0 : 1);
  return [...files].sort((a, b) => rank(a) - rank(b) || a.path.localeCompare(b.path));
}

export function parentOf(path: string): string {
  return path.slice(0, path.lastIndexOf('/')) || '/';
}
