/**
 * Steps of a long run in which nothing happened that a reader looks for, in one line: "2-30: 29 reads, nothing changed".
 * Twin of `trajectory/calm_steps.py`; tests/data/runs.json tests both.
 */

import { failed, failureText, headline, toolOf } from './call-summary';
import { ICall, IStep } from '../trajectory/fold';
import { CALM, DECIDED, LIMITS } from '../generated/words';
import { formatCount, plural } from '../formatting';
import { IHost } from './host';
import { oneLine } from './one-line';
import { figuresText, stepFailed, stepSeconds, stepTokens } from './step-line';

/** Kinds in the order of folding: changes, then saved files, are folded only if the rows do not fit. */
const LEVELS = ['read', 'change', 'save'] as const;

/** Neighbouring steps, as one row. */
export interface ICalmSteps {
  steps: IStep[];
  words: string;
  /** Tokens and seconds of all these steps together. */
  figures: string;
}

/** Kind of a step: a level of calm, `same` if it failed as the step before, or empty if it always stands alone. */
export type CalmKind = (typeof LEVELS)[number] | 'same' | '';
type Folded = 'calm' | 'same' | '';

/** Return the ranges of steps that share a row, as start and exclusive end. `running` is true if steps may follow. */
export function calmGroups(kinds: readonly CalmKind[], running: boolean): [number, number][] {
  if (kinds.length <= CALM.fits) {
    return [];
  }
  const end = kinds.length - (running ? CALM.newest : 1);
  const levels = LEVELS.map((_, level) => {
    const calm = new Set<CalmKind>(LEVELS.slice(0, level + 1));
    return grouped(kinds.slice(0, end).map(kind => (calm.has(kind) ? 'calm' : kind === 'same' ? 'same' : '')));
  });
  const rows = (groups: [number, number][]) =>
    kinds.length - groups.reduce((sum, [from, to]) => sum + to - from - 1, 0);
  return levels.find(groups => rows(groups) <= CALM.fits) ?? levels[levels.length - 1];
}

/** Return the ranges of neighbours of one kind that are long enough for a row. */
function grouped(kinds: readonly Folded[]): [number, number][] {
  // The first of equal failures stands alone before the row, so the row itself may have one step less.
  const least = { calm: CALM.least, same: CALM.least - 1, '': Infinity };
  const found: [number, number][] = [];
  for (let from = 0; from < kinds.length;) {
    let to = from + 1;
    while (to < kinds.length && kinds[to] === kinds[from]) {
      to++;
    }
    if (to - from >= least[kinds[from]]) {
      found.push([from, to]);
    }
    from = to;
  }
  return found;
}

export function calmKind(step: IStep, before: IStep | undefined, root: string, host: IHost): CalmKind {
  const first = step.calls[0];
  const decided = step.calls.some(call => call.decisions.some(one => DECIDED.has(one.action)));
  const done = step.replied && !step.failures.length && step.calls.every(call => call.result);
  if (!first || decided || !done || toolOf(first) === 'submit') {
    return '';
  }
  if (stepFailed(step)) {
    return before && failureOf(step, root, host) === failureOf(before, root, host) ? 'same' : '';
  }
  if (step.reduced) {
    return '';
  }
  return step.artifacts.length ? 'save' : changedNames(step).length ? 'change' : 'read';
}

/** Return the failures of a step as one text. */
function failureOf(step: IStep, root: string, host: IHost): string {
  const wrong = step.calls.filter(failed);
  return JSON.stringify(wrong.map(call => [headline(call, root), failureText(call, host)]));
}

/** Return the names of the files that a step changed or saved, as far as its events name them. */
function changedNames(step: IStep): string[] {
  const changes = step.calls.flatMap(call => call.result?.changes.slice(0, LIMITS.changes) ?? []);
  let paths = [...changes, ...step.artifacts.slice(0, LIMITS.changes)].map(one => one.path);
  if (!paths.length) {
    paths = step.calls.map(edited).filter(path => path);
  }
  return [...new Set(paths.map(path => oneLine(path.slice(path.lastIndexOf('/') + 1), LIMITS.name)))];
}

/** Return the path of the file that an edit changes; empty for any other call. */
function edited(call: ICall): string {
  const { command, path } = call.arguments ?? {};
  return toolOf(call) === 'edit' && command !== 'view' && typeof path === 'string' ? path : '';
}

export function calmSteps(kind: CalmKind, steps: IStep[], host: IHost): ICalmSteps {
  const tokens = steps.reduce((sum, step) => sum + (stepTokens(step) ?? 0), 0);
  const seconds = steps.reduce((sum, step) => sum + stepSeconds(step), 0);
  return { steps, words: wordsOf(kind, steps, host), figures: figuresText(tokens, seconds) };
}

function wordsOf(kind: CalmKind, steps: IStep[], host: IHost): string {
  const { trans } = host;
  const count = steps.length;
  if (kind === 'same') {
    const times = plural(count, trans('time'), trans('times'));
    return trans('the same again, %1: %2', times, failureText(steps[0].calls.find(failed)!, host));
  }
  const names = [...new Set(steps.flatMap(changedNames))];
  if (!names.length) {
    return trans('%1, nothing changed', plural(count, trans('read'), trans('reads')));
  }
  const shown = names.slice(0, CALM.names);
  const more = names.length - shown.length;
  const named = more ? trans('%1 and %2 more', shown.join(', '), formatCount(more)) : shown.join(` ${trans('and')} `);
  return trans('%1, changed %2', plural(count, trans('step'), trans('steps')), named);
}
