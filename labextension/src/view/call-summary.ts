/** A tool call in a few words: what it did, to which file, and how it ended. Bounded work, whatever the call holds. */

import { lastLine, oneLine, shortened } from './one-line';
import { ICall } from '../trajectory/fold';
import { ICallDecided } from '../generated/events';
import { DECIDED, LIMITS, Tool, TOOLS } from '../generated/words';
import { formatCallFailure } from '../formatting';
import { IHost } from './host';
import { bodyOf, shown } from './observation';
import { plainText } from './dom';

/** Errors of calls that were not begun: a person denied them, or the run ended before. */
const NOT_BEGUN = ['skipped', 'not_executed'];

export function toolOf(call: ICall | undefined): Tool {
  return TOOLS.get(call?.tool ?? '') ?? 'other';
}

/** Return true for a call that failed: an error, its exit code or a time-out. A call that never began did not fail. */
export function failed(call: ICall): boolean {
  const result = call.result;
  return (
    !!result && !NOT_BEGUN.includes(result.error ?? '') && (!!result.error || result.timed_out || !!result.exit_code)
  );
}

/** Return true if a person's decision differs from the model's proposal. */
export function decidedByPerson(call: ICall): boolean {
  return call.decisions.some(one => one.action !== 'run' && decidedHow(one) === one.action);
}

/** Return the action of a person's decision, or else the source of a decision that no person made. */
export function decidedHow(decided: ICallDecided): string {
  return decided.action === 'skip' && DECIDED.has(decided.source) ? decided.source : decided.action;
}

/** Return the call as a person reads it: the command itself, or the editor's arguments. */
export function callText(call: ICall): string {
  const values = call.arguments;
  if (!values) {
    return call.rawArguments;
  }
  if (call.tool === 'execute_bash' && typeof values.command === 'string') {
    return values.command;
  }
  return Object.entries(values)
    .map(([name, value]) => `${name}:${argumentText(value)}`)
    .join('\n');
}

function argumentText(value: unknown): string {
  const text = typeof value === 'string' ? value : JSON.stringify(value);
  return text.includes('\n') ? `\n${text}` : ` ${text}`;
}

/** Return the command without a leading `cd`, the editor's file, or the name and arguments of any other tool. */
export function headline(call: ICall, root: string): string {
  const values = call.arguments ?? {};
  const command = typeof values.command === 'string' ? values.command : '';
  switch (toolOf(call)) {
    case 'bash': {
      const text = shortened(command, 4 * LIMITS.words).replace(/^\s*cd\s+[^\s;&|]+\s*&&\s*/, '');
      return oneLine(text, LIMITS.words, call.rawArguments);
    }
    case 'edit': {
      const path = pathBelow(typeof values.path === 'string' ? values.path : '', root);
      return oneLine(command === 'view' ? `view ${path}` : path, LIMITS.words, call.rawArguments);
    }
    case 'submit':
      return 'submit';
    case 'other': {
      const given = Object.entries(values).slice(0, LIMITS.arguments);
      const told = given.map(([name, value]) => `${name}: ${shortValue(value)}`).join('; ');
      const raw = shortened(call.rawArguments, LIMITS.words);
      return oneLine(`${call.tool} ${call.arguments ? told : raw}`, LIMITS.words, call.rawArguments);
    }
  }
}

function shortValue(value: unknown): string {
  return shortened(typeof value === 'string' ? value : (JSON.stringify(value) ?? ''), LIMITS.words);
}

/** Return a path without the folder in which the run works. */
export function pathBelow(path: string, root: string): string {
  return root && path.startsWith(`${root}/`) ? path.slice(root.length + 1) : path;
}

/** Count the lines that a unified diff adds and removes. Of a long diff, count only the first part. */
export function countLines(diff: string): { added: number; removed: number } {
  let [added, removed] = [0, 0];
  for (const line of diff.slice(0, LIMITS.diff).split('\n')) {
    if (line.startsWith('+') && !line.startsWith('+++')) {
      added++;
    } else if (line.startsWith('-') && !line.startsWith('---')) {
      removed++;
    }
  }
  return { added, removed };
}

/** Describe the end of a failed call: the last line of its output, or the reason of its refusal. */
export function failureText(call: ICall, host: IHost): string {
  const result = call.result!;
  const refused = !!result.error && !result.timed_out && !['interrupted', 'cut_short'].includes(result.error);
  const streams = lastLine(shown(result.stderr)) || lastLine(shown(result.stdout));
  const said = streams || (refused ? lastLine(bodyOf(result)).replace(/^Error: /, '') : '');
  return said ? `${endingOf(call, host)} · ${said}` : endingOf(call, host);
}

/** Describe the end of a call in a few words. */
export function endingOf(call: ICall, host: IHost): string {
  const { trans } = host;
  const result = call.result!;
  if (result.timed_out) {
    return trans('Timed out');
  }
  if (result.error) {
    return oneLine(formatCallFailure(plainText(result.error), trans), LIMITS.name);
  }
  return result.exit_code === null ? trans('done') : trans('exit %1', result.exit_code);
}
