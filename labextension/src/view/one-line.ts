/** A text in one line of bounded length. */

import { plainText } from './dom';

/** The first line that is not blank, with a mark when there is more; `instead` when there is none. */
export function oneLine(text: string, most: number, instead = ''): string {
  const lines = plainText(text.slice(0, 8 * most)).split('\n');
  const first = lines.findIndex(line => line.trim());
  if (first < 0) {
    return instead ? oneLine(instead, most) : '';
  }
  const line = lines[first].trim().replace(/\s+/g, ' ');
  const more = lines.slice(first + 1).some(one => one.trim());
  return line.length > most ? `${line.slice(0, most - 1)}…` : more ? `${line} …` : line;
}

/** The first sentence of what the model wrote, without the marks of Markdown. */
export function firstSentence(text: string, most: number): string {
  const plain = plainText(text.slice(0, 8 * most)).replace(/^\s*(?:#+|>|[-*+]|\d+\.)\s+/gm, '');
  const line = plain.split('\n').find(one => /\p{L}|\p{N}/u.test(one)) ?? '';
  const words = line.replace(/\*\*|__|`/g, '').trim();
  const sentence = /^.{8,}?[.!?:](?=\s|$)/u.exec(words)?.[0].replace(/[.:]$/, '') ?? words;
  return sentence.length > most ? `${sentence.slice(0, most - 1).trimEnd()}…` : sentence;
}
