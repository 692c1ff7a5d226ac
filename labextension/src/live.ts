/**
 * Where the cards of runs that go on meet the part of the extension that can follow them at the server.
 * The renderer of outputs is loaded before all plugins, so it waits here until one of them offers the connection.
 */

import { PromiseDelegate, ReadonlyPartialJSONObject } from '@lumino/coreutils';
import { IArtifactContent, IControls, IDecisions, IHistory, ITimeTravel } from './view/host';

/** Takes the events of a run. */
export interface ILiveSink {
  /** Events, new or known already: those known are passed over by the sink. */
  add(events: readonly unknown[]): void;
  /** The server knows the run. */
  known(): void;
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

/** What a run of this session offers when it is over: its earlier files, and rewinds. */
export interface IPast extends Pick<ILiveRun, 'history' | 'timeTravel'> {
  /** How many events the server has of it. */
  readonly events: number;
  /** Whether a kernel of this server executes it now. */
  readonly live: boolean;
  /** The text of its journal as it is now; null when there is none. */
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

/** A run as an output shows it, to be shown elsewhere. */
export interface IShownRun {
  id: string;
  task: string;
  /** The output's data. */
  data: ReadonlyPartialJSONObject;
  trusted: boolean;
}

/** In the metadata of a run that is shown in a tab of its own. */
export const TAB = 'llm-sandbox-tab';

/** What the application around the cards can do for them. */
export interface IShell {
  /** Show a run in a tab of its own; absent where there is one document to a page. `place` is its card. */
  openRun?(run: IShownRun, place: HTMLElement): void;
  /** Stop the sandbox of another notebook that is idle longest, if the person agrees, and run the cell of `place` again. */
  makeRoom(place: HTMLElement): Promise<void>;
  /** Make the card of a run that is over final in the notebook. Rejects when there is no record of the run. */
  settle(place: HTMLElement, runId: string): Promise<void>;
}

const offeredShell = new PromiseDelegate<IShell>();

/** Offer what the application can do; the first offer counts. */
export function offerShell(shell: IShell): void {
  offeredShell.resolve(shell);
}

/** What the application can do, as soon as it is known. */
export function shellOffer(): Promise<IShell> {
  return offeredShell.promise;
}

let runPages = false;

/** Whether pages that the model made run without a click in trusted outputs: a setting of the person. */
export function pagesRun(): boolean {
  return runPages;
}

/** Set it, from now on. */
export function setPagesRun(value: boolean): void {
  runPages = value;
}
