/** Markdown that unfolds to far more than it has: tables whose short lines are filled up, and quotes within quotes. */

const CELLS = 20_000;
const NESTED = /^(?:[ \t]*(?:[>*+-]|\d{1,9}[.)])){40}/m;
/** A line that may be the second of a table. One repetition only: a hostile line must not keep the page busy. */
const RULED = /^[ \t>|:-]+$/gm;

/** True for a text that is shown as it is, because rendering it costs too much. */
export function isHeavyMarkdown(text: string): boolean {
  if (NESTED.test(text)) {
    return true;
  }
  let cells = 0;
  for (const { 0: line, index } of text.matchAll(RULED)) {
    if (!line.includes('-') || !line.includes('|')) {
      continue;
    }
    const columns = line.split('|').length;
    const end = text.slice(index).search(/\n[ \t]*\n/);
    const rows = text.slice(index, end < 0 ? undefined : index + end).split('\n').length;
    cells += columns * rows;
    if (cells > CELLS) {
      return true;
    }
  }
  return false;
}
