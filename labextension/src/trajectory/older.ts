/**
 * Upgrade of events of earlier versions: a value that they have only inside a text becomes the field that later
 * versions write. Twin of `trajectory/older.py`, for notebooks and journals that Python does not read again.
 */

import { IEvent } from '../generated/events';

const AFTER = /\n\n\[Steps remaining: -?\d+\](?:\n[^\n]*)?$/;
const BEFORE = /^\[A person changed this call before it was executed\.[^\n]*\]\n\n/;
/** Number of characters, at the end of a text, that are searched for the remaining steps. */
const END_CHARACTERS = 2000;

/** Return the event with the fields that this version writes. An event that has these fields is returned unchanged. */
export function upgraded(event: IEvent): IEvent {
  if (event.kind === 'call.finished' && event.after === undefined) {
    const before = BEFORE.exec(event.observation)?.[0] ?? '';
    return { ...event, before, after: stepsRemaining(event.observation) };
  }
  if (event.kind === 'call.decided' && event.after === undefined && typeof event.observation === 'string') {
    return { ...event, after: stepsRemaining(event.observation) };
  }
  return event;
}

function stepsRemaining(observation: string): string {
  return AFTER.exec(observation.slice(-END_CHARACTERS))?.[0] ?? '';
}
