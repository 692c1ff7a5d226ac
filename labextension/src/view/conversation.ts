/** The messages that the model saw, rebuilt from the events of one branch. */

import { IEvent } from './events';
import { messageText } from './fold';

export interface IMessage {
  role: string;
  text: string;
  /** The calls of an assistant's message, as it proposed them. */
  calls: { name: string; arguments: string }[];
}

/** What the model has seen, and said, after these events. */
export function messagesOf(events: readonly IEvent[]): IMessage[] {
  const messages: IMessage[] = [];
  const results = new Map<string, IMessage>();
  for (const event of events) {
    switch (event.kind) {
      case 'message':
      case 'model.replied':
        messages.push(plain(event.message));
        break;
      case 'call.finished': {
        const message = { role: 'tool', text: event.observation, calls: [] };
        messages.push(message);
        results.set(event.call_id, message);
        break;
      }
      case 'call.decided': {
        const message = results.get(event.call_id);
        if (message && event.action === 'observe') {
          message.text = event.observation ?? message.text;
        }
        break;
      }
    }
  }
  return messages;
}

/** A message as a provider has it, of whatever shape it came in. */
function plain(message: Record<string, unknown>): IMessage {
  const { role, tool_calls: calls } = message;
  return {
    role: typeof role === 'string' ? role : '',
    text: messageText(message),
    calls: Array.isArray(calls) ? calls.map(callOf) : []
  };
}

function callOf(call: unknown): { name: string; arguments: string } {
  const called = (call as { function?: { name?: unknown; arguments?: unknown } } | null)?.function;
  const text = (value: unknown) => (typeof value === 'string' ? value : value ? JSON.stringify(value) : '');
  return { name: text(called?.name), arguments: text(called?.arguments) };
}
