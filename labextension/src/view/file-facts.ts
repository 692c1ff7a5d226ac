/**
 * Below the answer: the first warning, the history of the files that were made for the person, and all changed files.
 * Each number leads to a step. Drawn again only when a file changed or a warning came.
 */

import { visibleName } from '../artifacts/names';
import { h, makeButton, setText } from './dom';
import { FileHistory, IFileEvent } from './file-history';
import { Trajectory } from '../trajectory/fold';
import { formatCount } from '../formatting';
import { IHost } from './host';
import { shortName, warningText } from './warning-text';

export interface IFileFactsActions {
  /** Open a step and scroll to it. */
  goTo(step: number): void;
  /** Show only the steps that touched the file `path`, or all steps if `path` is empty. */
  filter(path: string): void;
}

/** Maximum number of files below the answer, of step numbers of one file, and of files in the list. */
const FILES_SHOWN = 3;
const NUMBERS_SHOWN = 6;
const LISTED = 200;

export class FileFacts {
  /** Chips for the row of facts. */
  readonly node = h('span', { class: 'lsn-file-facts' });
  /** The list of all changed files; hidden until it is asked for. */
  readonly list = h('div', { class: 'lsn-file-list' });
  private _drawn = '';
  private _chips = new Map<string, HTMLElement>();
  private _toggle: HTMLButtonElement | null = null;

  constructor(
    private _trajectory: Trajectory,
    private _host: IHost,
    private _actions: IFileFactsActions
  ) {
    this.list.hidden = true;
  }

  update(history: FileHistory): void {
    const drawn = `${history.version} ${this._trajectory.artifacts.size}`;
    if (drawn === this._drawn) {
      return;
    }
    this._drawn = drawn;
    const before = this._chips;
    this._chips = new Map();
    const keep = (key: string, make: () => HTMLElement) => {
      const chip = before.get(key) ?? make();
      this._chips.set(key, chip);
      return chip;
    };
    const warned = (history.warnings.get(history.firstWarning) ?? [])
      .map(one => warningText(one, this._host))
      .join(', ');
    const row = this._results(history).map(path => {
      const events = history.files.get(path)!;
      return keep(`${events.length} ${path}`, () => this._file(shortName(path), path, events));
    });
    if (warned) {
      row.unshift(keep(`! ${history.firstWarning} ${warned}`, () => this._firstWarning(history.firstWarning, warned)));
    }
    if (history.changed) {
      row.push(this._filesChanged(history));
    }
    if (row.length !== this.node.childElementCount || row.some((chip, at) => chip !== this.node.children[at])) {
      this.node.replaceChildren(...row);
    }
    if (!this.list.hidden) {
      this._drawList(history);
    }
  }

  reset(): void {
    this._drawn = '';
    this.list.hidden = true;
    this.list.replaceChildren();
    this.node.replaceChildren();
    this._chips.clear();
    this._toggle = null;
  }

  /** Return the first files that were made for the person, which are the files of the output folder. */
  private _results(history: FileHistory): string[] {
    const found: string[] = [];
    for (const name of this._trajectory.artifacts.keys()) {
      if (history.files.has(`output/${name}`) && found.push(`output/${name}`) === FILES_SHOWN) {
        break;
      }
    }
    return found;
  }

  private _firstWarning(first: number, warned: string): HTMLElement {
    return makeButton(
      this._host.trans('Step %1: %2 →', first, warned.split(', ')[0]),
      () => this._actions.goTo(first),
      { class: 'lsn-chip', 'data-kind': 'warn', title: warned }
    );
  }

  /** Render for example "mean.txt: made 12, changed 14, 18", where each number is a link. */
  private _file(name: string, path: string, events: readonly IFileEvent[]): HTMLElement {
    const words: Record<IFileEvent['what'], string> = {
      made: this._host.trans('made'),
      changed: this._host.trans('changed'),
      removed: this._host.trans('removed'),
      refused: this._host.trans('edit refused')
    };
    const shown =
      events.length > NUMBERS_SHOWN ? [...events.slice(0, 1), null, ...events.slice(1 - NUMBERS_SHOWN)] : [...events];
    const parts: (HTMLElement | string)[] = [];
    let last: IFileEvent['what'] | null = null;
    for (const event of shown) {
      if (!event) {
        parts.push(', …');
        continue;
      }
      const word = event.what === last ? '' : `${words[event.what]} `;
      parts.push(parts.length ? `, ${word}` : word, this._number(event, path, words[event.what]));
      last = event.what;
    }
    return h(
      'span',
      { class: 'lsn-chip lsn-file', title: visibleName(path), 'data-path': path },
      `${name}: `,
      ...parts
    );
  }

  private _number(event: IFileEvent, path: string, what: string): HTMLElement {
    const label = this._host.trans('%1 %2 in step %3', shortName(path), what, event.step);
    return makeButton(String(event.step), () => this._actions.goTo(event.step), {
      class: 'lsn-step-link',
      'aria-label': label
    });
  }

  private _filesChanged(history: FileHistory): HTMLElement {
    const { trans } = this._host;
    const count = history.changed;
    const label = count === 1 ? trans('1 file changed') : trans('%1 files changed', formatCount(count));
    this._toggle ??= this._renderToggle(history);
    setText(this._toggle, label);
    return this._toggle;
  }

  private _renderToggle(history: FileHistory): HTMLButtonElement {
    const toggle = h('button', { type: 'button', class: 'lsn-chip', 'aria-expanded': String(!this.list.hidden) });
    toggle.addEventListener('click', () => {
      this.list.hidden = !this.list.hidden;
      toggle.setAttribute('aria-expanded', String(!this.list.hidden));
      if (!this.list.hidden) {
        this._drawList(history);
      }
    });
    return toggle;
  }

  private _drawList(history: FileHistory): void {
    const { trans } = this._host;
    const changed = [...history.files.keys()].filter(path => history.files.get(path)!.some(event => event.change));
    const rows = changed.slice(0, LISTED).map(path =>
      h(
        'div',
        { class: 'lsn-file-row' },
        this._file(visibleName(path), path, history.files.get(path)!),
        makeButton(trans('Only these steps'), () => this._actions.filter(path), { class: 'lsn-quiet' })
      )
    );
    const more = changed.length - rows.length;
    this.list.replaceChildren(...rows);
    if (more > 0) {
      this.list.append(h('div', { class: 'lsn-note' }, trans('… and %1 more', formatCount(more))));
    }
  }
}
