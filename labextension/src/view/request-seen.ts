/** The messages that the model saw before it wrote the reply of a step, and how full its context was. */

import { h } from './dom';
import { IMessage, messagesOf } from '../trajectory/conversation';
import { IStep, Trajectory } from '../trajectory/fold';
import { formatCount } from '../formatting';
import { IHost } from './host';
import { MessagesView } from './messages';

export interface IContextFill {
  /** Number of tokens of the request, as the provider counted them. */
  tokens: number;
  /** Maximum number of tokens; null if unknown. */
  limit: number | null;
  /** True if `limit` is the run's own limit, and not the model's context. */
  own: boolean;
}

export function messagesSeen(step: number, trajectory: Trajectory): IMessage[] {
  return messagesOf(trajectory.beforeRequest(step));
}

/** Return how full the context was at the request of a step; null if the provider did not count the tokens. */
export function contextFill(step: IStep, trajectory: Trajectory): IContextFill | null {
  const tokens = step.usage?.prompt_tokens ?? 0;
  if (!tokens) {
    return null;
  }
  const own = trajectory.status.limit('tokens') || null;
  const limits = [own, step.contextWindow].filter((limit): limit is number => limit !== null);
  const limit = limits.length ? Math.min(...limits) : null;
  return { tokens, limit, own: limit !== null && limit === own };
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
      ? trans('Context: %1 tokens', formatCount(tokens))
      : trans('Context: %1 of %2 tokens (%3 %)', formatCount(tokens), formatCount(limit), share);
  const bar = h('span', { class: 'lsn-meter', 'aria-hidden': 'true' }, h('i', {}));
  (bar.firstElementChild as HTMLElement).style.width = `${share}%`;
  const line = h(
    'span',
    { class: 'lsn-context-fill', title: own ? trans('Limit of the run') : trans('Context of the model') },
    limit !== null && bar,
    text
  );
  return h('div', { class: 'lsn-seen' }, view.node, line);
}
