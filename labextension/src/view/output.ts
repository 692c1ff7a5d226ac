/** The box with the output of a call. Its end and the end of stderr are always visible; a click shows hidden lines. */

import { h, makeButton, plainText, setText } from './dom';
import { formatCount, formatSize } from '../formatting';
import { IHost } from './host';

/** Numbers of visible lines: at the beginning and the end of a long output, and at the end of stderr. */
const HEAD = 5;
const TAIL_LINES = 20;
const ERRORS = 40;
/** Number of visible lines of an output that errors follow, because a reader looks for the errors. */
const BRIEF = 5;
/** If at most this number of lines would be hidden, all lines are shown, because hiding so few would save little. */
const SPARE = 5;
/** Maximum characters of the visible part. If it is longer, the middle of each line beyond `LINE` characters is cut. */
const CHARACTERS = 8000;
const LINE = 1000;

/** A text that is cut at line ends. */
export interface ICut {
  head: string;
  /** Number of lines left out; 0 if all lines are there. */
  hidden: number;
  tail: string;
}

/** Return the first `head` and the last `tail` lines of a text, and the number of lines between. */
export function cut(text: string, head: number, tail: number): ICut {
  const body = text.endsWith('\n') ? text.slice(0, -1) : text;
  const starts = lineStarts(body, head);
  const ends = lineEnds(body, tail);
  if (starts === null || ends === null || ends <= starts) {
    return { head: '', hidden: 0, tail: body };
  }
  let hidden = 0;
  for (let place = starts; place < ends; place = body.indexOf('\n', place) + 1) {
    hidden++;
  }
  return hidden > SPARE
    ? { head: body.slice(0, Math.max(0, starts - 1)), hidden, tail: body.slice(ends) }
    : { head: '', hidden: 0, tail: body };
}

/** Find the start of the line after the first `count`; null if there are fewer. */
function lineStarts(text: string, count: number): number | null {
  let place = 0;
  for (; count > 0; count--) {
    const end = text.indexOf('\n', place);
    if (end < 0) {
      return null;
    }
    place = end + 1;
  }
  return place;
}

/** Find the start of the last `count` lines; null if there are no more. */
function lineEnds(text: string, count: number): number | null {
  let place = text.length;
  for (; count > 0; count--) {
    place = place > 0 ? text.lastIndexOf('\n', place - 1) : -1;
    if (place < 0) {
      return null;
    }
  }
  return place + 1;
}

/** Cut the middle of lines that are too long to be read, and name the size of the cut part in each of these lines. */
function bounded(text: string, most: number): string {
  if (text.length <= most) {
    return text;
  }
  return text
    .split('\n')
    .map(line => {
      const left = line.length - LINE;
      return left > 0 ? `${line.slice(0, LINE / 2)} … ${formatSize(left)} … ${line.slice(-LINE / 2)}` : line;
    })
    .join('\n');
}

/** The box of a stream. */
export class OutputBox {
  readonly node: HTMLElement;
  private _text: string | null = null;
  private _open = false;

  constructor(
    private _kind: 'stdout' | 'stderr' | 'live' | 'text',
    private _host: IHost,
    private _label: string,
    /** True if errors follow. */
    private _brief = false
  ) {
    this.node = h('div', { class: 'lsn-stream', 'data-stream': _kind });
    this.node.hidden = true;
  }

  /** Show this text. */
  show(text: string): void {
    if (text === this._text) {
      return;
    }
    this._text = text;
    this._draw();
  }

  private _draw(): void {
    const text = this._text!;
    this.node.hidden = !text.trim();
    if (this.node.hidden) {
      this.node.replaceChildren();
      return;
    }
    const { head, hidden, tail } = this._cut(text);
    const live = this._kind === 'live';
    const last = this.node.lastElementChild as HTMLElement | null;
    if (live && !this._open && last) {
      // While output arrives, its elements are kept, so that a reader's selection and focus stay.
      this._mark(hidden);
      this._fill(last.firstElementChild as HTMLElement, tail);
      return;
    }
    this.node.replaceChildren(
      ...(head ? [this._pre(head)] : []),
      ...(hidden ? [this._more(hidden)] : []),
      this._pre(tail, !this._open)
    );
    if (live && this._open) {
      this.node.lastElementChild!.scrollTop = this.node.scrollHeight;
    }
  }

  private _cut(text: string): ICut {
    if (this._open) {
      return { head: '', hidden: 0, tail: text.replace(/\n$/, '') };
    }
    const lengths = {
      live: [0, TAIL_LINES],
      stderr: [0, ERRORS],
      stdout: [HEAD, TAIL_LINES],
      text: [HEAD, TAIL_LINES]
    };
    const [head, tail] = this._brief ? [0, BRIEF] : lengths[this._kind];
    const found = cut(text, head, tail);
    return { ...found, head: bounded(found.head, CHARACTERS / 4), tail: bounded(found.tail, CHARACTERS) };
  }

  /** Show the number of hidden lines above, in a line that is added when it is first needed. */
  private _mark(hidden: number): void {
    const there = this.node.querySelector('.lsn-cut');
    if (hidden) {
      const mark = this._more(hidden);
      if (there) {
        setText(there as HTMLElement, mark.textContent ?? '');
      } else {
        this.node.prepend(mark);
      }
    }
  }

  private _more(hidden: number): HTMLElement {
    const { trans } = this._host;
    const label =
      (this._kind === 'text' || this._kind === 'stdout') && !this._brief
        ? trans('%1 lines hidden · show all', formatCount(hidden))
        : trans('%1 lines above · show all', formatCount(hidden));
    const show = () => {
      this._open = true;
      this._draw();
      this.node.querySelector<HTMLElement>('pre')?.focus();
    };
    return makeButton(label, show, { class: 'lsn-cut' });
  }

  /** Return an element with the text. If `atEnd`, a text that is too high for its box shows its end. */
  private _pre(text: string, atEnd = false): HTMLElement {
    const body = h('div');
    const css = atEnd ? 'lsn-output lsn-at-end' : 'lsn-output';
    const node = h('pre', { class: css, tabindex: 0, role: 'group', 'aria-label': this._label }, body);
    this._fill(body, text);
    return node;
  }

  private _fill(node: HTMLElement, text: string): void {
    if (this._host.renderAnsi && text.includes('\u001b')) {
      this._host.renderAnsi(text, node);
    } else {
      setText(node, plainText(text));
    }
  }
}
