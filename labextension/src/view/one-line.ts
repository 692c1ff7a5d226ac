/** A text in one line of bounded length. Twin of the same functions in `trajectory/step_line.py`. */

import { plainText } from './dom';
import { LIMITS } from '../generated/words';

/** The first line that is not blank, with a mark when there is more; `instead` when there is none. */
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

/** The first sentence of what the model wrote, without the marks of Markdown. */
export function firstSentence(text: string, most: number = LIMITS.sentence): string {
  const lines = shownLines(text, 8 * most).map(line => line.replace(/^\s*(?:#+|>|[-*+]|\d+\.)\s+/, ''));
  const line = lines.find(one => /\p{L}|\p{N}/u.test(one)) ?? '';
  const words = line.replace(/\*\*|__|`/g, '').trim();
  const sentence = /^.{8,}?[.!?:](?=\s|$)/u.exec(words)?.[0].replace(/[.:]+$/, '') ?? words;
  return lettersOf(sentence) > most ? `${shortened(sentence, most - 1).trimEnd()}…` : sentence;
}

/** The last line that is not blank. */
export function lastLine(text: string, most: number = LIMITS.ending): string {
  const lines = plainLines(text.slice(-LIMITS.output)).reverse();
  return oneLine(lines.find(line => line.trim()) ?? '', most);
}

/** The beginning of a text; letters count once, also those of two units. */
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

/** The lines as a terminal leaves them: a carriage return begins its line again, as progress bars expect. */
function plainLines(text: string): string[] {
  return plainText(text)
    .split('\n')
    .map(line => line.replace(/\r+$/, '').replace(/^.*\r/, ''));
}

/** True if a line, the first sentence of a text, has the whole text. */
export function saysAll(line: string, text: string): boolean {
  const plain = text
    .slice(0, 2 * line.length + 40)
    .replace(/\*\*|__|`/g, '')
    .trim();
  return plain.length < 2 * line.length + 30 && plain.replace(/[.:]$/, '') === line.replace(/[.:]$/, '');
}
