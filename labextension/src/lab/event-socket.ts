/** The events of a live run over the server's WebSocket: all past events, then each new event, with reconnection. */

import { ILiveSink } from '../live';
import { ApiError, openSocket } from './server';
import { RunApi } from './run-api';

/** `lost`: the kernel has not reconnected. `offline`: the server does not answer yet. `unknown`: there is no such run. */
type RunState = 'live' | 'away' | 'lost' | 'finished' | 'offline' | 'unknown';

const UNKNOWN_RUN = 4404;
const BROKEN_RUN = 4400;
/** Milliseconds until the first reconnection, and the maximum. */
const RETRY_FIRST = 200;
const RETRY_MOST = 5000;

export class EventSocket {
  private _socket: WebSocket | null = null;
  private _next = 0;
  private _retry = RETRY_FIRST;
  private _timer = 0;
  private _state: RunState | null = null;

  constructor(
    private _api: RunApi,
    private _runId: string,
    private _sink: ILiveSink
  ) {
    this._open();
  }

  dispose(): void {
    window.clearTimeout(this._timer);
    const socket = this._socket;
    this._socket = null;
    socket?.close();
  }

  private _open(): void {
    const route = ['runs', this._runId, 'events'];
    const socket = openSocket(this._api.settings, route, { since: String(this._next) });
    let answered = false;
    this._socket = socket;
    socket.onopen = () => (answered = true);
    socket.onmessage = message => socket === this._socket && this._take(JSON.parse(message.data as string) as IMessage);
    socket.onclose = async ({ code }) => {
      const refused = !answered && (await this._refused());
      if (socket === this._socket) {
        this._closed(refused ? UNKNOWN_RUN : code);
      }
    };
  }

  private _take(message: IMessage): void {
    this._retry = RETRY_FIRST;
    if (message.type === 'state') {
      this._setState(message.state);
    } else if (message.type === 'events') {
      this._next = message.next;
      this._sink.add(message.events);
    }
  }

  /** Return true if the server knows no runs, or does not let this person see them. Then trying again is useless. */
  private _refused(): Promise<boolean> {
    return this._api.list().then(
      () => false,
      error => error instanceof ApiError && [403, 404].includes(error.status)
    );
  }

  private _closed(code: number): void {
    if (this._state === 'finished') {
      return;
    }
    if (code === UNKNOWN_RUN || code === BROKEN_RUN) {
      this._setState('unknown');
    } else {
      this._setState('offline');
      this._timer = window.setTimeout(() => this._open(), this._retry);
      this._retry = Math.min(2 * this._retry, RETRY_MOST);
    }
  }

  private _setState(state: RunState): void {
    if (state === this._state) {
      return;
    }
    this._state = state;
    if (state !== 'offline' && state !== 'unknown') {
      this._sink.known();
    }
    this._sink.away(state === 'offline' ? 'server' : state === 'away' ? 'kernel' : null);
    if (['finished', 'lost', 'unknown'].includes(state)) {
      this._sink.ended();
    }
  }
}

/** A message of the server: events up to number `next`, or a state. */
type IMessage = { type: 'events'; next: number; events: unknown[] } | { type: 'state'; state: RunState };
