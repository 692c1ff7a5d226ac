/** The messages that the model saw, rebuilt from the events of one branch. */

import { ICallProposed, ICallStarted, IContextReduced, IEvent } from '../generated/events';
import { messageText } from './fold';

export interface IMessage {
  role: string;
  text: string;
  /** The calls of an assistant's message, as it proposed them. */
  calls: { name: string; arguments: string }[];
  /** True if the message itself lists its calls. */
  whole?: boolean;
  /** Parts that are sent as one message: results of calls that the model wrote as text, and messages after them. */
  parts?: IPart[];
}

interface IPart {
  callId?: string;
  text: string;
}

/** Return the conversation after these events. */
export function messagesOf(events: readonly IEvent[]): IMessage[] {
  const messages: IMessage[] = [];
  const results = new Map<string, IMessage>();
  const proposed = new Map<string, IMessage['calls'][number]>();
  let inText = false;
  for (const event of events) {
    switch (event.kind) {
      case 'message':
        addMessage(messages, plain(event.message));
        break;
      case 'model.replied':
        inText = event.calls_from === 'text' && !namesCalls(event.message);
        messages.push(plain(event.message));
        break;
      case 'call.proposed':
      case 'call.started':
        addCall(messages[messages.length - 1], event, proposed);
        break;
      case 'call.finished': {
        if (inText) {
          addPart(messages, { callId: event.call_id, text: event.observation });
          break;
        }
        const message = { role: 'tool', text: event.observation, calls: [] };
        messages.push(message);
        results.set(event.call_id, message);
        break;
      }
      case 'call.decided': {
        const message = results.get(event.call_id);
        if (event.action === 'observe' && typeof event.observation === 'string') {
          if (message) {
            message.text = event.observation;
          } else {
            showInstead(messages, event.call_id, event.observation);
          }
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

/** Add the result of a call that was written as text: results in a row are one message. */
function addPart(messages: IMessage[], part: IPart): void {
  const last = messages[messages.length - 1];
  if (last?.parts) {
    setParts(last, [...last.parts, part]);
  } else {
    messages.push(setParts({ role: 'user', text: '', calls: [] }, [part]));
  }
}

/** Add a message. A user's message after results of calls in text becomes a part of their message. */
function addMessage(messages: IMessage[], message: IMessage): void {
  const last = messages[messages.length - 1];
  if (message.role === 'user' && last?.parts) {
    setParts(last, [...last.parts, { text: message.text }]);
  } else {
    messages.push(message);
  }
}

/** Replace the result of a call that was written as text. */
function showInstead(messages: IMessage[], callId: string, text: string): void {
  const message = messages.filter(one => one.parts?.some(part => part.callId === callId)).pop();
  if (message?.parts) {
    setParts(
      message,
      message.parts.map(part => (part.callId === callId ? { callId, text } : part))
    );
  }
}

function setParts(message: IMessage, parts: IPart[]): IMessage {
  message.parts = parts;
  message.text = parts.map(part => part.text).join('\n\n');
  return message;
}

function namesCalls(message: Record<string, unknown>): boolean {
  const calls = Array.isArray(message.tool_calls) ? message.tool_calls : [];
  return calls.some(call => typeof (call as { id?: unknown } | null)?.id === 'string');
}

/** Apply an event after which older parts of the conversation are sent in a shorter form. */
function reduce(messages: IMessage[], event: IContextReduced): void {
  const removed = messages.slice(Math.max(0, event.removed_from), Math.max(0, event.removed_to));
  const resultsLeftOut = event.how === 'repeats' && removed.some(message => message.parts);
  for (const { at, content } of event.shown) {
    if (messages[at]) {
      const hasResults = messages[at].parts || resultsLeftOut;
      messages[at] = { ...messages[at], text: content, ...(hasResults ? { parts: [{ text: content }] } : {}) };
    }
  }
  if (event.removed_from >= 0 && event.removed_to > event.removed_from) {
    messages.splice(event.removed_from, event.removed_to - event.removed_from);
  }
}

/** Convert a message of a provider, which may have any shape. */
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

/** Add a call to a reply whose message lacks its calls, because a saved card keeps them in other events. */
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
