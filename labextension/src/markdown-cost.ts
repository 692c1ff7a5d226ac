/**
 * Markdown that costs far more than its length: tables whose short lines are filled up, quotes within quotes, and marks of
 * emphasis, of which the parser compares each with all others of its paragraph.
 */

const CELLS = 20_000;
const NESTED = /^(?:[ \t]*(?:[>*+-]|\d{1,9}[.)])){40}/m;
/** Matches a line that may be the second of a table. It has one repetition only: no line can keep the page busy. */
const RULED = /^[ \t>|:-]+$/gm;

const MARKS = 2000;
/** Matches the end of a paragraph or of an item of a list. */
const ENDS = /\n[ \t>]*(?=\n|[-*+][ \t]|\d{1,9}[.)][ \t])/;
/** Matches marks of emphasis. A `_` within a word is no mark. */
const EMPHASIS = /\*+|(?<![\p{L}\p{N}])_+|_+(?![\p{L}\p{N}])/gu;

/** Return true for a text that is shown unrendered, because rendering it costs too much. */
export function isHeavyMarkdown(text: string): boolean {
  if (NESTED.test(text) || text.split(ENDS).some(part => part.replace(EMPHASIS, '').length < part.length - MARKS)) {
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
