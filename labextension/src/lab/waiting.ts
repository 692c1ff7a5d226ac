/** A dot on the tab of a notebook or a run, and on the panel's icon, while a run waits for the person. */

import { DocumentWidget } from '@jupyterlab/docregistry';
import { Title, Widget } from '@lumino/widgets';

import { Sandboxes } from './sandboxes';
import { tabId } from './tab';
import { Trans } from '../formatting';

const WAITING = 'lsn-waiting';

/** Set or remove the dots, by the present states of the runs. */
export function markWaiting(sandboxes: Sandboxes, panel: Widget, tabs: Widget[], trans: Trans): void {
  const waiting = sandboxes.runs.filter(run => run.paused);
  for (const tab of tabs) {
    const path = tab instanceof DocumentWidget ? tab.context.path : undefined;
    const shown = (id: string, notebook: string | null) => tab.id === tabId(id) || (!!path && path === notebook);
    mark(
      tab.title,
      waiting.some(run => shown(run.id, run.notebook))
    );
  }
  mark(panel.title, waiting.length > 0);
  panel.title.caption = waiting.length ? trans('Sandboxes: a run waits for you') : trans('Sandboxes');
}

function mark(title: Title<Widget>, waits: boolean): void {
  const classes = title.className.split(' ').filter(name => name && name !== WAITING);
  title.className = [...classes, ...(waits ? [WAITING] : [])].join(' ');
}
