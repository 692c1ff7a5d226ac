/** A person's decisions about a call, next to the model's proposal. */

import { h, plainText } from './dom';
import { ICallDecided } from '../generated/events';
import { decidedHow } from './call-summary';
import { ICall } from '../trajectory/fold';
import { IHost } from './host';

/** Render a line for each decision that changed something. */
export function renderDecisions(call: ICall, host: IHost): HTMLElement[] {
  return call.decisions.filter(one => one.action !== 'run').map(one => renderDecision(one, call, host));
}

function renderDecision(decided: ICallDecided, call: ICall, host: IHost): HTMLElement {
  const { trans } = host;
  const words: Record<string, string> = {
    edit: trans('Edited by you'),
    skip: trans('Denied by you; the model read your answer'),
    observe: trans('Result changed by you'),
    nobody: trans('Nobody could approve it; the model read why'),
    mcp: trans('Withdrawn by the agent')
  };
  const how = decidedHow(decided);
  const where = decided.source && how === decided.action && trans('Decided in: %1', plainText(decided.source));
  const known = Object.hasOwn(words, how);
  const label = h('span', { class: 'lsn-decided', title: where }, known ? words[how] : plainText(how));
  const before = decided.action === 'edit' ? call.rawArguments : originalText(decided);
  if (!before) {
    return h('div', { class: 'lsn-note' }, label);
  }
  return h(
    'details',
    { class: 'lsn-note' },
    h('summary', {}, label, '; ', trans('show original')),
    h('pre', { tabindex: 0 }, plainText(before))
  );
}

function originalText(decided: ICallDecided): string {
  const { original } = decided;
  return typeof original === 'string' ? original : (original?.preview ?? '');
}
