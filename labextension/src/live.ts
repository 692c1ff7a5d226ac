/**
 * Connection between the cards and the part of the extension that knows the server. The renderer of outputs is loaded before
 * all plugins, so it waits until the server part registers its services here; without that part, none are registered.
 */

import { PromiseDelegate, ReadonlyPartialJSONObject } from '@lumino/coreutils';
import { IArtifactContent, IControls, IDecisions, IHistory, ITimeTravel } from './view/host';

/** Receiver of a run's events. */
export interface ILiveSink {
  /** Events as they came; known ones may come again. */
  add(events: readonly unknown[]): void;
  /** The server knows the run. */
  known(): void;
  /** The server or the kernel is silent; null when events come again. */
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

/** Follows a run: all past events, then each new one, over any number of lost connections. */
export const liveOffer = new PromiseDelegate<(runId: string, sink: ILiveSink) => ILiveRun>();

/** A run that is over, as the server knows it: its earlier files, and rewinds. */
export interface IPast extends Pick<ILiveRun, 'history' | 'timeTravel'> {
  /** Number of events that the server has. */
  readonly events: number;
  /** True if a kernel of this server executes the run now. */
  readonly live: boolean;
  /** Read the text of the journal as it is now; null if there is none. */
  journal(): Promise<string | null>;
}

/** Looks a run up; null if the server does not know it. */
export const pastOffer = new PromiseDelegate<(runId: string) => Promise<IPast | null>>();

/** A run as an output shows it, to be shown elsewhere. */
export interface IShownRun {
  id: string;
  task: string;
  /** The output's data. */
  data: ReadonlyPartialJSONObject;
  trusted: boolean;
}

/** Key in the metadata of a run that is shown in a tab of its own. */
export const TAB = 'llm-sandbox-tab';

/** Services of the application for the cards in it. */
export interface IShell {
  /** Show a run in a tab of its own; absent where there is one document to a page. `place` is its card. */
  openRun?(run: IShownRun, place: HTMLElement): void;
  /** Stop the sandbox of another notebook that is idle longest, if the person agrees, and run the cell of `place` again. */
  makeRoom(place: HTMLElement): Promise<void>;
  /**
   * Make the card of a run that is over final in the notebook; also one with an earlier end, if `resumed`.
   * Rejects when there is no record of the run.
   */
  settle(place: HTMLElement, runId: string, resumed?: boolean): Promise<void>;
}

export const shellOffer = new PromiseDelegate<IShell>();

/** Settings of the person. `runPages`: pages that the model made run without a click in trusted outputs. */
export const settings = { runPages: false };
