/**
 * What a call wrote, apart from what is said around it for the model: its two streams, and notes. The record of a card holds
 * only the observation, so that the streams are read out of it where the record has no streams.
 */

import { ICall } from './fold';
import { Text } from '../generated/events';

export interface IStreams {
  stdout: string;
  stderr: string;
  /** What jobs in the background wrote meanwhile. */
  background: string;
  /** Sentences about the call that are no output of it. */
  notes: string[];
}

/** What the loop adds at the end of the newest message. */
const COUNTER = /\n*\[Steps remaining: -?\d+\](?:\n[^\n]*)?\s*$/;
const ENDING = /^(?:Exit code: -?\d+|Timed out after [^\n]*|Interrupted by [^\n]*)(?:\n|$)/;
const SECTION = /^\[(stdout|stderr|output of background jobs since the last call)\]$/;
const NOTICE = /^\[([^\n]*)\]$/;

/** The streams of a call that has a result, or of the part of it that has come so far. */
export function streamsOf(call: ICall): IStreams {
  const { result } = call;
  if (!result) {
    return { stdout: call.liveOutput, stderr: '', background: '', notes: [] };
  }
  const text = withoutCounter(result.observation);
  if (call.decisions.some(one => one.action === 'observe' || one.action === 'skip')) {
    return { stdout: text, stderr: '', background: '', notes: [] };
  }
  const read = parse(text);
  const [stdout, stderr] = [whole(result.stdout), whole(result.stderr)];
  return { ...read, ...((stdout || stderr) && { stdout: stdout ?? read.stdout, stderr: stderr ?? read.stderr }) };
}

/** An observation without the number of steps that remain. */
export function withoutCounter(observation: string): string {
  const end = observation.slice(-400);
  const counter = COUNTER.exec(end);
  return counter ? observation.slice(0, observation.length - end.length + counter.index) : observation;
}

/** A stream that the record holds; none when it does not, or only the beginning. */
function whole(text: Text | undefined): string | null {
  return typeof text === 'string' ? text : null;
}

function parse(text: string): IStreams {
  const streams: IStreams = { stdout: '', stderr: '', background: '', notes: [] };
  const ending = ENDING.exec(text);
  if (!ending) {
    streams.stdout = text;
    return streams;
  }
  if (!ending[0].startsWith('Exit code')) {
    streams.notes.push(ending[0].trim());
  }
  const lines = text.slice(ending[0].length).split('\n');
  const places = [lines.indexOf('[stdout]'), lines.lastIndexOf('[stderr]')].filter(place => place >= 0);
  const first = lines.findIndex(line => SECTION.test(line));
  const background = first >= 0 && !places.includes(first) ? [first] : [];
  const starts = [...background, ...places].sort((one, other) => one - other);
  for (const line of lines.slice(0, starts[0] ?? lines.length)) {
    const notice = NOTICE.exec(line);
    if (notice) {
      streams.notes.push(notice[1]);
    }
  }
  starts.forEach((start, index) => {
    const body = lines.slice(start + 1, starts[index + 1] ?? lines.length).join('\n');
    const name = SECTION.exec(lines[start])![1];
    streams[name === 'stdout' || name === 'stderr' ? name : 'background'] = body;
  });
  return streams;
}
