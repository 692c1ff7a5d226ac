/** The differences between the files of two steps: a list of paths, and the diff of each when it is opened. */

import { visibleName } from '../artifacts/names';
import { renderDiff } from './diff';
import { errorText, h, plainText } from './dom';
import { formatSize } from '../formatting';
import { IFileChange, IFileChanges, IHistory, IHost } from './host';
import { Newest } from './newest';

export class CheckpointChangesView {
  readonly node: HTMLElement;
  private _list = h('div', { class: 'lsn-changes' });
  private _note = h('div', { class: 'lsn-note', role: 'status' });
  private _newest = new Newest();

  constructor(
    private _history: IHistory,
    private _host: IHost
  ) {
    this.node = h('div', {}, this._note, this._list);
  }

  /** Show the changes from one checkpoint to another. */
  show(from: string, to: string): void {
    this._list.replaceChildren();
    this._note.textContent = this._host.trans('…');
    void this._newest.ask(
      this._history.changes(from, to),
      found => this._draw(found, from, to),
      error => (this._note.textContent = errorText(error))
    );
  }

  private _draw(found: IFileChanges, from: string, to: string): void {
    const { trans } = this._host;
    const more = found.total - found.changes.length;
    const count = found.total === 1 ? trans('1 path differs.') : trans('%1 paths differ.', found.total);
    const notes = [found.total ? count : trans('No file differs.'), found.incomplete && plainText(found.incomplete)];
    this._note.textContent = notes.filter(note => note).join(' ');
    this._list.replaceChildren(...found.changes.map(change => this._row(change, from, to)));
    if (more > 0) {
      this._list.append(h('div', { class: 'lsn-note' }, trans('… and %1 more', more)));
    }
  }

  private _row(change: IFileChange, from: string, to: string): HTMLElement {
    const kinds: Record<string, string> = {
      added: this._host.trans('added'),
      modified: this._host.trans('modified'),
      deleted: this._host.trans('deleted')
    };
    const kind = Object.hasOwn(kinds, change.kind) ? kinds[change.kind] : '';
    const name = h('code', { dir: 'auto' }, visibleName(change.path));
    const summary = h('summary', {}, `${kind} `, name, ` (${formatSize(change.size)})`);
    const details = h('details', { class: 'lsn-change', 'data-kind': change.kind }, summary);
    details.addEventListener('toggle', () => void this._diff(details, change, from, to), { once: true });
    return details;
  }

  private async _diff(place: HTMLElement, change: IFileChange, from: string, to: string): Promise<void> {
    const note = h('div', { class: 'lsn-note' }, this._host.trans('…'));
    place.append(note);
    try {
      const found = await this._history.diff(from, to, change.path);
      note.textContent = plainText(found.note);
      if (found.diff) {
        place.append(renderDiff(found.diff, this._host));
      }
    } catch (error) {
      note.textContent = errorText(error);
    }
  }
}
