/**
 * Where the cards of runs that go on meet the part of the extension that can follow them at the server.
 * The renderer of outputs is loaded before all plugins, so it waits here until one of them offers the connection.
 */

import { PromiseDelegate } from '@lumino/coreutils';
import { IArtifactContent, IControls } from './view/host';

/** Takes what comes of a run. */
export interface ILiveSink {
  /** Events, new or known already: those known are passed over by the sink. */
  add(events: readonly unknown[]): void;
  /** Why nothing comes at this moment, in words; null when it does again. */
  away(reason: 'server' | 'kernel' | null): void;
  /** The run has ended, or the server does not know it (any more). */
  ended(): void;
}

/** A run that is followed. */
export interface ILiveRun {
  readonly controls: IControls;
  artifact(path: string): Promise<IArtifactContent | null>;
  dispose(): void;
}

/** Follow a run: all past events, then each new one, over any number of lost connections. */
export type Follow = (runId: string, sink: ILiveSink) => ILiveRun;

const offered = new PromiseDelegate<Follow>();

/** Offer the connection; the first offer counts. */
export function offerLive(follow: Follow): void {
  offered.resolve(follow);
}

/** The connection, as soon as there is one; never when there is no server part. */
export function liveOffer(): Promise<Follow> {
  return offered.promise;
}
