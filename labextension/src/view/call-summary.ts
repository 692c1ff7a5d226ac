/** A tool call in a few words: what it did, to which file, and how it ended. Bounded work, whatever the call holds. */

import { oneLine } from './one-line';
import { ICall } from './fold';
import { formatCallFailure } from '../formatting';
import { IHost } from './host';
import { streamsOf } from './observation';

/** Which colour and sign a call has. */
export type Tool = 'bash' | 'edit' | 'submit' | 'other';

const TOOLS = new Map<string, Tool>([
  ['execute_bash', 'bash'],
  ['str_replace_editor', 'edit'],
  ['submit', 'submit'],
  ['finish', 'submit']
]);

/** Characters looked at of a diff to count its lines, and of an output to find its last line. */
const DIFF_READ = 64 * 1024;
const TAIL_READ = 4000;
const WORDS = 160;

export function toolOf(call: ICall | undefined): Tool {
  return TOOLS.get(call?.tool ?? '') ?? 'other';
}

/** Whether a call went wrong: of itself, by its exit code, or by the clock. */
export function failed(call: ICall): boolean {
  const result = call.result;
  return !!result && (!!result.error || result.timed_out || !!result.exit_code);
}

/** Whether a person decided something else than what the model proposed. */
export function decidedByPerson(call: ICall): boolean {
  return call.decisions.some(one => one.action !== 'run');
}

/** What a person reads as the call: the command itself, or the editor's arguments. */
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

/** The command without the folder it changes to, or the editor's file; of any other tool its name and arguments. */
export function headline(call: ICall, root: string): string {
  const values = call.arguments ?? {};
  const command = typeof values.command === 'string' ? values.command : '';
  switch (toolOf(call)) {
    case 'bash':
      return oneLine(command.slice(0, 4 * WORDS).replace(/^\s*cd\s+[^\s;&|]+\s*&&\s*/, ''), WORDS, call.rawArguments);
    case 'edit': {
      const path = pathBelow(typeof values.path === 'string' ? values.path : '', root);
      return oneLine(command === 'view' ? `view ${path}` : path, WORDS, call.rawArguments);
    }
    case 'submit':
      return 'submit';
    case 'other':
      return oneLine(`${call.tool} ${callText(call).slice(0, 4 * WORDS)}`, WORDS);
  }
}

/** A path without the folder in which the run works. */
export function pathBelow(path: string, root: string): string {
  return root && path.startsWith(`${root}/`) ? path.slice(root.length + 1) : path;
}

/** Lines that a unified diff adds and removes, of its first part when it is long. */
export function countLines(diff: string): { added: number; removed: number } {
  let [added, removed] = [0, 0];
  for (const line of diff.slice(0, DIFF_READ).split('\n')) {
    if (line.startsWith('+') && !line.startsWith('+++')) {
      added++;
    } else if (line.startsWith('-') && !line.startsWith('---')) {
      removed++;
    }
  }
  return { added, removed };
}

/** How a call that went wrong ended: its exit code and the last line of what it wrote. */
export function failureText(call: ICall, host: IHost): string {
  const { trans } = host;
  const result = call.result!;
  const { stdout, stderr } = streamsOf(call);
  const said =
    toolOf(call) === 'edit' ? lastLine(stdout).replace(/^Error: /, '') : lastLine(stderr) || lastLine(stdout);
  const how = result.timed_out
    ? trans('Timed out')
    : result.error
      ? formatCallFailure(result.error, trans)
      : trans('exit %1', result.exit_code ?? 0);
  return said && result.error !== 'skipped' ? `${how} · ${said}` : how;
}

function lastLine(text: string): string {
  const lines = text.slice(-TAIL_READ).split('\n').reverse();
  return oneLine(lines.find(line => line.trim()) ?? '', 100);
}
