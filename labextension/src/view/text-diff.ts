/** Two short texts with their differences marked, by jsdiff. */

import { diffWordsWithSpace } from 'diff';

import { h } from './dom';

/** Maximum characters of a text that is marked. For longer texts, the work would be too much. */
const MOST_CHARACTERS = 4000;
/** Texts with more differences than this have little in common; marks would not help. */
const EDITS_MOST = 200;

type Parts = (HTMLElement | string)[];

/** Return both texts in pieces. A piece that only one text has is a `mark`. Very different texts have no marks. */
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
