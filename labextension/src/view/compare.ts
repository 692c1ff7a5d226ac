/** Two attempts of a run side by side: first the answers, then the steps that differ, with differing characters marked. */

import { CheckpointChangesView } from './checkpoint-changes';
import { callText, endingOf, failed } from './call-summary';
import { h, plainText } from './dom';
import { ICall, IStep, Trajectory } from '../trajectory/fold';
import { formatCost, formatDuration, plural } from '../formatting';
import { IHost } from './host';
import { bodyOf, streamsOf } from './observation';
import { markDifferences } from './text-diff';

/** Maximum number of shown steps, and maximum characters of each text in a step and of the answer. */
const STEPS_MOST = 200;
const TEXT_MOST = 2000;
const ANSWER_MOST = 600;

export function renderComparison(left: Trajectory, head: Trajectory, host: IHost): HTMLElement {
  const { trans } = host;
  const rows = aligned(left, head);
  const first = rows.findIndex(pair => !same(pair));
  const shown = rows.slice(0, Math.max(first, 0) + STEPS_MOST);
  const [before, now] = answers(left, head, host);
  const corner = h('td', {}, h('span', { class: 'lsn-visually-hidden' }, trans('Step')));
  const titles = [
    h('th', { scope: 'col' }, trans('Earlier attempt'), ' · ', ...before),
    h('th', { scope: 'col' }, trans('This attempt'), ' · ', ...now)
  ];
  const table = h(
    'table',
    { class: 'lsn-comparison' },
    h(
      'caption',
      {},
      first < 0 ? trans('Every step is the same.') : trans('First difference: step %1.', number(rows[first]))
    ),
    h('thead', {}, h('tr', {}, corner, ...titles)),
    h('tbody', {}, ...bodyRows(shown, first, host), totals(left, head, host))
  );
  const more = rows.length - shown.length;
  const rest = more > 0 ? h('div', { class: 'lsn-note' }, trans('%1 more steps are not shown.', more)) : null;
  const [from, to] = [left.files, head.files];
  if (!host.history || !from || !to) {
    return h('div', { class: 'lsn-compare-view' }, table, rest);
  }
  const files = new CheckpointChangesView(host.history, host);
  files.show(from, to);
  return h('div', { class: 'lsn-compare-view' }, table, rest, h('h4', {}, trans('Files at the end')), files.node);
}

type Pair = [IStep | undefined, IStep | undefined];
type Parts = (HTMLElement | string)[];

/** Pair the steps of two attempts by their numbers, because attempts of one run number their steps alike. */
function aligned(left: Trajectory, head: Trajectory): Pair[] {
  const other = new Map(head.steps.map(step => [step.number, step]));
  const numbers = new Set([...left.steps, ...head.steps].map(step => step.number));
  const mine = new Map(left.steps.map(step => [step.number, step]));
  return [...numbers].sort((a, b) => a - b).map(one => [mine.get(one), other.get(one)]);
}

function number([one, other]: Pair): number {
  return (one ?? other)!.number;
}

function same([one, other]: Pair): boolean {
  const told = (step: IStep) =>
    step.calls.map(call => [call.tool, callText(call), call.result ? bodyOf(call.result) : '']);
  return !!one && !!other && JSON.stringify(told(one)) === JSON.stringify(told(other)) && one.thought === other.thought;
}

/** Return the answers with their differences marked. In place of a missing answer, return the state. */
function answers(left: Trajectory, head: Trajectory, host: IHost): [Parts, Parts] {
  const { trans } = host;
  const [one, other] = [left, head].map(run => run.finish?.answer ?? null);
  const label = (parts: Parts): Parts => [trans('answer'), ' ', h('span', { class: 'lsn-compared-answer' }, ...parts)];
  if (one !== null && other !== null && one !== other) {
    const [before, now] = markDifferences(cut(one, ANSWER_MOST), cut(other, ANSWER_MOST));
    return [label(before), label(now)];
  }
  const told = (run: Trajectory, answer: string | null): Parts => {
    if (answer !== null) {
      return label([cut(answer, ANSWER_MOST)]);
    }
    const state = run.finish ? run.status.runState(false, trans).words : '';
    return [state ? trans('no answer (%1)', plainText(state)) : trans('no answer yet')];
  };
  return [told(left, one), told(head, other)];
}

/** Return the rows of the table. Neighbouring pairs of equal steps share a row. */
function bodyRows(rows: Pair[], first: number, host: IHost): HTMLElement[] {
  const { trans } = host;
  const made: HTMLElement[] = [];
  let alike: Pair[] = [];
  const fold = () => {
    if (alike.length) {
      const [from, to] = [number(alike[0]), number(alike[alike.length - 1])];
      const count = alike.length === 1 ? trans('1 step is the same') : trans('%1 steps are the same', alike.length);
      const label = from === to ? String(from) : `${from}–${to}`;
      const cell = h('td', { class: 'lsn-same', colspan: 2 }, count);
      made.push(h('tr', {}, h('th', { scope: 'row' }, label), cell));
      alike = [];
    }
  };
  rows.forEach((pair, place) => {
    if (same(pair)) {
      alike.push(pair);
    } else {
      fold();
      made.push(differingRow(pair, place === first, host));
    }
  });
  fold();
  return made;
}

function differingRow([one, other]: Pair, first: boolean, host: IHost): HTMLElement {
  const { trans } = host;
  const [left, right] = one && other ? bothSteps(one, other, host) : [one, other].map(step => oneStep(step, host));
  const place = h('th', { scope: 'row' }, String(number([one, other])));
  if (first) {
    place.append(' ', h('span', { class: 'lsn-visually-hidden' }, trans('(first difference)')));
  }
  return h('tr', { class: first ? 'lsn-divergence' : null }, place, h('td', {}, ...left), h('td', {}, ...right));
}

function oneStep(step: IStep | undefined, host: IHost): HTMLElement[] {
  if (!step) {
    return [h('span', { class: 'lsn-note' }, host.trans('no such step'))];
  }
  return textsOf(step, host).map(text => renderText(text.css, [text.text], text.edited, host));
}

/** Return the texts of two steps, with the differences of each pair of texts marked. */
function bothSteps(one: IStep, other: IStep, host: IHost): [HTMLElement[], HTMLElement[]] {
  const [mine, theirs] = [textsOf(one, host), textsOf(other, host)];
  const marked = mine.map((text, place) => markDifferences(text.text, theirs[place]?.text ?? text.text));
  return [
    mine.map((text, place) => renderText(text.css, marked[place][0], text.edited, host)),
    theirs.map((text, place) => renderText(text.css, marked[place]?.[1] ?? [text.text], text.edited, host))
  ];
}

interface IText {
  css: string;
  text: string;
  edited: boolean;
}

function textsOf(step: IStep, host: IHost): IText[] {
  if (!step.calls.length) {
    return [{ css: 'lsn-thought', text: cut(step.thought, TEXT_MOST), edited: false }];
  }
  return step.calls.flatMap(call => {
    const edited = call.decisions.some(one => one.action === 'edit');
    const code = call.tool === 'execute_bash' ? callText(call) : `${call.tool}\n${callText(call)}`;
    const texts = [{ css: 'lsn-code', text: cut(code, TEXT_MOST), edited }];
    const output = cut(outputOf(call, host), TEXT_MOST).trim();
    return output ? [...texts, { css: 'lsn-output', text: output, edited: false }] : texts;
  });
}

/** Return the output as the card shows it, with the end of a call that failed. */
function outputOf(call: ICall, host: IHost): string {
  const { background, stdout, stderr } = streamsOf(call);
  return [background, stdout, stderr, failed(call) ? endingOf(call, host) : ''].filter(part => part).join('\n');
}

function renderText(css: string, parts: Parts, edited: boolean, host: IHost): HTMLElement {
  const chip = edited && h('span', { class: 'lsn-chip', 'data-kind': 'human' }, host.trans('edited by you'));
  return h('div', { class: 'lsn-compared' }, h('pre', { class: css }, ...parts), chip);
}

function cut(text: string, most: number): string {
  return plainText(text.length > most ? `${text.slice(0, most)}…` : text);
}

function totals(left: Trajectory, head: Trajectory, host: IHost): HTMLElement {
  const { trans } = host;
  const words = (run: Trajectory) => {
    const time = run.steps.reduce(
      (sum, step) => sum + step.modelTime + step.calls.reduce((all, call) => all + (call.result?.duration ?? 0), 0),
      0
    );
    const tokens = run.usage.prompt_tokens + run.usage.completion_tokens;
    const counts = [
      plural(run.steps.length, trans('step'), trans('steps')),
      plural(tokens, trans('token'), trans('tokens'))
    ];
    const cost = formatCost(run.usage.cost) ?? (run.start?.scripted ? trans('scripted: free') : trans('cost unknown'));
    return [...counts, cost, formatDuration(time)].join(' · ');
  };
  const cells = [left, head].map(run => h('td', {}, words(run)));
  return h('tr', { class: 'lsn-totals' }, h('th', { scope: 'row' }, trans('All')), ...cells);
}
