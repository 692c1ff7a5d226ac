/**
 * The one way of events to a view, wherever they come from: an output's bundle, a journal, the server's socket, the
 * widget's comm, an exported page. Each event is checked and given once; docs/explanation/feed.md draws it.
 */

import { IEvent } from './generated/events';
import { LiveTail } from './trajectory/live-tail';
import { isEvent } from './valid';

/** Bytes of a file, or of a packed record once it is unpacked, that a page loads: the limit of all sources. */
export const MOST_BYTES = 64 * 1024 * 1024;

export class EventFeed {
  /** Number of entries that were not events. */
  rejected = 0;
  private _seen = new Set<string>();
  private _tail = new LiveTail();
  private _count = 0;
  private _last: string | null = null;

  /** Return the new events of a list that is given again and again. Work is that of the new ones while it only grows. */
  take(list: readonly unknown[]): IEvent[] {
    const grew = this._count > 0 && this._count <= list.length && idOf(list[this._count - 1]) === this._last;
    const fresh = this.add(list.slice(grew ? this._count : 0));
    this._count = list.length;
    this._last = idOf(list[list.length - 1]);
    return fresh;
  }

  /** Return the new ones of events that come one by one; of a piece of text that comes again, only its new part. */
  add(events: readonly unknown[]): IEvent[] {
    const fresh: IEvent[] = [];
    for (const given of events) {
      if (!isEvent(given)) {
        this.rejected++;
        continue;
      }
      const event = this._tail.take(given);
      if (event && !this._seen.has(event.id)) {
        this._seen.add(event.id);
        fresh.push(event);
      }
    }
    return fresh;
  }

  /** Return the events of `list` that are not shown yet, without taking them. */
  unseen(list: readonly IEvent[]): IEvent[] {
    return list.filter(event => !this._seen.has(event.id));
  }
}

function idOf(event: unknown): string | null {
  const id = (event as { id?: unknown } | null | undefined)?.id;
  return typeof id === 'string' ? id : null;
}
