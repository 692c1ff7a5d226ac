/** Files that hold a run: our journal (JSON lines) and the `trajectory.json` of the LLM-in-Sandbox paper. No DOM here. */

import { IEvent } from './generated/events';
import { isEvent, isVersion } from './valid';

export interface IRecord {
  events: IEvent[];
  /** What could not be read, in one sentence; empty when all of it could. */
  problem: string;
}

/** The events of a file, whichever of the two forms it has; null when it is something else. */
export function readRecord(text: string): IRecord | null {
  const whole = withSteps(parsed(text));
  if (isSeed(whole)) {
    return { events: seedEvents(whole), problem: '' };
  }
  return looksLikeJournal(text) ? readJournal(text) : null;
}

/** The events of a journal. A last line that a crash cut short is left out without a word, as everywhere. */
export function readJournal(text: string): IRecord {
  const first = parsed(text.slice(0, text.indexOf('\n') + 1 || undefined));
  if (isObject(first) && !isVersion(first.schema_version)) {
    return { events: [], problem: `${JSON.stringify(first.schema_version)} is not the number of a version.` };
  }
  const events: IEvent[] = [];
  const bad: number[] = [];
  const lines = text.split('\n');
  lines.forEach((line, index) => {
    if (!line.trim()) {
      return;
    }
    const value = parsed(line);
    if (isEvent(value)) {
      events.push(value);
    } else if (index < lines.length - 1) {
      bad.push(index + 1);
    }
  });
  return { events, problem: bad.length ? describeBad(bad) : '' };
}

function describeBad(lines: number[]): string {
  const shown = lines.slice(0, 5).join(', ') + (lines.length > 5 ? ', …' : '');
  return lines.length === 1
    ? `Line ${shown} is not an event and is left out.`
    : `${lines.length} lines are not events and are left out (${shown}).`;
}

function looksLikeJournal(text: string): boolean {
  const first = parsed(text.slice(0, text.indexOf('\n') + 1 || undefined));
  return isObject(first) && typeof first.kind === 'string' && 'time' in first;
}

interface ISeedRecord {
  thought?: unknown;
  reasoning_content?: unknown;
  action?: { function?: unknown; parameters?: unknown };
  observation?: unknown;
  metadata?: { exec_time?: unknown };
}

interface ISeed {
  problem_statement: string;
  steps: ISeedRecord[];
  agent_answer?: unknown;
}

/** The paper's benchmark calls the records `trajectory`. */
function withSteps(value: unknown): unknown {
  return isObject(value) && !('steps' in value) ? { ...value, steps: value.trajectory } : value;
}

/** Whether `value` is a trajectory in the paper's form. */
export function isSeed(value: unknown): value is ISeed {
  return (
    isObject(value) &&
    typeof value.problem_statement === 'string' &&
    Array.isArray(value.steps) &&
    value.steps.every(step => isObject(step) && isObject(step.action) && 'observation' in step)
  );
}

/** The events that tell what a trajectory in the paper's form tells; what that form lacks stays empty. */
export function seedEvents(seed: ISeed): IEvent[] {
  const log = new EventLog();
  log.add({
    kind: 'run.started',
    schema_version: 1,
    run_id: '',
    task: seed.problem_statement,
    model: '',
    scripted: false,
    settings: {},
    tools: [],
    inputs: [],
    versions: {},
    forked_from: null
  });
  log.add({ kind: 'message', message: { role: 'user', content: seed.problem_statement } });
  seed.steps.forEach((record, index) => addStep(log, index + 1, record));
  const last = seed.steps[seed.steps.length - 1]?.action?.function;
  if (last === 'submit' || last === 'finish') {
    addEnd(log, seed.steps.length, text(seed.agent_answer) || null);
  }
  return log.events;
}

function addStep(log: EventLog, step: number, record: ISeedRecord): void {
  const tool = text(record.action?.function);
  const parameters = record.action?.parameters;
  const values = isObject(parameters) ? parameters : {};
  const raw = JSON.stringify(values);
  const call_id = `call_${step}`;
  const calls = tool ? [{ id: call_id, type: 'function', function: { name: tool, arguments: raw } }] : null;
  log.add({
    kind: 'model.replied',
    step,
    message: { role: 'assistant', content: text(record.thought), ...(calls ? { tool_calls: calls } : {}) },
    reasoning: text(record.reasoning_content) || null,
    usage: null,
    finish_reason: null,
    model_time: Number(record.metadata?.exec_time) || 0,
    response_id: null,
    response_model: null,
    context_window: null,
    calls_from: null,
    raw_text: null
  });
  if (!tool) {
    log.add({ kind: 'message', message: { role: 'user', content: text(record.observation) } });
    return;
  }
  const observation = text(record.observation);
  log.add({ kind: 'call.proposed', step, call_id, tool, raw_arguments: raw, arguments: values });
  log.add({ kind: 'call.started', step, call_id, tool, arguments: values });
  log.add({
    kind: 'call.finished',
    step,
    call_id,
    observation,
    error: null,
    exit_code: null,
    timed_out: false,
    stdout: '',
    stderr: '',
    truncated: false,
    duration: 0,
    notice: '',
    changes: [],
    changes_incomplete: '',
    before: '',
    after: '',
    background: '',
    ...seedOutcome(tool, observation)
  });
}

const EXIT = /^\s*Exit code: *(?:Error: Exit code *)?(-?\d+)[^\n]*\n?/;
const LABEL = /^Execution output of \\?\[[^\]\n]*\]:\n?/;
const STREAMS = /^\\?\[STDOUT\]\n([^]*?)(?:\n?\\?\[STDERR\]\n([^]*))?$/;
const REFUSED = /^\s*(?:ERROR\b|Error\b[:!]?|Unknown command:)/;
const TOO_LONG = 'The command took too long';

interface ISeedOutcome {
  exit_code?: number;
  timed_out?: boolean;
  error?: string;
  stdout?: string;
  stderr?: string;
}

/** How a call ended, as far as its observation tells: the package has no other place for it. As `formats/` in Python. */
export function seedOutcome(tool: string, observation: string): ISeedOutcome {
  const found = EXIT.exec(observation);
  const rest = observation.slice(found?.[0].length ?? 0).replace(LABEL, '');
  if (!found) {
    const shell = tool === 'execute_bash' || tool === 'bash';
    return REFUSED.test(rest) ? { error: shell ? 'failed' : 'editor' } : {};
  }
  const streams = STREAMS.exec(rest);
  const facts: ISeedOutcome = { stdout: streams ? streams[1] : rest, stderr: streams?.[2] ?? '' };
  const code = Number(found[1]);
  if (code >= 0) {
    return { ...facts, exit_code: code };
  }
  return (facts.stdout ?? '').slice(0, 200).includes(TOO_LONG)
    ? { ...facts, timed_out: true }
    : { ...facts, error: 'failed' };
}

function addEnd(log: EventLog, steps: number, answer: string | null): void {
  const usage = {
    prompt_tokens: 0,
    completion_tokens: 0,
    cached_tokens: 0,
    reasoning_tokens: 0,
    cost: null
  };
  log.add({
    kind: 'run.finished',
    stop_reason: 'submitted',
    answer,
    error: null,
    usage,
    steps,
    wall_time: 0,
    without_answer: false,
    check: null
  });
}

type Unnumbered<T> = T extends IEvent ? Omit<T, 'id' | 'parent' | 'time'> : never;

/** Gives events the ids and parents that their source does not have. */
class EventLog {
  readonly events: IEvent[] = [];

  add(event: Unnumbered<IEvent>): void {
    const count = this.events.length;
    const place = { id: `seed-${count}`, parent: count ? `seed-${count - 1}` : null, time: 0 };
    this.events.push({ ...place, ...event });
  }
}

function parsed(source: string): unknown {
  try {
    return JSON.parse(source);
  } catch {
    return undefined;
  }
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function text(value: unknown): string {
  return typeof value === 'string' ? value : value === null || value === undefined ? '' : JSON.stringify(value);
}
