/** The messages that the model saw, rebuilt from the events of one branch. */

import { ICallProposed, ICallStarted, IContextReduced, IEvent } from '../generated/events';
import { messageText } from './fold';

export interface IMessage {
  role: string;
  text: string;
  /** The calls of an assistant's message, as it proposed them. */
  calls: { name: string; arguments: string }[];
  /** Whether the message itself named its calls. */
  whole?: boolean;
}

/** What the model has seen, and said, after these events. */
export function messagesOf(events: readonly IEvent[]): IMessage[] {
  const messages: IMessage[] = [];
  const results = new Map<string, IMessage>();
  const proposed = new Map<string, IMessage['calls'][number]>();
  for (const event of events) {
    switch (event.kind) {
      case 'message':
      case 'model.replied':
        messages.push(plain(event.message));
        break;
      case 'call.proposed':
      case 'call.started':
        addCall(messages[messages.length - 1], event, proposed);
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
      case 'context.reduced':
        reduce(messages, event);
        break;
    }
  }
  return messages;
}

/** From here on older parts are sent in a shorter form. */
function reduce(messages: IMessage[], event: IContextReduced): void {
  for (const { at, content } of event.shown) {
    if (messages[at]) {
      messages[at] = { ...messages[at], text: content };
    }
  }
  if (event.removed_from >= 0 && event.removed_to > event.removed_from) {
    messages.splice(event.removed_from, event.removed_to - event.removed_from);
  }
}

/** A message as a provider has it, of whatever shape it came in. */
function plain(message: Record<string, unknown>): IMessage {
  const { role, tool_calls: calls } = message;
  return {
    role: typeof role === 'string' ? role : '',
    text: messageText(message),
    calls: Array.isArray(calls) ? calls.map(callOf) : [],
    whole: Array.isArray(calls)
  };
}

function callOf(call: unknown): { name: string; arguments: string } {
  const called = (call as { function?: { name?: unknown; arguments?: unknown } } | null)?.function;
  const text = (value: unknown) => (typeof value === 'string' ? value : value ? JSON.stringify(value) : '');
  return { name: text(called?.name), arguments: text(called?.arguments) };
}

/** A call of a reply whose message lacks its calls, because a saved card keeps them in other events. */
function addCall(
  reply: IMessage | undefined,
  event: ICallProposed | ICallStarted,
  proposed: Map<string, IMessage['calls'][number]>
): void {
  const known = proposed.get(event.call_id);
  const given = event.arguments ? JSON.stringify(event.arguments) : '';
  if (known) {
    known.arguments ||= given;
  } else if (event.kind === 'call.proposed' && reply?.role === 'assistant' && !reply.whole) {
    const call = { name: event.tool, arguments: event.raw_arguments || given };
    proposed.set(event.call_id, call);
    reply.calls.push(call);
  }
}
