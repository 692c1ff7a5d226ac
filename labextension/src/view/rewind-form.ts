/** The question before a rewind. It shows what the rewind would undo: changes of this run, and changes of others. */

import { visibleName } from '../artifacts/names';
import { errorText, h, makeButton, plainText, setText } from './dom';
import { Trajectory } from '../trajectory/fold';
import { IHost, IRewindPaths, IRewindPreview, ITimeTravel, RewindWhat } from './host';
import { Newest } from './newest';

/** Maximum number of listed paths. */
const PATHS_MOST = 20;

export interface IRewindPlace {
  /** The run as it is now. */
  head: Trajectory;
  /** Number of the step to whose end the run would be rewound; 0 means before the first step. */
  number: number;
  /** Id of the checkpoint with the files of that step; null if no files are kept. */
  checkpoint: string | null;
}

export class RewindForm {
  readonly node: HTMLElement;
  private _what: HTMLSelectElement;
  private _told = h('p', { role: 'status' });
  private _others = h('div', { class: 'lsn-others' });
  private _rewind: HTMLButtonElement;
  private _newest = new Newest();
  private _undoesOthers = false;

  constructor(
    private _place: IRewindPlace,
    private _travel: ITimeTravel,
    private _host: IHost,
    private _done: (error: string) => void,
    cancel: () => void
  ) {
    const { trans } = _host;
    const question = _place.number
      ? trans('Rewind to the end of step %1?', _place.number)
      : trans('Rewind to the start?');
    this._what = h(
      'select',
      { 'aria-label': trans('What to rewind'), onchange: () => this._ask() },
      h('option', { value: 'both' }, trans('conversation and files')),
      h('option', { value: 'files' }, trans('files only')),
      h('option', { value: 'conversation' }, trans('conversation only'))
    );
    this._rewind = makeButton(trans('Rewind'), () => void this._act(), { class: 'lsn-primary' });
    this.node = h(
      'div',
      { class: 'lsn-banner', 'data-kind': 'back', role: 'group', 'aria-label': question },
      h('div', { class: 'lsn-banner-text' }, h('b', {}, question), this._told, this._others),
      this._what,
      this._rewind,
      makeButton(trans('Cancel'), cancel)
    );
    this._ask();
  }

  get what(): RewindWhat {
    return this._what.value as RewindWhat;
  }

  private _ask(): void {
    this._rewind.disabled = true;
    this._others.replaceChildren();
    setText(this._told, this._host.trans('Looking at the files…'));
    const show = (found: IRewindPreview | null) => {
      this._show(found);
      this._rewind.disabled = false;
    };
    void this._newest.ask(this._preview(), show, error => setText(this._told, errorText(error)));
  }

  /** Ask the kernel, which also knows the changes of others. If it cannot answer, compare the run's own checkpoints. */
  private async _preview(): Promise<IRewindPreview | null> {
    const { head, number, checkpoint } = this._place;
    const known = await this._travel.preview?.(number, this.what);
    if (known) {
      return known;
    }
    const { history } = this._host;
    if (this.what === 'conversation' || !history || !head.files || !checkpoint) {
      return null;
    }
    const found = await history.changes(head.files, checkpoint);
    return {
      own: { total: found.total, paths: found.changes },
      others: { total: 0, paths: [] },
      by: '',
      incomplete: found.incomplete
    };
  }

  private _show(found: IRewindPreview | null): void {
    const { trans } = this._host;
    const { steps } = this._place.head;
    const last = steps.length ? steps[steps.length - 1].number : 0;
    const left = this.what === 'files' ? 0 : last - this._place.number;
    const files = this.what === 'conversation' ? null : (found?.own.total ?? null);
    const undoes = left === 1 ? trans('Undoes 1 step') : left > 1 ? trans('Undoes %1 steps', left) : '';
    const sentence =
      files === null
        ? this.what === 'conversation'
          ? trans('%1; the files stay as they are.', undoes || trans('Undoes nothing'))
          : `${undoes || trans('Restores the files')}.`
        : undoes
          ? `${undoes}, ${restores(files, trans, false)}.`
          : `${restores(files, trans, true)}.`;
    const ends = this.what === 'conversation' ? '' : trans('Running programs end.');
    const calls = found?.outside?.length ? plainText(found.outside.join(', ')) : '';
    const outside = calls && trans('Not undone, because outside the sandbox: %1.', calls);
    const parts = [sentence, trans('You can undo this.'), ends, plainText(found?.incomplete ?? ''), outside];
    setText(this._told, parts.filter(part => part).join(' '));
    this._showOthers(found);
  }

  private _showOthers(found: IRewindPreview | null): void {
    const { trans } = this._host;
    this._undoesOthers = !!found?.others.total;
    this._rewind.textContent = this._undoesOthers ? trans('Rewind, and undo these too') : trans('Rewind');
    if (!found?.others.total) {
      this._others.replaceChildren();
      return;
    }
    const { total } = found.others;
    const changed =
      total === 1
        ? trans('1 more file was changed since %1. Rewinding undoes this too:', plainText(found.by))
        : trans('%1 more files were changed since %2. Rewinding undoes this too:', total, plainText(found.by));
    this._others.replaceChildren(h('b', {}, changed), listOf(found.others, this._host));
  }

  private async _act(): Promise<void> {
    const { trans } = this._host;
    this._rewind.disabled = true;
    setText(this._told, trans('Rewinding…'));
    try {
      await this._travel.rewind(this._place.number, this.what, this._undoesOthers);
      await this._host.refresh?.();
      this._done('');
    } catch (error) {
      const words = errorText(error);
      setText(this._told, words);
      this._rewind.disabled = false;
      this._done(words);
    }
  }
}

function restores(files: number, trans: IHost['trans'], first: boolean): string {
  const words = files === 1 ? trans('restores 1 file') : trans('restores %1 files', files);
  return first ? words.charAt(0).toUpperCase() + words.slice(1) : words;
}

function listOf({ total, paths }: IRewindPaths, host: IHost): HTMLElement {
  const shown = paths.slice(0, PATHS_MOST);
  const rows = shown.map(({ path }) => h('li', {}, h('code', { dir: 'auto' }, visibleName(path))));
  const more = total - shown.length;
  return h('ul', {}, ...rows, more > 0 && h('li', {}, host.trans('and %1 more', more)));
}
