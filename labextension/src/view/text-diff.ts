/** Two short texts with the characters marked in which they differ. Uses jsdiff. */

import { diffWordsWithSpace } from 'diff';

import { h } from './dom';

/** A longer text is not marked: the work grows with its length. */
const MOST_CHARACTERS = 4000;
/** Texts with more differences than this have little in common; marks would not help. */
const EDITS_MOST = 200;

type Parts = (HTMLElement | string)[];

/** Each text in pieces, what only it has in a `mark`. Without marks when they have nothing, or too much, in common. */
export function markDifferences(one: string, other: string): [Parts, Parts] {
  const short = one.length <= MOST_CHARACTERS && other.length <= MOST_CHARACTERS;
  const found = one !== other && short ? diffWordsWithSpace(one, other, { maxEditLength: EDITS_MOST }) : undefined;
  if (!found?.some(part => !part.added && !part.removed && part.value.trim())) {
    return [[one], [other]];
  }
  const side = (skipped: 'added' | 'removed', css: string): Parts =>
    found
      .filter(part => !part[skipped])
      .map(part => (part.added || part.removed ? h('mark', { class: css }, part.value) : part.value));
  return [side('added', 'lsn-only-left'), side('removed', 'lsn-only-right')];
}
