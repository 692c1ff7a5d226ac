/**
 * A step in one line. The line of a finished step is made and recorded by `trajectory/step_line.py`: change that module
 * first. This twin serves a running step and older records; tests/data/runs.json tests both. The work is bounded, whatever the step holds.
 */

import {
  countLines,
  decidedByPerson,
  decidedHow,
  failed,
  failureText,
  headline,
  pathBelow,
  toolOf
} from './call-summary';
import { plainText } from './dom';
import { ICall, IStep } from '../trajectory/fold';
import { IFileDiff, IStepLine as IRecordedLine } from '../generated/events';
import { DECIDED, LIMITS, REDUCED, Tool, TOOLS, WORDS } from '../generated/words';
import { formatDuration, formatModelFailure, formatShort } from '../formatting';
import { IHost } from './host';
import { placeOf } from './mcp-places';
import { firstSentence, oneLine, shortened } from './one-line';

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

export function stepFailed(step: IStep): boolean {
  return step.calls.some(failed) || (!step.replied && step.failures.length > 0);
}

/** Return true for a step that failed. An interrupted call is no error of the run, so it does not count. */
export function stepErred(step: IStep): boolean {
  return stepFailed({ ...step, calls: step.calls.filter(call => call.result?.error !== 'interrupted') });
}

export function stepDecided(step: IStep): boolean {
  return step.calls.some(decidedByPerson);
}

/** Return the tokens of the request and the reply together; null if the provider did not count them. */
export function stepTokens(step: IStep): number | null {
  const { usage } = step;
  return usage && usage.prompt_tokens + usage.completion_tokens ? usage.prompt_tokens + usage.completion_tokens : null;
}

/** Return the tokens that a step added to the conversation: the new part of its request, and its reply. */
export function newTokens(step: IStep, before: IStep | undefined): number {
  const [all, known] = [stepTokens(step) ?? 0, before ? (stepTokens(before) ?? 0) : 0];
  return Math.max(all - known, step.usage?.completion_tokens ?? 0);
}

/** Return the seconds of the model and of the calls together. */
export function stepSeconds(step: IStep): number {
  return step.modelTime + step.calls.reduce((sum, call) => sum + (call.result?.duration ?? 0), 0);
}

/**
 * Return the line of a step. `running` is true if the model may still reply. `settings` are the run's settings, which
 * name the MCP servers. `outside` is true if an outside agent drives the run.
 */
export function lineOf(
  step: IStep,
  root: string,
  host: IHost,
  running: boolean,
  settings: Record<string, unknown> = {},
  outside = false
): IStepLine {
  if (step.line) {
    return recorded(step.line);
  }
  const { trans } = host;
  const { calls, thought } = step;
  const first = calls[0];
  const tool = first ? toolOf(first) : 'none';
  const more = calls.length > 1 ? ` ${trans('and %1 more', calls.length - 1)}` : '';
  const { added, removed } = tool === 'edit' ? changedLines(first) : { added: 0, removed: 0 };
  const said = firstSentence(thought || (first ? '' : step.reasoning));
  const unsaid = !said && !first && !step.replied && !step.failures.length;
  return {
    tool,
    thought: unsaid ? trans(running ? (outside ? WORDS.waitingForCall : WORDS.thinking) : WORDS.noReply) : said,
    what: first ? headline(first, root) + more : '',
    added,
    removed,
    chips: chipsOf(step, root, host, settings),
    figures: figuresOf(step)
  };
}

/** Return a recorded line with limited texts and known kinds only, because a record may come from anywhere. */
function recorded(line: IRecordedLine): IStepLine {
  const text = (value: string | undefined) => plainText(shortened(value ?? '', 2 * LIMITS.words));
  const tool = line.tool && (line.tool === 'none' || [...TOOLS.values(), 'other'].includes(line.tool));
  const chips = (line.chips ?? []).slice(0, 2 * LIMITS.failures + LIMITS.files + DECIDED.size + 3);
  return {
    tool: tool ? line.tool! : 'none',
    thought: text(line.thought),
    what: text(line.what),
    added: line.added ?? 0,
    removed: line.removed ?? 0,
    chips: chips.map(chip => ({
      kind: chip.kind === 'bad' || chip.kind === 'human' ? chip.kind : 'plain',
      text: text(chip.text),
      added: chip.added ?? 0,
      removed: chip.removed ?? 0
    })),
    figures: text(line.figures)
  };
}

function figuresOf(step: IStep): string {
  const done = step.replied && step.calls.every(call => call.result);
  return figuresText(stepTokens(step) ?? 0, done ? stepSeconds(step) : null);
}

/** Return tokens and seconds as a line shows them. `seconds` is null while they are not all known. */
export function figuresText(tokens: number, seconds: number | null): string {
  const time = seconds !== null && (seconds || tokens) ? formatDuration(seconds) : '';
  return [tokens ? formatShort(tokens) : '', time].filter(part => part).join(' · ');
}

/** Count the lines that a call changed, or would write if there is no diff. */
function changedLines(call: ICall): { added: number; removed: number } {
  const diffs = (call.result?.changes ?? []).slice(0, LIMITS.changes).flatMap(change => change.diff || []);
  if (diffs.length || call.result?.error || failed(call)) {
    const counts = diffs.map(countLines);
    const sum = (name: 'added' | 'removed') => counts.reduce((all, one) => all + one[name], 0);
    return { added: sum('added'), removed: sum('removed') };
  }
  const { file_text, new_str, old_str } = call.arguments ?? {};
  const lines = (text: unknown) => (typeof text === 'string' && text ? text.replace(/\n$/, '').split('\n').length : 0);
  return { added: lines(file_text) + lines(new_str), removed: lines(old_str) };
}

function chipsOf(step: IStep, root: string, host: IHost, settings: Record<string, unknown>): IChip[] {
  const { trans } = host;
  const chips = step.calls
    .filter(failed)
    .slice(0, LIMITS.failures)
    .map(call => chip(failureText(call, host), 'bad'));
  const decided = new Map(step.calls.flatMap(call => call.decisions.map(one => [decidedHow(one), one.action])));
  for (const [how, action] of decided) {
    const words = DECIDED.get(how);
    if (words) {
      chips.push(chip(trans(words), how === action ? 'human' : 'plain'));
    }
  }
  if (step.failures.length) {
    const last = step.failures[step.failures.length - 1];
    const said = formatModelFailure(last.error, trans) || oneLine(last.message, LIMITS.name);
    chips.push(step.replied ? chip(trans('asked again: %1', said)) : chip(trans('model: %1', said), 'bad'));
  }
  if (step.reduced) {
    chips.push(chip(trans(REDUCED.get(step.reduced.how) ?? '')));
  }
  return [...chips, ...placeChips(step, settings), ...fileChips(step, root, host)];
}

/** Return a chip for each MCP server that the step called, with the server's place. */
function placeChips(step: IStep, settings: Record<string, unknown>): IChip[] {
  const tools = step.calls.filter(call => toolOf(call) === 'other').map(call => call.tool);
  const places = new Set(tools.map(tool => placeOf(settings, tool)).filter(place => place));
  return [...places].slice(0, LIMITS.failures).map(place => chip(oneLine(place, LIMITS.words)));
}

/** Return chips for saved and changed files. If the first call is an edit, the line itself names the edited file. */
function fileChips(step: IStep, root: string, host: IHost): IChip[] {
  const { trans } = host;
  const first = toolOf(step.calls[0]) === 'edit' ? step.calls[0] : null;
  const front = new Set((first?.result?.changes ?? []).slice(0, LIMITS.changes).map(change => change.path));
  const saved = [...new Set(step.artifacts.map(artifact => artifact.path))];
  const chips = saved
    .filter(path => ![...front].some(edit => isSame(edit, path)))
    .map(path => chip(oneLine(path.slice(path.lastIndexOf('/') + 1), LIMITS.name)));
  const changes = step.calls.filter(call => call !== first).flatMap(call => call.result?.changes ?? []);
  const others = changes
    .slice(0, LIMITS.changes)
    .filter(({ path }) => !front.has(path) && !saved.some(artifact => isSame(path, artifact)));
  const rest = chips.length + others.length + Math.max(0, changes.length - LIMITS.changes) - LIMITS.files;
  chips.push(
    ...others.slice(0, Math.max(0, LIMITS.files - chips.length)).map(change => changeChip(change, root, host))
  );
  const shown = chips.slice(0, LIMITS.files);
  return rest > 0 ? [...shown, chip(trans('and %1 more', rest))] : shown;
}

function changeChip(change: IFileDiff, root: string, host: IHost): IChip {
  const name = oneLine(pathBelow(change.path, root), LIMITS.name);
  const counts = change.diff ? countLines(change.diff) : {};
  return { ...chip(change.kind === 'deleted' ? host.trans('%1 deleted', name) : name), ...counts };
}

function chip(text: string, kind: IChip['kind'] = 'plain'): IChip {
  return { kind, text, added: 0, removed: 0 };
}

/** Return true if a changed path is the path of a saved file, whose name begins below the output folder. */
function isSame(path: string, artifact: string): boolean {
  return path === artifact || path.endsWith(`/${artifact}`);
}
