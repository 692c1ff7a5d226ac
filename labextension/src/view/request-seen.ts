/** What the model saw when it wrote the reply of a step: the messages of that request, and how full its context was. */

import { h } from './dom';
import { IEvent } from '../generated/events';
import { IMessage, messagesOf } from './conversation';
import { IStep, Trajectory } from './fold';
import { formatCount } from '../formatting';
import { IHost } from './host';
import { MessagesView } from './messages';

export interface IContextFill {
  /** Tokens of the request, as the provider counted them. */
  tokens: number;
  /** Tokens that fit, when that is known. */
  limit: number | null;
  /** Whether the run's own limit is the smaller one. */
  own: boolean;
}

/** The events of the branch before the newest request of a step. */
function eventsBefore(step: number, trajectory: Trajectory): readonly IEvent[] {
  const events = (trajectory.head !== null && trajectory.at(trajectory.head)?.events) || trajectory.events;
  for (let index = events.length - 1; index >= 0; index--) {
    const event = events[index];
    if (event.kind === 'model.requested' && event.step === step) {
      return events.slice(0, index);
    }
  }
  return [];
}

export function messagesSeen(step: number, trajectory: Trajectory): IMessage[] {
  return messagesOf(eventsBefore(step, trajectory));
}

/** How full the context was with the request of a step; null when the provider did not count. */
export function contextFill(step: IStep, trajectory: Trajectory): IContextFill | null {
  const tokens = step.usage?.prompt_tokens ?? 0;
  if (!tokens) {
    return null;
  }
  const own = ownLimit(trajectory);
  const limits = [own, step.contextWindow].filter((limit): limit is number => limit !== null);
  const limit = limits.length ? Math.min(...limits) : null;
  return { tokens, limit, own: limit !== null && limit === own };
}

/** The run's limit on the tokens of a conversation. */
function ownLimit({ start, changed }: Trajectory): number | null {
  const given = (start?.settings.limits as { tokens?: unknown } | undefined)?.tokens;
  const found = [given, ...changed.map(one => one.limits.tokens)].filter(tokens => tokens !== undefined);
  const last = found[found.length - 1];
  return typeof last === 'number' && last > 0 ? last : null;
}

export function renderRequestSeen(step: IStep, trajectory: Trajectory, host: IHost): HTMLElement {
  const { trans } = host;
  const view = new MessagesView(() => messagesSeen(step.number, trajectory), host, trans('What the model saw'));
  const fill = contextFill(step, trajectory);
  if (!fill) {
    return h('div', { class: 'lsn-seen' }, view.node);
  }
  const { tokens, limit, own } = fill;
  const share = limit === null ? 0 : Math.min(100, Math.round((100 * tokens) / limit));
  const text =
    limit === null
      ? trans('%1 tokens', formatCount(tokens))
      : own
        ? trans('%1 of %2 tokens that the run may use (%3 %)', formatCount(tokens), formatCount(limit), share)
        : trans('%1 of %2 tokens that the model can take in (%3 %)', formatCount(tokens), formatCount(limit), share);
  const bar = h('span', { class: 'lsn-meter', 'aria-hidden': 'true' }, h('i', {}));
  (bar.firstElementChild as HTMLElement).style.width = `${share}%`;
  const line = h('span', { class: 'lsn-context-fill', title: trans('Context') }, limit !== null && bar, text);
  return h('div', { class: 'lsn-seen' }, view.node, line);
}
