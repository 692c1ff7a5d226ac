/** In an open step: the files that it used, each with a link to the step that changed it last. */

import { visibleName } from '../artifacts/names';
import { h, makeButton } from './dom';
import { FileHistory } from './file-history';
import { IStep } from '../trajectory/fold';
import { IHost } from './host';
import { IUsed, madeWith } from './made-with';
import { shortName, warningText } from './warning-text';

const SHOWN_FILES = 12;
const SHOWN_GIVEN_FILES = 3;

/** Render the line; null if the step used no known file. */
export function renderMadeWith(
  step: IStep,
  history: FileHistory,
  host: IHost,
  goTo: (step: number) => void
): HTMLElement | null {
  const used = madeWith(step, history);
  if (!used.length) {
    return null;
  }
  const untouched = used.filter(one => !one.event);
  const shown = [...used.filter(one => one.event).slice(0, SHOWN_FILES), ...untouched.slice(0, SHOWN_GIVEN_FILES)];
  const entries = shown.map(one => renderUsed(one, history, host, goTo));
  const more = used.length - entries.length;
  return h(
    'div',
    { class: 'lsn-made-with' },
    h('span', { class: 'lsn-soft' }, host.trans('Made with:'), ' '),
    ...entries,
    more > 0 && h('span', { class: 'lsn-soft' }, host.trans('… and %1 more', more))
  );
}

function renderUsed(used: IUsed, history: FileHistory, host: IHost, goTo: (step: number) => void): HTMLElement {
  const { trans } = host;
  const name = shortName(used.path);
  const { event } = used;
  if (!event) {
    return h('span', { class: 'lsn-chip', title: visibleName(used.path) }, trans('%1 (given)', name));
  }
  const words = {
    made: trans('%1 (made %2)', name, event.step),
    changed: trans('%1 (changed %2)', name, event.step),
    removed: trans('%1 (removed %2)', name, event.step),
    refused: trans('%1 (edit refused %2)', name, event.step)
  };
  const warnings = history.warnings.get(event.step)?.map(one => warningText(one, host)) ?? [];
  const link = makeButton(
    used.mark === 'warn' ? `${words[event.what]} · ${warnings[0]}` : words[event.what],
    () => goTo(event.step),
    { class: 'lsn-chip lsn-step-link', 'data-mark': used.mark }
  );
  link.title = [visibleName(used.path), ...warnings].join('\n');
  return link;
}
