/** The server's sandboxes and runs, polled often while a run is live or a person watches, and seldom otherwise. */

import { ISignal, Signal } from '@lumino/signaling';

import { ISandbox, SandboxApi } from './api';
import { errorText } from '../view/dom';
import { IRunState, isLive, RunApi } from './run-api';

const LIVE_MS = 1000;
const WATCHED_MS = 2000;
/** Milliseconds after the execution of a cell in which a run may begin. */
const EXPECTED_MS = 20_000;
const UNWATCHED_MS = 15000;

export class Sandboxes {
  /** All sandboxes, oldest first. */
  all: ISandbox[] = [];
  /** All runs that kernels have published to the server, oldest first. */
  runs: IRunState[] = [];
  /** The reason why the sandboxes and runs are unknown; empty if they are known. */
  problem = '';
  isDisposed = false;
  private _changed = new Signal<this, void>(this);
  private _timer = 0;
  private _watchers = new Set<object>();
  private _asking: Promise<void> | null = null;
  private _expectedUntil = 0;

  constructor(
    readonly api: SandboxApi,
    readonly runApi: RunApi
  ) {
    void this.refresh();
  }

  /** Signal after each answer of the server, and after each failure. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** Return the sandbox of a notebook. */
  of(notebook: string | null): ISandbox | undefined {
    return notebook ? this.all.find(one => one.notebook === notebook) : undefined;
  }

  /** Return the newest live run of a notebook. */
  liveRun(notebook: string | null): IRunState | undefined {
    return notebook ? [...this.runs].reverse().find(one => one.notebook === notebook && isLive(one)) : undefined;
  }

  /** Return the sandboxes of other notebooks in which nothing happens. */
  idle(notebook: string | null): ISandbox[] {
    const live = new Set(this.runs.filter(isLive).map(run => run.kernel_id));
    return this.all.filter(
      one => one.state !== 'starting' && !one.requests && !live.has(one.kernel_id) && one.notebook !== notebook
    );
  }

  /** Ask often for a while, because a cell was executed, which may begin a run. */
  expectRun(): void {
    this._expectedUntil = Date.now() + EXPECTED_MS;
    void this.refresh();
  }

  /** Ask more often while `who` looks. */
  watch(who: object, looking: boolean): void {
    const before = this._watchers.size;
    if (looking) {
      this._watchers.add(who);
    } else {
      this._watchers.delete(who);
    }
    if (!before && this._watchers.size) {
      void this.refresh();
    }
  }

  refresh(): Promise<void> {
    this._asking ??= this._ask().finally(() => {
      this._asking = null;
    });
    return this._asking;
  }

  dispose(): void {
    this.isDisposed = true;
    window.clearTimeout(this._timer);
    Signal.clearData(this);
  }

  private async _ask(): Promise<void> {
    window.clearTimeout(this._timer);
    try {
      // A hidden page sends no requests.
      if (!document.hidden) {
        [this.all, this.runs] = await Promise.all([this.api.list(), this.runApi.list()]);
        this.problem = '';
      }
    } catch (error) {
      this.problem = errorText(error);
    }
    if (!this.isDisposed) {
      this._timer = window.setTimeout(() => void this.refresh(), this._pause());
      this._changed.emit();
    }
  }

  private _pause(): number {
    if (this.runs.some(isLive) || Date.now() < this._expectedUntil) {
      return LIVE_MS;
    }
    return this._watchers.size ? WATCHED_MS : UNWATCHED_MS;
  }
}
