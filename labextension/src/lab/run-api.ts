/** Runs at the server: their states, their journals, their earlier files, and decisions about them. */

import { ServerConnection } from '@jupyterlab/services';

import type { IFileChanges, IHistory, IOldFolder } from '../view/host';
import { ServerApi } from './server';

export interface IRunState {
  id: string;
  kernel_id: string;
  notebook: string | null;
  state: 'live' | 'away' | 'lost' | 'finished';
  /** True if the run waits for a person. */
  paused: boolean;
  /** The call at which the run waits; null if no call waits. */
  held: { step: number } | null;
  events: number;
  created: string;
  /** Time of the last event. */
  ended: string | null;
  cell: IRunCell | null;
  /** The beginning of the task. */
  task: string | null;
  stop_reason: string | null;
  steps: number;
  status: IRunStatus;
}

/** The state of a run: its name, its words for people, and its meaning, which decides the colour. */
export interface IRunStatus {
  state: string;
  words: string;
  meaning: string;
}

/** A run as read from its journal on the server's disk. */
export interface INotebookRun extends IRunStatus {
  id: string;
  task: string;
  /** Seconds since the epoch. */
  started: number;
  /** True if a kernel executes the run now. */
  live?: boolean;
  /** The beginning of the answer; null without an answer. */
  answer: string | null;
  /** Reasons to doubt the result, the worst first; absent at an earlier server. */
  doubts?: { line: string }[];
  /** Number of steps; -1 if unknown. */
  steps: number;
  /** Id of the parent run. */
  forked_from: string | null;
  /** Path of its journal below the server's root. */
  journal: string | null;
}

/** The cell that shows a run. */
export interface IRunCell {
  id: string;
  /** Id of the message that asked for the execution. */
  request: string;
  /** Session id of the page that asked for the execution. */
  client: string;
  /** The number in the cell's prompt. */
  count: number;
}

/** Return true if more events may come. */
export function isLive(run: IRunState): boolean {
  return run.state === 'live' || run.state === 'away';
}

export class RunApi extends ServerApi {
  /** List all runs that this server knows, oldest first. */
  async list(): Promise<IRunState[]> {
    return (await this.json<{ runs: IRunState[] }>(['runs'])).runs;
  }

  /** Read the state of a run. Rejects if the server does not know the run. */
  run(id: string): Promise<IRunState> {
    return this.json(['runs', id]);
  }

  /** Send a decision to a live run. Rejects with a sentence if the decision was refused. */
  control(id: string, action: string, more: Record<string, unknown> = {}): Promise<IRunState> {
    return this.json(['runs', id, 'control'], {}, { method: 'POST', body: JSON.stringify({ action, ...more }) });
  }

  /** Read a file that a live run has left so far. */
  file(id: string, path: string): Promise<Uint8Array> {
    return this.bytes(['runs', id, 'files', 'content'], { path });
  }

  /** List the newest runs of a notebook, newest first, with the number of all. */
  ofNotebook(path: string): Promise<{ runs: INotebookRun[]; total: number }> {
    return this.json(['notebook-runs'], { path });
  }

  /** Read the final output of a run for its notebook: data and metadata. Rejects if there is no record. */
  card(id: string, notebook: string): Promise<{ data: object; metadata: object }> {
    return this.json(['runs', id, 'card'], { path: notebook });
  }
}

/** The files of a run's earlier steps, as the server reads them from the run's history. */
export class RunHistory extends ServerApi implements IHistory {
  constructor(
    settings: ServerConnection.ISettings,
    private _runId: string
  ) {
    super(settings);
  }

  files(checkpoint: string, path: string): Promise<IOldFolder> {
    return this.json(this._route(checkpoint, 'files'), path ? { path } : {});
  }

  read(checkpoint: string, path: string): Promise<Uint8Array> {
    return this.bytes(this._route(checkpoint, 'files', 'content'), { path });
  }

  changes(from: string, to: string): Promise<IFileChanges> {
    return this.json(this._route(to, 'changes'), { since: from });
  }

  diff(from: string, to: string, path: string): Promise<{ diff: string | null; note: string }> {
    return this.json(this._route(to, 'diff'), { since: from, path });
  }

  /** Read the run's record as it is now; null if the server does not have it. */
  journal(): Promise<string | null> {
    return this.request(this._route('journal'))
      .then(response => response.text())
      .catch(() => null);
  }

  private _route(...parts: string[]): string[] {
    return ['runs', this._runId, 'history', ...parts];
  }
}
