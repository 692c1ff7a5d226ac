/** One run as the server knows it. */

import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';

import { ApiError, sentence } from './api';

export interface IRunState {
  id: string;
  kernel_id: string;
  notebook: string | null;
  state: 'live' | 'away' | 'lost' | 'finished';
  /** Whether it waits for a person. */
  paused: boolean;
  /** The call at which it waits. */
  held: { step: number } | null;
  events: number;
  created: string;
  /** When its last event came. */
  ended: string | null;
  cell: IRunCell | null;
  /** Its beginning. */
  task: string | null;
  stop_reason: string | null;
  steps: number;
  status: IRunStatus;
}

/** The state of a run, as every view says it. */
export interface IRunStatus {
  state: string;
  words: string;
  meaning: string;
}

/** A run as its journal on the server's disk tells of it. */
export interface INotebookRun extends IRunStatus {
  id: string;
  task: string;
  /** Seconds since the epoch. */
  started: number;
  /** Whether its kernel executes it now. */
  live?: boolean;
  /** Its beginning; null without one. */
  answer: string | null;
  /** Why its result may be wrong, the worst first; absent at an earlier server. */
  doubts?: { line: string }[];
  /** -1 where that is not known. */
  steps: number;
  /** The id of the run that it is a fork of. */
  forked_from: string | null;
  /** Path of its journal below the server's root. */
  journal: string | null;
}

/** The cell that shows a run. */
export interface IRunCell {
  id: string;
  /** The message that asked for the execution. */
  request: string;
  /** The page that asked. */
  client: string;
  /** The number in the cell's prompt. */
  count: number;
}

/** Whether more will come of it. */
export function isLive(run: IRunState): boolean {
  return run.state === 'live' || run.state === 'away';
}

export class RunApi {
  constructor(private _settings: ServerConnection.ISettings) {}

  /** All runs that this server knows, oldest first. */
  async list(): Promise<IRunState[]> {
    return (await this._ask<{ runs: IRunState[] }>(['runs'], {})).runs;
  }

  /** How it stands. Rejects when the server does not know it. */
  run(id: string): Promise<IRunState> {
    return this._ask(['runs', id], {});
  }

  /** Carry a decision to a live run; how it stands then. Rejects with the sentence that says why not. */
  control(id: string, action: string, more: Record<string, unknown>): Promise<IRunState> {
    return this._ask(['runs', id, 'control'], { method: 'POST', body: JSON.stringify({ action, ...more }) });
  }

  /** The newest runs of a notebook, newest first, and how many there are. */
  ofNotebook(path: string): Promise<{ runs: INotebookRun[]; total: number }> {
    return this._ask(['notebook-runs'], {}, { path });
  }

  /** What a notebook keeps of a run that is over: data and metadata of its output. Rejects when there is no record. */
  card(id: string, notebook: string): Promise<{ data: object; metadata: object }> {
    return this._ask(['runs', id, 'card'], {}, { path: notebook });
  }

  private async _ask<T>(route: string[], init: RequestInit, query: Record<string, string> = {}): Promise<T> {
    const base = URLExt.join(this._settings.baseUrl, 'llm-sandbox/api', ...route.map(encodeURIComponent));
    const url = base + URLExt.objectToQueryString(query);
    const response = await ServerConnection.makeRequest(url, init, this._settings);
    if (!response.ok) {
      throw new ApiError(await sentence(response), response.status);
    }
    return (await response.json()) as T;
  }
}
