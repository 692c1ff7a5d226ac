/** A step in one line: what it did, its result, what it took. Bounded work, whatever the step holds. */

import { countLines, decidedByPerson, failed, failureText, headline, pathBelow, Tool, toolOf } from './call-summary';
import { plainText } from './dom';
import { ICall, IStep } from './fold';
import { formatDuration, formatModelFailure, formatShort, plural } from '../formatting';
import { IHost } from './host';
import { firstSentence, oneLine } from './one-line';
import { visibleName } from '../artifacts/names';

export interface IChip {
  kind: 'bad' | 'warn' | 'human' | 'run' | 'plain';
  text: string;
  added?: number;
  removed?: number;
}

export interface IStepLine {
  tool: Tool | 'none';
  thought: string;
  what: string;
  added: number;
  removed: number;
  chips: IChip[];
  figures: string;
}

/** Chips for files in one line; the rest is counted. */
const FILES = 2;
/** Changes that are looked at one by one; an installation makes thousands. */
const LOOKED_AT = 100;

export function stepFailed(step: IStep): boolean {
  return step.calls.some(failed) || (!step.replied && step.failures.length > 0);
}

export function stepDecided(step: IStep): boolean {
  return step.calls.some(decidedByPerson);
}

/** Tokens of the request and the reply; null when the provider did not count. */
export function stepTokens(step: IStep): number | null {
  const { usage } = step;
  return usage && usage.prompt_tokens + usage.completion_tokens ? usage.prompt_tokens + usage.completion_tokens : null;
}

/** Seconds of the model and of the calls. */
export function stepSeconds(step: IStep): number {
  return step.modelTime + step.calls.reduce((sum, call) => sum + (call.result?.duration ?? 0), 0);
}

export function lineOf(step: IStep, root: string, host: IHost): IStepLine {
  const { trans } = host;
  const { calls, thought } = step;
  const first = calls[0];
  const tool = first ? toolOf(first) : 'none';
  const more = calls.length > 1 ? ` + ${plural(calls.length - 1, trans('call'), trans('calls'))}` : '';
  const { added, removed } = tool === 'edit' ? changedLines(first) : { added: 0, removed: 0 };
  const waits = !step.replied && !thought && !step.reasoning && !calls.length;
  return {
    tool,
    thought: waits ? trans('The model is thinking') : firstSentence(thought || (first ? '' : step.reasoning), 90),
    what: first ? headline(first, root) + more : '',
    added,
    removed,
    chips: chipsOf(step, root, host),
    figures: figuresOf(step)
  };
}

function figuresOf(step: IStep): string {
  const tokens = stepTokens(step);
  const seconds = stepSeconds(step);
  const done = step.replied && step.calls.every(call => call.result);
  return [tokens !== null && formatShort(tokens), done && (seconds || tokens) && formatDuration(seconds)]
    .filter(part => part)
    .join(' · ');
}

/** What a call changed; what it is to write when no diff tells. */
function changedLines(call: ICall): { added: number; removed: number } {
  const diffs = call.result?.changes.map(change => change.diff ?? '') ?? [];
  if (diffs.some(diff => diff)) {
    const counts = diffs.map(countLines);
    const sum = (name: 'added' | 'removed') => counts.reduce((all, one) => all + one[name], 0);
    return { added: sum('added'), removed: sum('removed') };
  }
  if (call.result && failed(call)) {
    return { added: 0, removed: 0 };
  }
  const { file_text, new_str, old_str } = call.arguments ?? {};
  const lines = (text: unknown) => (typeof text === 'string' && text ? text.replace(/\n$/, '').split('\n').length : 0);
  return { added: lines(file_text) + lines(new_str), removed: lines(old_str) };
}

function chipsOf(step: IStep, root: string, host: IHost): IChip[] {
  const { trans } = host;
  const chips: IChip[] = step.calls
    .filter(failed)
    .slice(0, 2)
    .map(call => ({ kind: 'bad', text: failureText(call, host) }));
  for (const action of new Set(step.calls.flatMap(call => call.decisions.map(one => one.action)))) {
    const words: Record<string, string> = {
      edit: trans('edited by you'),
      skip: trans('answered by you'),
      observe: trans('result changed by you')
    };
    if (Object.prototype.hasOwnProperty.call(words, action)) {
      chips.push({ kind: 'human', text: words[action] });
    }
  }
  if (step.failures.length) {
    const last = step.failures[step.failures.length - 1];
    const said = formatModelFailure(last.error, trans) || oneLine(last.message, 60);
    chips.push(
      step.replied
        ? { kind: 'plain', text: trans('asked again: %1', said) }
        : { kind: 'bad', text: trans('model: %1', said) }
    );
  }
  return [...chips, ...fileChips(step, root, host)];
}

/** Files that were saved, and those that a command changed; the editor's are named in front. */
function fileChips(step: IStep, root: string, host: IHost): IChip[] {
  const saved = [...new Set(step.artifacts.map(artifact => artifact.path))];
  const chips: IChip[] = saved.map(path => ({ kind: 'plain', text: visibleName(baseName(path)) }));
  const changes = step.calls.filter(call => toolOf(call) !== 'edit').flatMap(call => call.result?.changes ?? []);
  const others = changes
    .slice(0, LOOKED_AT)
    .filter(change => !saved.some(path => `/${change.path}`.endsWith(`/${path}`)));
  for (const change of others.slice(0, Math.max(0, FILES - chips.length))) {
    const name = oneLine(pathBelow(change.path, root), 60);
    const counts = change.diff ? countLines(change.diff) : {};
    chips.push({ kind: 'plain', text: change.kind === 'deleted' ? host.trans('%1 deleted', name) : name, ...counts });
  }
  const all = saved.length + others.length + Math.max(0, changes.length - LOOKED_AT);
  const shown = chips.slice(0, FILES);
  return all > FILES ? [...shown, { kind: 'plain', text: host.trans('and %1 more', all - FILES) }] : shown;
}

function baseName(path: string): string {
  return plainText(path.slice(path.lastIndexOf('/') + 1));
}
