/** Parser of a run's journal (JSON lines), without DOM. Records of other projects are read by Python, in `formats/`. */

import { IEvent } from './generated/events';
import { isEvent, isVersion } from './valid';

export interface IRecord {
  events: IEvent[];
  /** A sentence that names the unreadable parts; empty if there are none. */
  problem: string;
}

/** Read the events of a journal; null for any other text. An incomplete last line, which a crash left, is left out. */
export function readRecord(text: string): IRecord | null {
  const first = parsed(text.slice(0, text.indexOf('\n') + 1 || undefined));
  if (!isObject(first) || typeof first.kind !== 'string' || !('time' in first)) {
    return null;
  }
  if (!isVersion(first.schema_version)) {
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
