/** A unified diff, line by line, coloured, with line numbers. A long diff is cut until a click. */

import { h, makeButton, plainText } from './dom';
import { formatCount } from '../formatting';
import { highlight } from './highlight';
import { IHost } from './host';

const LINES_SHOWN = 400;
/** Maximum number of highlighted lines. Each line is highlighted alone, so a text over several lines may look wrong. */
const LINES_HIGHLIGHTED = 200;
const PLACE = /^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@/;

interface ILine {
  kind: 'same' | 'added' | 'removed' | 'place';
  number: number | null;
  text: string;
}

/** Render a diff. */
export function renderDiff(diff: string, host: IHost, language: string | null = null): HTMLElement {
  const { trans } = host;
  const lines = linesOf(diff);
  const box = h('div', { class: 'lsn-diff', role: 'group', 'aria-label': trans('Diff'), tabindex: 0 });
  const render = (from: number, to: number) =>
    lines
      .slice(from, to)
      .map((line, place) => renderLine(line, from + place < LINES_HIGHLIGHTED ? language : null, host));
  box.append(...render(0, LINES_SHOWN));
  const rest = lines.length - LINES_SHOWN;
  if (rest > 0) {
    const show = () => more.replaceWith(...render(LINES_SHOWN, lines.length));
    const more = makeButton(trans('%1 more lines · show all', formatCount(rest)), show, { class: 'lsn-cut' });
    box.append(more);
  }
  return box;
}

/** Parse a diff, without the names of the two files, which are shown above the diff. */
function linesOf(diff: string): ILine[] {
  const all = diff.replace(/\n$/, '').split('\n');
  const lines: ILine[] = [];
  let [before, after] = [0, 0];
  for (const [index, line] of all.entries()) {
    const place = PLACE.exec(line);
    if (place) {
      [before, after] = [Number(place[1]), Number(place[2])];
      if (lines.length) {
        lines.push({ kind: 'place', number: null, text: '⋯' });
      }
    } else if (index < 2 && /^(?:---|\+\+\+) /.test(line)) {
      continue;
    } else if (line.startsWith('+')) {
      lines.push({ kind: 'added', number: after++ || null, text: line.slice(1) });
    } else if (line.startsWith('-')) {
      lines.push({ kind: 'removed', number: before++ || null, text: line.slice(1) });
    } else if (line.startsWith('\\')) {
      lines.push({ kind: 'place', number: null, text: line.slice(2) });
    } else {
      before++;
      lines.push({ kind: 'same', number: after++ || null, text: line.slice(1) });
    }
  }
  return lines;
}

function renderLine({ kind, number, text }: ILine, language: string | null, host: IHost): HTMLElement {
  const { trans } = host;
  const code = h('span', { class: 'lsn-diff-text' });
  highlight(plainText(text), language, code);
  const sign = { same: '', added: '+', removed: '−', place: '' }[kind];
  const said = { same: '', added: trans('added'), removed: trans('removed'), place: '' }[kind];
  return h(
    'div',
    { class: `lsn-diff-line lsn-diff-${kind}` },
    h('span', { class: 'lsn-diff-number', 'aria-hidden': 'true' }, number === null ? '' : String(number)),
    h('span', { class: 'lsn-diff-sign', 'aria-label': said || null, role: said ? 'img' : null }, sign),
    code
  );
}
