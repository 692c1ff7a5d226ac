/**
 * The feed of events for a view, for all sources: an output's bundle, a journal, the server's socket, the
 * widget's comm, an exported page. Each event is checked and passed on once; docs/explanation/feed.md has a drawing.
 */

import { IEvent } from './generated/events';
import { isTransient } from './trajectory/fold';
import { LiveTail } from './trajectory/live-tail';
import { isEvent } from './valid';

/** Maximum bytes of a file, or of an unpacked record, that a page loads from any source. */
export const MOST_BYTES = 64 * 1024 * 1024;

export class EventFeed {
  /** Number of entries that were not events. */
  rejected = 0;
  private _seen = new Set<string>();
  private _tail = new LiveTail();
  private _count = 0;
  private _last: string | null = null;

  /** Return the new events of a list that is given repeatedly. While the list only grows, only new events cost work. */
  take(list: readonly unknown[]): IEvent[] {
    const grew = this._count > 0 && this._count <= list.length && idOf(list[this._count - 1]) === this._last;
    const fresh = this.add(list.slice(grew ? this._count : 0));
    this._count = list.length;
    this._last = idOf(list[list.length - 1]);
    return fresh;
  }

  /** Return the new events of a stream. If a part of a text is repeated, return only the new part. */
  add(events: readonly unknown[]): IEvent[] {
    const fresh: IEvent[] = [];
    for (const given of events) {
      if (!isEvent(given)) {
        this.rejected++;
        continue;
      }
      // A repeated event must not end a stream of text that began after the event.
      const event = this._seen.has(given.id) && !isTransient(given) ? null : this._tail.take(given);
      if (event && !this._seen.has(event.id)) {
        this._seen.add(event.id);
        fresh.push(event);
      }
    }
    return fresh;
  }

  /** Return the new events of `list`, without marking them as shown. */
  unseen(list: readonly IEvent[]): IEvent[] {
    return list.filter(event => !this._seen.has(event.id));
  }
}

function idOf(event: unknown): string | null {
  const id = (event as { id?: unknown } | null | undefined)?.id;
  return typeof id === 'string' ? id : null;
}
