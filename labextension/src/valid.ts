/** Checks of events from a notebook, a file or a socket against the generated table: everything there is untrusted. */

import { IEvent } from './generated/events';
import fieldTypes from './generated/fields.json';

type Check = (value: unknown) => boolean;
type Fields = Record<string, string>;

const PARTS: Record<string, Fields> = fieldTypes.parts;
const EVENTS: Record<string, Fields> = fieldTypes.events;

const isObject: Check = value => typeof value === 'object' && value !== null && !Array.isArray(value);

/** Return the check of a type of the generated table. A field that may be null may be missing. */
function checkOf(type: string): Check {
  if (type.includes(' | ')) {
    const checks = type.split(' | ').map(checkOf);
    return value => checks.some(check => check(value));
  }
  if (type.endsWith('[]')) {
    const check = checkOf(type.slice(0, -2));
    return value => Array.isArray(value) && value.every(check);
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

function fieldsCheck(fields: Fields): Check {
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
  'call.finished': ['step', 'raw_result', 'stdout', 'stderr', 'truncated', 'before', 'after', 'background'],
  'call.decided': ['after'],
  artifact: ['blank'],
  checkpoint: ['duration'],
  'run.finished': ['without_answer', 'check']
};

/** Return true for the version number of a record; the first records have none. */
export function isVersion(value: unknown): boolean {
  return value === undefined || (Number.isInteger(value) && (value as number) >= 1);
}

function readCheck(kind: string): Check {
  const fields = Object.entries(EVENTS[kind]).filter(([name]) => !UNREAD[kind]?.includes(name));
  return fieldsCheck(Object.fromEntries(fields));
}

const COMMON = fieldsCheck({ id: 'string', kind: 'string', time: 'number' });
const KINDS = new Map(Object.keys(EVENTS).map(kind => [kind, readCheck(kind)]));

/** Return true for an event. An event of an unknown kind is one too, because `Trajectory` ignores its content. */
export function isEvent(value: unknown): value is IEvent {
  return COMMON(value) && (KINDS.get((value as IEvent).kind)?.(value) ?? true);
}
