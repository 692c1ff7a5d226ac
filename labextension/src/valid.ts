/**
 * Whether something that came from a notebook, a file or a socket is an event that the view can take.
 * Everything there is untrusted: what does not have the fields and types of its kind is left out by the caller.
 */

import { EVENTS, IEvent, PARTS } from './generated/events';

type Check = (value: unknown) => boolean;

const isObject: Check = value => typeof value === 'object' && value !== null && !Array.isArray(value);
const isEach =
  (check: Check): Check =>
  value =>
    Array.isArray(value) && value.every(check);

/** The check for a type as the generated tables name it. What may be null may be missing. */
function checkOf(type: string): Check {
  if (type.includes(' | ')) {
    const checks = type.split(' | ').map(checkOf);
    return value => checks.some(check => check(value));
  }
  if (type.endsWith('[]')) {
    return isEach(checkOf(type.slice(0, -2)));
  }
  if (type.startsWith('Record<')) {
    return isObject;
  }
  if (type === 'null') {
    return value => value === null || value === undefined;
  }
  if (type === 'Text') {
    return checkOf('string | IBlob');
  }
  return type in PARTS ? fieldsCheck(PARTS[type]) : value => typeof value === type;
}

function fieldsCheck(fields: Record<string, string>): Check {
  const checks = Object.entries(fields).map(([name, type]) => [name, checkOf(type)] as const);
  return value => isObject(value) && checks.every(([name, check]) => check((value as Record<string, unknown>)[name]));
}

/** Fields that may be missing: the view does not read them, or records of earlier versions do not have them. */
const UNREAD: Record<string, string[]> = {
  'run.started': ['schema_version'],
  'model.requested': ['attempt', 'settings'],
  'model.failed': ['attempt'],
  'call.started': ['step'],
  'call.output': ['stream'],
  'call.finished': ['step', 'stdout', 'stderr', 'truncated', 'before', 'after', 'background'],
  'call.decided': ['after'],
  artifact: ['blank'],
  checkpoint: ['duration'],
  'run.finished': ['without_answer', 'check']
};

/** Whether it is the number of a version of records; the first ones have none. */
export function isVersion(value: unknown): boolean {
  return value === undefined || (Number.isInteger(value) && (value as number) >= 1);
}

function readCheck(kind: string): Check {
  const fields = Object.entries(EVENTS[kind]).filter(([name]) => !UNREAD[kind]?.includes(name));
  return fieldsCheck(Object.fromEntries(fields));
}

const COMMON = fieldsCheck({ id: 'string', kind: 'string', time: 'number' });
const KINDS = new Map(Object.keys(EVENTS).map(kind => [kind, readCheck(kind)]));

/** Whether `value` is an event. Kinds that this version does not know are events too: the fold passes over them. */
export function isEvent(value: unknown): value is IEvent {
  return COMMON(value) && (KINDS.get((value as IEvent).kind)?.(value) ?? true);
}
