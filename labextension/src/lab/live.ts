/** A live run, as the Jupyter server tells it: all past events, then what comes, each once; and decisions back to it. */

import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';

import type { IEvent } from '../generated/events';
import { LiveTail } from '../trajectory/live-tail';
import type { IArtifactContent, IControls, IDecisions, IHistory, ITimeTravel } from '../view/host';
import { RunHistory } from './history';

/**
 * `live`: it is running. `away`: its kernel is not connected at this moment. `lost`: the kernel has not come back.
 * `finished`: its last event was given. `offline`: the server does not answer; it is asked again and again.
 * `unknown`: the server knows no such run, and nothing more will come.
 */
export type RunState = 'live' | 'away' | 'lost' | 'finished' | 'offline' | 'unknown';

/** Below the server's base URL. */
const API = 'llm-sandbox/api/runs';
const UNKNOWN = 4404;
const BROKEN = 4400;
const RETRY_FIRST = 200;
const RETRY_MOST = 5000;

/** What the server says: events up to number `next`, or a state. */
interface IMessage {
  type: string;
  next: number;
  events: IEvent[];
  state: RunState;
}

/** Watches one run. Connect once; `dispose` when nobody looks any more. */
export class LiveRun {
  readonly controls: IControls;
  readonly decisions: IDecisions;
  readonly history: IHistory;
  readonly runId: string;
  private _settings: ServerConnection.ISettings;
  private _socket: WebSocket | null = null;
  private _next = 0;
  private _tail = new LiveTail();
  private _retry = RETRY_FIRST;
  private _timer: ReturnType<typeof setTimeout> | null = null;
  private _over = false;
  private _state: RunState | null = null;
  private _onEvents: (events: IEvent[]) => void = () => undefined;
  private _onState: (state: RunState) => void = () => undefined;

  constructor(
    settings: ServerConnection.ISettings,
    runId: string,
    readonly timeTravel?: ITimeTravel
  ) {
    this._settings = settings;
    this.runId = runId;
    this.controls = {
      stop: () => this._control('stop'),
      pause: () => this._control('pause'),
      resume: () => this._control('resume'),
      say: text => this._control('say', { text })
    };
    this.decisions = {
      continue: call_id => this._control('resume', { call_id }),
      step: call_id => this._control('step', { call_id }),
      edit: (call_id, values) => this._control('edit', { call_id, arguments: values }),
      skip: (call_id, text) => this._control('skip', { call_id, text }),
      observe: (call_id, text) => this._control('observe', { call_id, text }),
      change: changed => this._control('change', { ...changed })
    };
    this.history = new RunHistory(settings, runId);
  }

  /** How it stands; null until the server has said so. */
  get state(): RunState | null {
    return this._state;
  }

  /** Begin. `onEvents` gets every event once and in order, `onState` each change of state. */
  connect(onEvents: (events: IEvent[]) => void, onState: (state: RunState) => void): void {
    this._onEvents = onEvents;
    this._onState = onState;
    this._open();
  }

  /** A file that the model left so far; null when there is none, or the run's kernel is away. */
  async artifact(path: string): Promise<IArtifactContent | null> {
    const query = URLExt.objectToQueryString({ path });
    const response = await ServerConnection.makeRequest(this._url('files/content') + query, {}, this._settings);
    if (!response.ok) {
      return null;
    }
    return { data: new Uint8Array(await response.arrayBuffer()), mime: 'application/octet-stream' };
  }

  /** Stop watching; the run continues. */
  dispose(): void {
    this._over = true;
    if (this._timer !== null) {
      clearTimeout(this._timer);
      this._timer = null;
    }
    const socket = this._socket;
    this._socket = null;
    socket?.close();
  }

  private _url(rest = ''): string {
    return URLExt.join(this._settings.baseUrl, API, encodeURIComponent(this.runId), rest);
  }

  private _open(): void {
    this._timer = null;
    if (this._over) {
      return;
    }
    const { wsUrl, token, appendToken, WebSocket } = this._settings;
    const url = URLExt.join(wsUrl, API, encodeURIComponent(this.runId), 'events');
    const query: Record<string, string> = { since: String(this._next) };
    if (appendToken && token) {
      query.token = token;
    }
    const socket = new WebSocket(url + URLExt.objectToQueryString(query));
    this._socket = socket;
    let answered = false;
    socket.onopen = () => {
      answered = true;
    };
    socket.onmessage = message => {
      if (socket === this._socket) {
        this._take(JSON.parse(message.data as string) as IMessage);
      }
    };
    socket.onclose = event => {
      if (socket === this._socket) {
        this._socket = null;
        if (answered) {
          this._closed(event.code);
        } else {
          void this._refused().then(refused => this._closed(refused ? UNKNOWN : event.code));
        }
      }
    };
  }

  private _take(message: IMessage): void {
    this._retry = RETRY_FIRST;
    if (message.type === 'state') {
      this._tell(message.state);
      return;
    }
    if (message.type !== 'events') {
      return;
    }
    const fresh: IEvent[] = [];
    for (const event of message.events) {
      const piece = this._tail.take(event);
      if (piece) {
        fresh.push(piece);
      }
    }
    this._next = message.next;
    if (fresh.length) {
      this._onEvents(fresh);
    }
  }

  /** Whether the server answers and has no such thing as runs, or none for us: asking again is of no use. */
  private async _refused(): Promise<boolean> {
    try {
      const response = await ServerConnection.makeRequest(URLExt.join(this._settings.baseUrl, API), {}, this._settings);
      return response.status === 403 || response.status === 404;
    } catch {
      return false; // It does not answer.
    }
  }

  private _closed(code: number): void {
    if (this._over) {
      return;
    }
    if (this._state === 'finished') {
      this._over = true;
    } else if (code === UNKNOWN || code === BROKEN) {
      this._over = true;
      this._tell('unknown');
    }
    if (this._over) {
      return;
    }
    this._tell('offline');
    this._timer = setTimeout(() => this._open(), this._retry);
    this._retry = Math.min(2 * this._retry, RETRY_MOST);
  }

  private _tell(state: RunState): void {
    if (state !== this._state) {
      this._state = state;
      this._onState(state);
    }
  }

  /** Rejects with the server's sentence when the decision was not taken. */
  private async _control(action: string, more: Record<string, unknown> = {}): Promise<void> {
    const request = { method: 'POST', body: JSON.stringify({ action, ...more }) };
    const response = await ServerConnection.makeRequest(this._url('control'), request, this._settings);
    if (!response.ok) {
      throw await ServerConnection.ResponseError.create(response);
    }
  }
}
