/**
 * Where the cards of runs that go on meet the part of the extension that can follow them at the server.
 * The renderer of outputs is loaded before all plugins, so it waits here until one of them offers the connection.
 */

import { PromiseDelegate } from '@lumino/coreutils';
import { IArtifactContent, IControls, IDecisions, IHistory, ITimeTravel } from './view/host';

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
  readonly decisions?: IDecisions;
  readonly history?: IHistory;
  readonly timeTravel?: ITimeTravel;
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

/** What a run of this session offers when it is over: its earlier files, and going back. */
export interface IPast extends Pick<ILiveRun, 'history' | 'timeTravel'> {
  /** The text of its journal as it is now; null when it cannot be had. */
  journal(): Promise<string | null>;
}

/** What can be done with a run that is over; nothing when the server does not know it. */
export type LookBack = (runId: string) => Promise<IPast | null>;

const offeredPast = new PromiseDelegate<LookBack>();

/** Offer to look back; the first offer counts. */
export function offerPast(lookBack: LookBack): void {
  offeredPast.resolve(lookBack);
}

/** The way to look back, as soon as there is one. */
export function pastOffer(): Promise<LookBack> {
  return offeredPast.promise;
}
