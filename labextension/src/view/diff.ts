/** A unified diff, line by line, coloured. Long ones are cut until asked for. */

import { h } from './dom';
import { IHost } from './host';

const LINES_SHOWN = 400;

export function renderDiff(diff: string, host: IHost): HTMLElement {
  const lines = diff.split('\n');
  const box = h('div', { class: 'lsn-diff', role: 'table', 'aria-label': host.trans('Diff') });
  box.append(...lines.slice(0, LINES_SHOWN).map(renderLine));
  const rest = lines.slice(LINES_SHOWN);
  if (rest.length) {
    const more = h('button', { class: 'lsn-more', type: 'button' }, host.trans('%1 more lines', rest.length));
    more.addEventListener('click', () => more.replaceWith(...rest.map(renderLine)));
    box.append(more);
  }
  return box;
}

function renderLine(line: string): HTMLElement {
  return h('div', { class: `lsn-diff-line ${lineClass(line)}`, role: 'row' }, line || ' ');
}

function lineClass(line: string): string {
  if (line.startsWith('@@')) {
    return 'lsn-diff-place';
  }
  if (line.startsWith('+++') || line.startsWith('---')) {
    return 'lsn-diff-file';
  }
  return line.startsWith('+') ? 'lsn-diff-added' : line.startsWith('-') ? 'lsn-diff-removed' : '';
}
