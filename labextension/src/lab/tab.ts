/** A run in a tab of its own, at full width. */

import { MainAreaWidget } from '@jupyterlab/apputils';
import { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { PartialJSONObject, PartialJSONValue } from '@lumino/coreutils';
import { PanelLayout, Widget } from '@lumino/widgets';

import { visibleName } from '../artifacts/names';
import { TRAJECTORY_MIME } from '../embedded';
import { IEvent } from '../generated/events';
import { IShownRun, TAB } from '../live';
import { sandboxIcon } from './icon';

/** Maximum characters of the task in the tab's name. */
const NAME_CHARACTERS = 40;

/** Content of a tab. When the tab comes to the front, the run gets the keyboard. */
class RunContent extends Widget {
  protected onActivateRequest(): void {
    // A run is higher than the tab: without this the browser scrolls its title out of sight.
    (this.node.querySelector<HTMLElement>('.lsn-view') ?? this.node).focus({ preventScroll: true });
  }
}

/** Return the tab of a run. `folder` is the run's folder, as a path for `resolver`; null if the folder is unknown. */
export function runTab(
  run: IShownRun,
  rendermime: IRenderMimeRegistry,
  resolver: IRenderMime.IResolver | undefined,
  folder: string | null
): MainAreaWidget<Widget> {
  const renderer = rendermime.clone({ resolver }).createRenderer(TRAJECTORY_MIME);
  const content = new RunContent();
  content.addClass('lsn-run-tab');
  const layout = (content.layout = new PanelLayout());
  layout.addWidget(renderer);
  const model = rendermime.createModel({ data: run.data, trusted: run.trusted, metadata: { [TAB]: { folder } } });
  void renderer.renderModel(model);
  const widget = new MainAreaWidget({ content });
  const task = visibleName(run.task.replace(/\s+/g, ' ').trim()) || run.id;
  widget.id = tabId(run.id);
  widget.title.label = task.length > NAME_CHARACTERS ? `${task.slice(0, NAME_CHARACTERS)}…` : task;
  widget.title.caption = task.slice(0, 300);
  widget.title.icon = sandboxIcon;
  widget.title.closable = true;
  return widget;
}

export function tabId(run: string): string {
  return `llm-sandbox-run-${run}`;
}

/** Return the output data of a recorded run. */
export function recordedRunData(id: string, events: readonly IEvent[]): IShownRun['data'] {
  return runData(id, { events: events as unknown as PartialJSONValue });
}

/** Return the output data of a live run: all events come from the server. */
export function liveRunData(id: string, folder: string | null): IShownRun['data'] {
  return runData(id, { events: [], live: { run_id: id, server: true, folder } });
}

function runData(id: string, more: PartialJSONObject): IShownRun['data'] {
  return { [TRAJECTORY_MIME]: { schema_version: 1, run_id: id, text_limit: null, artifacts: {}, ...more } };
}
