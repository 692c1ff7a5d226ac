/**
 * Connection between the cards and the part of the extension that knows the server. The renderer of outputs is loaded
 * before all plugins, so it waits until that part registers its services here. Without that part, it waits for ever.
 */

import { PromiseDelegate, ReadonlyPartialJSONObject } from '@lumino/coreutils';
import { IArtifactContent, IControls, IDecisions, IHistory, ITimeTravel } from './view/host';

/** Receiver of a run's events. */
export interface ILiveSink {
  /** Take events in the order of their arrival. An event may come twice. */
  add(events: readonly unknown[]): void;
  /** Note that the server knows the run. */
  known(): void;
  /** Note that the server or the kernel is silent; null: events come again. */
  away(reason: 'server' | 'kernel' | null): void;
  /** Note that the run has ended, or that the server does not know it (any more). */
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

/** Function that follows a run: it gives `sink` all past events, then each new one, even after lost connections. */
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

/** Function that looks a run up; null if the server does not know the run. */
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
   * Put the final card of a run that is over into the notebook. If `resumed`, replace even a final card, which may show
   * an earlier end of the run. Rejects if there is no record of the run.
   */
  settle(place: HTMLElement, runId: string, resumed?: boolean): Promise<void>;
}

export const shellOffer = new PromiseDelegate<IShell>();

/** Settings of the person. `runPages`: pages that the model made run without a click in trusted outputs. */
export const settings = { runPages: false };
