/** A text in one line of bounded length. Twin of the same functions in `trajectory/step_line.py`. */

import { plainText } from './dom';
import { LIMITS } from '../generated/words';

/** Return the first line that is not blank, with `…` if there is more text. If all lines are blank, use `instead`. */
export function oneLine(text: string, most: number, instead = ''): string {
  const lines = shownLines(text, 8 * most);
  const first = lines.findIndex(line => line.trim());
  if (first < 0) {
    return instead ? oneLine(instead, most) : '';
  }
  const line = lines[first].trim().replace(/\s+/g, ' ');
  const more = lines.slice(first + 1).some(one => one.trim());
  const short = shortened(line, most - 1);
  return lettersOf(line) > most ? `${short}…` : more ? `${line} …` : line;
}

/** Return the first sentence of a model's text, without the marks of Markdown. */
export function firstSentence(text: string, most: number = LIMITS.sentence): string {
  const lines = shownLines(text, 8 * most).map(line => line.replace(/^\s*(?:#+|>|[-*+]|\d+\.)\s+/, ''));
  const line = lines.find(one => /\p{L}|\p{N}/u.test(one)) ?? '';
  const words = line.replace(/\*\*|__|`/g, '').trim();
  const sentence = /^.{8,}?[.!?:](?=\s|$)/u.exec(words)?.[0].replace(/[.:]+$/, '') ?? words;
  return lettersOf(sentence) > most ? `${shortened(sentence, most - 1).trimEnd()}…` : sentence;
}

/** Return the last line that is not blank. */
export function lastLine(text: string, most: number = LIMITS.ending): string {
  const lines = plainLines(text.slice(-LIMITS.output)).reverse();
  return oneLine(lines.find(line => line.trim()) ?? '', most);
}

/** Return the first `most` letters of a text. A letter of two UTF-16 units counts once. */
export function shortened(text: string, most: number): string {
  return text.length <= most
    ? text
    : Array.from(text.slice(0, 2 * most))
        .slice(0, most)
        .join('');
}

function lettersOf(text: string): number {
  return Array.from(text).length;
}

function shownLines(text: string, most: number): string[] {
  return plainLines(shortened(text, most));
}

/** Return the lines as a terminal shows them in the end: a carriage return begins its line again. */
function plainLines(text: string): string[] {
  return plainText(text)
    .split('\n')
    .map(line => line.replace(/\r+$/, '').replace(/^.*\r/, ''));
}

/** Return true if `line`, the first sentence of `text`, is the whole text. */
export function saysAll(line: string, text: string): boolean {
  const plain = text
    .slice(0, 2 * line.length + 40)
    .replace(/\*\*|__|`/g, '')
    .trim();
  return plain.length < 2 * line.length + 30 && plain.replace(/[.:]$/, '') === line.replace(/[.:]$/, '');
}
