/** Live text comes in pieces, and some pieces come twice. Twin of `trajectory/live_tail.py`. */

import { ICallOutput, IEvent, IModelDelta } from '../generated/events';

type Piece = (IModelDelta | ICallOutput) & { at?: number };

/** Filter that drops repeated text: after a new connection, pieces of unfinished text come again. */
export class LiveTail {
  private _ends = new Map<string, number>();

  /** Return the event. Of a piece of text, return only the new part, or null if no part is new. */
  take(event: IEvent): IEvent | null {
    switch (event.kind) {
      case 'model.requested':
      case 'model.failed':
      case 'model.replied':
        this._ends.delete(`${event.step} text`);
        this._ends.delete(`${event.step} reasoning`);
        return event;
      case 'call.finished':
        this._ends.delete(`${event.call_id} stdout`);
        this._ends.delete(`${event.call_id} stderr`);
        return event;
      case 'model.delta': {
        const field = event.text ? 'text' : 'reasoning';
        const text = this._new(`${event.step} ${field}`, event[field], event);
        return text ? { ...event, ...this._piece(event, text), [field]: text } : null;
      }
      case 'call.output': {
        const text = this._new(`${event.call_id} ${event.stream}`, event.text, event);
        return text ? { ...event, ...this._piece(event, text), text } : null;
      }
      default:
        return event;
    }
  }

  /** Return the id of a piece. A part of a piece gets another id than the whole piece. */
  private _piece(event: IModelDelta | ICallOutput, text: string): { id: string } {
    const whole = event.kind === 'call.output' ? event.text : event.text || event.reasoning;
    return { id: text === whole ? event.id : `${event.id}+${whole.length - text.length}` };
  }

  private _new(key: string, text: string, event: Piece): string {
    const end = this._ends.get(key) ?? 0;
    const at = event.at ?? end;
    this._ends.set(key, Math.max(end, at + length(text)));
    return at < end ? drop(text, end - at) : text;
  }
}

/** Return the number of characters, as Python counts them. */
function length(text: string): number {
  let count = 0;
  for (const character of text) {
    count += character ? 1 : 0;
  }
  return count;
}

function drop(text: string, characters: number): string {
  return Array.from(text).slice(characters).join('');
}
