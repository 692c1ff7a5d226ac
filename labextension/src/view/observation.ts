/** The output of a call: stdout, stderr, and jobs in the background, without the words that the loop adds. */

import { ICall } from '../trajectory/fold';
import { ICallFinished, Text } from '../generated/events';

export interface IStreams {
  stdout: string;
  stderr: string;
  /** Output of jobs in the background. */
  background: string;
}

/** Return the streams of a call, or, while it has no result, the output that has come so far. */
export function streamsOf(call: ICall): IStreams {
  const { result } = call;
  if (!result) {
    return { stdout: call.liveOutput, stderr: '', background: '' };
  }
  const decided = call.decisions.some(one => one.action === 'observe' || one.action === 'skip');
  const [stdout, stderr, background] = [shown(result.stdout), shown(result.stderr), shown(result.background)];
  const unsaid = !stdout && !stderr && (result.error || result.exit_code === null);
  if (decided || unsaid || result.stdout === undefined) {
    return { stdout: bodyOf(result), stderr: '', background };
  }
  return { stdout, stderr, background };
}

/** Return the tool's output without the words of the loop. Records of earlier versions do not separate the two. */
export function bodyOf({ observation, before, after }: ICallFinished): string {
  const start = before && observation.startsWith(before) ? before.length : 0;
  const end = after && observation.slice(start).endsWith(after) ? after.length : 0;
  return observation.slice(start, observation.length - end);
}

/** Return a stream, or of a large one the part in the journal. Records of earlier versions may lack streams. */
export function shown(text: Text | undefined): string {
  return typeof text === 'string' ? text : (text?.preview ?? '');
}
