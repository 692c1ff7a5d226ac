/** Two branches of a run side by side: step by step from where they part, and what each has cost. */

import { callText } from './call';
import { h, plainText } from './dom';
import { IStep, Trajectory } from './fold';
import { costInWords, countInWords, secondsInWords } from './format';
import { IHost } from './host';
import { OldChangesView } from './old-changes';

/** Steps that are shown; and characters of each text within them. */
const STEPS_MOST = 200;
const TEXT_MOST = 2000;

export function renderComparison(left: Trajectory, head: Trajectory, host: IHost): HTMLElement {
  const { trans } = host;
  const rows = aligned(left, head);
  const first = rows.findIndex(([one, other]) => !same(one, other));
  const shown = first < 0 ? [] : rows.slice(first, first + STEPS_MOST);
  const heads = [trans('Step'), trans('the branch that was left'), trans('the branch that goes on')];
  const body = shown.map(([one, other], place) => renderRow(one, other, place === 0, host));
  const table = h(
    'table',
    { class: 'lsn-comparison' },
    h('caption', {}, first < 0 ? trans('Both did the same.') : trans('They part at step %1.', number(rows[first]))),
    h('thead', {}, h('tr', {}, ...heads.map(text => h('th', { scope: 'col' }, text)))),
    h('tbody', {}, ...body, totals(left, head, host))
  );
  const more = rows.length - Math.max(first, 0) - shown.length;
  const rest = first >= 0 && more > 0 ? h('div', { class: 'lsn-note' }, trans('… and %1 more', more)) : null;
  const [before, after] = [left.files, head.files];
  if (!host.history || !before || !after) {
    return h('div', {}, table, rest);
  }
  const files = new OldChangesView(host.history, host);
  void files.show(before, after);
  return h('div', {}, table, rest, h('h4', {}, trans('Files in the end')), files.node);
}

type Pair = [IStep | undefined, IStep | undefined];

/** Branches of one run number their steps alike. */
function aligned(left: Trajectory, head: Trajectory): Pair[] {
  const other = new Map(head.steps.map(step => [step.number, step]));
  const numbers = new Set([...left.steps, ...head.steps].map(step => step.number));
  const mine = new Map(left.steps.map(step => [step.number, step]));
  return [...numbers].sort((a, b) => a - b).map(one => [mine.get(one), other.get(one)]);
}

function number([one, other]: Pair): number {
  return (one ?? other)!.number;
}

function same(one: IStep | undefined, other: IStep | undefined): boolean {
  const told = (step: IStep) => step.calls.map(call => [call.tool, callText(call), call.result?.observation ?? '']);
  return !!one && !!other && JSON.stringify(told(one)) === JSON.stringify(told(other)) && one.thought === other.thought;
}

function renderRow(one: IStep | undefined, other: IStep | undefined, first: boolean, host: IHost): HTMLElement {
  const place = String(number([one, other]));
  const label = first ? h('strong', {}, place, ' ', host.trans('(first difference)')) : place;
  const cells = [one, other].map(step => h('td', {}, ...(step ? renderStep(step) : ['–'])));
  return h('tr', { class: first ? 'lsn-divergence' : null }, h('th', { scope: 'row' }, label), ...cells);
}

function renderStep(step: IStep): HTMLElement[] {
  const cut = (text: string) => plainText(text.length > TEXT_MOST ? `${text.slice(0, TEXT_MOST)}…` : text);
  if (!step.calls.length) {
    return [h('div', {}, cut(step.thought))];
  }
  return step.calls.flatMap(call => [
    h('pre', { class: 'lsn-code' }, cut(`${call.tool}\n${callText(call)}`)),
    h('pre', { class: 'lsn-output' }, cut(call.result?.observation ?? ''))
  ]);
}

function totals(left: Trajectory, head: Trajectory, host: IHost): HTMLElement {
  const { trans } = host;
  const words = (run: Trajectory) => {
    const time = run.steps.reduce(
      (sum, step) => sum + step.modelTime + step.calls.reduce((all, call) => all + (call.result?.duration ?? 0), 0),
      0
    );
    const tokens = countInWords(run.usage.prompt_tokens + run.usage.completion_tokens);
    const cost = costInWords(run.usage.cost) ?? trans('cost unknown');
    return [trans('%1 steps', run.steps.length), trans('%1 tokens', tokens), cost, secondsInWords(time)].join(' · ');
  };
  const cells = [left, head].map(run => h('td', {}, words(run)));
  return h('tr', { class: 'lsn-totals' }, h('th', { scope: 'row' }, trans('All')), ...cells);
}
