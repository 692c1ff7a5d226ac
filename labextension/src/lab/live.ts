/** A live run at the Jupyter server: events from the run, and decisions to the run. */

import { ILiveRun, ILiveSink } from '../live';
import type { IArtifactContent, IControls, IDecisions, IHistory, ITimeTravel } from '../view/host';
import { EventSocket } from './event-socket';
import { RunApi, RunHistory } from './run-api';
import { ApiError } from './server';

export class LiveRun implements ILiveRun {
  readonly controls: IControls;
  readonly decisions: IDecisions;
  readonly history: IHistory;
  private _socket: EventSocket;

  constructor(
    private _api: RunApi,
    private _runId: string,
    sink: ILiveSink,
    readonly timeTravel: ITimeTravel
  ) {
    const send = async (action: string, more: Record<string, unknown> = {}) =>
      void (await _api.control(_runId, action, more));
    this.controls = {
      stop: () => send('stop'),
      pause: () => send('pause'),
      resume: () => send('resume'),
      say: text => send('say', { text })
    };
    this.decisions = {
      continue: call_id => send('resume', { call_id }),
      step: call_id => send('step', { call_id }),
      edit: (call_id, changes) => send('edit', { call_id, changes }),
      skip: (call_id, text) => send('skip', { call_id, text }),
      observe: (call_id, text) => send('observe', { call_id, text }),
      change: changed => send('change', { ...changed })
    };
    this.history = new RunHistory(_api.settings, _runId);
    this._socket = new EventSocket(_api, _runId, sink);
  }

  /** Read a file that the model has left so far; null if it is missing, or if the run's kernel is away. */
  async artifact(path: string): Promise<IArtifactContent | null> {
    try {
      return { data: await this._api.file(this._runId, path), mime: 'application/octet-stream' };
    } catch (error) {
      if (error instanceof ApiError) {
        return null;
      }
      throw error;
    }
  }

  /** Stop watching; the run continues. */
  dispose(): void {
    this._socket.dispose();
  }
}
