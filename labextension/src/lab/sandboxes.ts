/** The server's sandboxes as the page knows them: asked for often while somebody looks, seldom otherwise. */

import { ISignal, Signal } from '@lumino/signaling';

import { ISandbox, SandboxApi } from './api';

const WATCHED = 2000;
const UNWATCHED = 15000;

export class Sandboxes {
  /** All sandboxes, oldest first. */
  all: ISandbox[] = [];
  /** Why they are not known, in words; empty when they are. */
  problem = '';
  isDisposed = false;
  private _changed = new Signal<this, void>(this);
  private _timer = 0;
  private _watchers = new Set<object>();
  private _asking: Promise<void> | null = null;

  constructor(readonly api: SandboxApi) {
    void this.refresh();
  }

  /** After each answer of the server. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** The sandbox of a notebook. */
  of(notebook: string | null): ISandbox | undefined {
    return notebook ? this.all.find(one => one.notebook === notebook) : undefined;
  }

  /** Ask more often for as long as `who` looks. */
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

  /** Ask now. */
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
      // A page that nobody sees asks nothing.
      if (!document.hidden) {
        this.all = await this.api.list();
        this.problem = '';
      }
    } catch (error) {
      this.problem = error instanceof Error ? error.message : String(error);
    }
    if (!this.isDisposed) {
      this._timer = window.setTimeout(() => void this.refresh(), this._watchers.size ? WATCHED : UNWATCHED);
      this._changed.emit();
    }
  }
}
