/**
 * Whether something that came from a notebook, a file or a socket is an event that the view can take.
 * Everything there is untrusted: what does not have the fields and types of its kind is left out by the caller.
 */

import { IEvent } from './view/events';

type Check = (value: unknown) => boolean;

const text: Check = value => typeof value === 'string';
const number: Check = value => typeof value === 'number';
const flag: Check = value => typeof value === 'boolean';
const object: Check = value => typeof value === 'object' && value !== null && !Array.isArray(value);
const strings: Check = value => Array.isArray(value) && value.every(text);
const objects: Check = value => Array.isArray(value) && value.every(object);
const maybe =
  (check: Check): Check =>
  value =>
    value === null || value === undefined || check(value);
const shaped =
  (fields: Record<string, Check>): Check =>
  value =>
    object(value) && fits(value as Record<string, unknown>, fields);

const usage = shaped({
  prompt_tokens: number,
  completion_tokens: number,
  cached_tokens: number,
  reasoning_tokens: number,
  cost: maybe(number)
});
const diff = shaped({ path: text, kind: text, size: number, diff: maybe(text), note: text });
const diffs: Check = value => Array.isArray(value) && value.every(diff);

const forkedFrom = shaped({ run_id: text, folder: text, step: number, event: text });
const rewind = { to: text, step: number, what: text, target: maybe(text), safety: maybe(text) };

/** For each kind the fields that the view uses. */
const FIELDS: Record<string, Record<string, Check>> = {
  'run.started': {
    run_id: text,
    task: text,
    model: text,
    scripted: flag,
    settings: object,
    tools: objects,
    inputs: strings,
    versions: object,
    forked_from: maybe(forkedFrom)
  },
  'sandbox.ready': { sandbox_id: text, protection: object, start_time: number, root: maybe(text) },
  message: { message: object },
  'model.requested': { step: number },
  'model.delta': { step: number, text, reasoning: text },
  'model.failed': { step: number, error: text, message: text, retry_in: maybe(number) },
  'model.replied': {
    step: number,
    message: object,
    reasoning: maybe(text),
    usage: maybe(usage),
    finish_reason: maybe(text),
    model_time: number
  },
  'call.proposed': { step: number, call_id: text, tool: text, raw_arguments: text, arguments: maybe(object) },
  'call.started': { call_id: text, tool: text, arguments: object },
  'call.output': { call_id: text, text },
  'call.finished': {
    call_id: text,
    observation: text,
    error: maybe(text),
    exit_code: maybe(number),
    timed_out: flag,
    duration: number,
    notice: text,
    changes: diffs,
    changes_incomplete: text
  },
  artifact: { step: maybe(number), path: text, mime: text, size: number, sha256: text },
  'artifact.skipped': { reason: text },
  'artifact.removed': { path: text },
  note: { text },
  control: { action: text, text: maybe(text), source: text },
  checkpoint: { step: maybe(number), checkpoint: text, files: number, size: number, incomplete: text },
  'call.held': { step: number, call_id: text, at: text, reason: text, text },
  'call.decided': {
    step: number,
    call_id: text,
    action: text,
    tool: maybe(text),
    arguments: maybe(object),
    observation: maybe(text),
    source: text
  },
  'settings.changed': { model: maybe(text), settings: object, limits: object, halts: object, source: text },
  'rewind.started': rewind,
  rewound: { ...rewind, undo_of: maybe(text) },
  forked: { run_id: text, folder: text, step: number, checkpoint: maybe(text) },
  continued: { source: text },
  'run.finished': {
    stop_reason: text,
    answer: maybe(text),
    error: maybe(text),
    usage,
    steps: number,
    wall_time: number
  }
};

function fits(value: Record<string, unknown>, fields: Record<string, Check>): boolean {
  return Object.keys(fields).every(name => fields[name](value[name]));
}

/** Whether `value` is an event. Kinds that this version does not know are events too: the fold passes over them. */
export function isEvent(value: unknown): value is IEvent {
  if (!object(value)) {
    return false;
  }
  const event = value as Record<string, unknown>;
  if (typeof event.id !== 'string' || typeof event.kind !== 'string' || typeof event.time !== 'number') {
    return false;
  }
  const fields = Object.prototype.hasOwnProperty.call(FIELDS, event.kind) ? FIELDS[event.kind] : {};
  return fits(event, fields);
}
