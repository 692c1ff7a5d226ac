/** What a person decided about a call, next to what the model had proposed. */

import { h, plainText } from './dom';
import { ICallDecided } from './events';
import { ICall } from './fold';
import { IHost } from './host';

/** One line for each decision that changed something. */
export function renderDecisions(call: ICall, host: IHost): HTMLElement[] {
  return call.decided.filter(one => one.action !== 'run').map(one => renderDecision(one, call, host));
}

function renderDecision(decided: ICallDecided, call: ICall, host: IHost): HTMLElement {
  const { trans } = host;
  const words: Record<string, string> = {
    edit: trans('edited by a person'),
    skip: trans('not carried out: a person answered in its place'),
    observe: trans('a person changed what the model reads')
  };
  const source = decided.source && ` (${plainText(decided.source)})`;
  const known = Object.prototype.hasOwnProperty.call(words, decided.action);
  const label = h('span', { class: 'lsn-decided' }, `${known ? words[decided.action] : decided.action}${source}`);
  const before = decided.action === 'edit' ? call.rawArguments : originalText(decided);
  if (!before) {
    return h('div', { class: 'lsn-note' }, label);
  }
  const what = decided.action === 'edit' ? trans('proposed by the model') : trans('what came back');
  return h(
    'details',
    { class: 'lsn-note' },
    h('summary', {}, label, ` · ${what}`),
    h('pre', { tabindex: 0 }, plainText(before))
  );
}

function originalText(decided: ICallDecided): string {
  const { original } = decided;
  return typeof original === 'string' ? original : (original?.preview ?? '');
}
