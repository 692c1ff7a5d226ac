/** The side panel, the commands, the toolbar's button and the status bar's item. */

import { ILabShell, ILayoutRestorer, JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { Dialog, ICommandPalette, showDialog } from '@jupyterlab/apputils';
import { INotebookTracker, NotebookActions, NotebookPanel } from '@jupyterlab/notebook';
import { IRenderMimeRegistry, RenderMimeRegistry } from '@jupyterlab/rendermime';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { IStatusBar } from '@jupyterlab/statusbar';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { Widget } from '@lumino/widgets';

import { visibleName } from '../artifacts/names';
import { readRecord } from '../formats';
import { Trans } from '../formatting';
import { tabToolsWithin } from '../tab-tools';
import { showKeys } from '../view/keys';
import { IShownRun, settings as personal, shellOffer } from '../live';
import { RECORD_FACTORY } from '../record-files';
import { SandboxApi } from './api';
import { ICellSettings, insertCell, insertLine } from './cell';
import { addCommand } from './commands';
import { sandboxIcon } from './icon';
import { executeMagic, whenIdle } from './kernel';
import { ModelPicker } from './model-picker';
import { SandboxPanel } from './panel';
import { downloadFile, previewFile } from './preview';
import { INotebookRun, isLive, RunApi } from './run-api';
import { RunsView } from './runs';
import { Sandboxes } from './sandboxes';
import { ISectionHost } from './section';
import { settle } from './settle';
import { SandboxStatus } from './status';
import { liveRunData, recordedRunData, runTab, tabId } from './tab';
import { plainTasks } from './task-text';
import { terminalTab } from './terminal';
import { markWaiting } from './waiting';

const ID = 'llm-sandbox-nb:plugin';
const PANEL = 'llm-sandbox-panel';

export namespace CommandIDs {
  export const insertCell = 'llm-sandbox:insert-cell';
  export const showPanel = 'llm-sandbox:show-panel';
  export const restart = 'llm-sandbox:restart';
  export const reset = 'llm-sandbox:reset';
  export const stop = 'llm-sandbox:stop';
  export const terminal = 'llm-sandbox:terminal';
  export const stopIdle = 'llm-sandbox:stop-idle';
  export const openRun = 'llm-sandbox:open-run';
  export const nextStep = 'llm-sandbox:next-step';
  export const previousStep = 'llm-sandbox:previous-step';
  export const present = 'llm-sandbox:present';
  export const keys = 'llm-sandbox:keys';
}

export const plugin: JupyterFrontEndPlugin<void> = {
  id: ID,
  description: 'Sandboxes of notebooks: a side panel, commands and the status bar.',
  autoStart: true,
  requires: [IRenderMimeRegistry],
  optional: [ITranslator, INotebookTracker, ISettingRegistry, ICommandPalette, IStatusBar, ILabShell, ILayoutRestorer],
  activate
};

function activate(
  app: JupyterFrontEnd,
  rendermime: IRenderMimeRegistry,
  translator: ITranslator | null,
  notebooks: INotebookTracker | null,
  registry: ISettingRegistry | null,
  palette: ICommandPalette | null,
  statusBar: IStatusBar | null,
  labShell: ILabShell | null,
  restorer: ILayoutRestorer | null
): void {
  const bundle = (translator ?? nullTranslator).load('llm_sandbox_nb');
  const trans: Trans = (text, ...args) => bundle.__(text, ...args);
  const sandboxes = new Sandboxes(
    new SandboxApi(app.serviceManager.serverSettings),
    new RunApi(app.serviceManager.serverSettings)
  );
  const host = sectionHost(app, sandboxes, notebooks, rendermime, translator ?? nullTranslator, trans, !!labShell);
  const tabs = new RunTabs(app, sandboxes, notebooks, rendermime, !!labShell);
  const current = () => notebooks?.currentWidget?.context.path ?? null;
  const runs = new RunsView(sandboxes.runApi, run => void tabs.open(run), trans);
  const models = new ModelPicker((line, waits) => inNotebook(notebooks, line, trans, waits), trans);
  const panel = new SandboxPanel(sandboxes, host, runs, models);
  panel.id = PANEL;
  panel.title.icon = sandboxIcon;
  panel.title.caption = trans('Sandboxes');
  shellOffer.resolve({
    openRun: labShell ? (run, place) => tabs.show(run, panelOf(notebooks, place)) : undefined,
    makeRoom: place => makeRoom(app, sandboxes, host, notebooks, place),
    settle: (place, runId, resumed) => settle(place, runId, notebooks, sandboxes.runApi, resumed)
  });
  app.shell.add(panel, 'left', { rank: 650, type: trans('Sandboxes') });
  restorer?.add(panel, PANEL);

  if (notebooks) {
    plainTasks(notebooks);
  }
  openRecordLinks(app);
  const settings = loadSettings(registry);
  const show = () => app.shell.activateById(PANEL);
  addCommands(app, { notebooks, sandboxes, host, settings, trans, panel: show });
  addRunCommands(app, sandboxes, tabs, current, () => panel.stopIdle(), trans);
  const category = trans('Sandbox');
  Object.values(CommandIDs).forEach(command => palette?.addItem({ command, category }));

  const status = new SandboxStatus(trans, () => void app.commands.execute(CommandIDs.showPanel));
  statusBar?.registerStatusItem(ID, { item: status, align: 'left', rank: 90, isActive: () => true });

  const showStatus = () => status.showState(sandboxes.of(current()), sandboxes.liveRun(current()));
  const follow = () => {
    panel.notebook = current();
    showStatus();
  };
  NotebookActions.executionScheduled.connect(() => sandboxes.expectRun());
  NotebookActions.executed.connect(() => void sandboxes.refresh());
  notebooks?.currentChanged.connect((_sender, widget) => {
    widget?.context.pathChanged.connect(follow);
    follow();
  });
  sandboxes.changed.connect(() => {
    showStatus();
    markWaiting(sandboxes, panel, [...app.shell.widgets('main')], trans);
    app.commands.notifyCommandChanged();
  });
  labShell?.layoutModified.connect(follow);
  follow();
}

/** Open links to journals in outputs with this extension's viewer. Lab chooses viewers by the file's name alone. */
function openRecordLinks(app: JupyterFrontEnd): void {
  const files = `${app.serviceManager.serverSettings.baseUrl}files/`;
  const open = (event: MouseEvent) => {
    const link = event.target instanceof Element ? event.target.closest<HTMLAnchorElement>('a.lsn-record') : null;
    // Lab has replaced the relative link by the address from which the file is downloaded.
    if (link?.href.startsWith(files)) {
      event.preventDefault();
      event.stopPropagation();
      const path = decodeURIComponent(new URL(link.href).pathname.slice(new URL(files).pathname.length));
      void app.commands.execute('docmanager:open', { path, factory: RECORD_FACTORY });
    }
  };
  document.addEventListener('click', open, { capture: true });
}

/** Execute a subcommand of `%sandbox` in the notebook in front and return its output. Rejects with a sentence. */
async function inNotebook(
  notebooks: INotebookTracker | null,
  line: string,
  trans: Trans,
  waits: () => void
): Promise<string> {
  const kernel = notebooks?.currentWidget?.sessionContext.session?.kernel;
  if (!kernel) {
    throw new Error(trans('This notebook has no kernel: start one, then choose a model.'));
  }
  if (kernel.status === 'busy') {
    waits();
    await whenIdle(kernel);
  }
  try {
    return await executeMagic(kernel, line);
  } catch (error) {
    const missing = /magic function .* not found/.test(String(error));
    throw missing ? new Error(trans('First run %load_ext llm_sandbox_nb in this notebook.')) : error;
  }
}

/** Add the commands about runs: the runs of the notebook in front, and a run in a tab of its own. */
function addRunCommands(
  app: JupyterFrontEnd,
  sandboxes: Sandboxes,
  tabs: RunTabs,
  current: () => string | null,
  stopIdle: () => Promise<void>,
  trans: Trans
): void {
  const add = (id: string, label: string, isEnabled: () => boolean, execute: () => void | Promise<void>) =>
    addCommand(app, id, label, execute, isEnabled);
  const openNewest = async () => {
    const { runs } = await sandboxes.runApi.ofNotebook(current()!);
    if (runs.length) {
      await tabs.open(runs[0]);
    }
  };
  const hasIdle = () => sandboxes.idle(current()).length > 0;
  add(CommandIDs.stopIdle, trans('Stop All Idle Sandboxes…'), hasIdle, stopIdle);
  add(CommandIDs.openRun, trans("Open This Notebook's Newest Run in a Tab"), () => current() !== null, openNewest);
  const tools = () => tabToolsWithin(app.shell.currentWidget?.node);
  const inTab = () => tools() !== null;
  add(CommandIDs.nextStep, trans('Next Step of the Run'), inTab, () => tools()?.go(1));
  add(CommandIDs.previousStep, trans('Previous Step of the Run'), inTab, () => tools()?.go(-1));
  add(CommandIDs.present, trans('Present the Run in Large Type'), inTab, () => tools()?.present());
  const show = () => showKeys(document.body, trans, { lab: true, tab: inTab() });
  addCommand(app, CommandIDs.keys, trans('Show the Keys for Runs'), show);
}

/** Runs in tabs of their own. */
class RunTabs {
  constructor(
    private _app: JupyterFrontEnd,
    private _sandboxes: Sandboxes,
    private _notebooks: INotebookTracker | null,
    private _rendermime: IRenderMimeRegistry,
    private _possible: boolean
  ) {}

  /** Open a run of the notebook in front: live, or from its journal. */
  async open(run: INotebookRun): Promise<void> {
    const { contents } = this._app.serviceManager;
    const { id, task, journal } = run;
    const live = this._sandboxes.runs.some(one => one.id === id && isLive(one));
    if (!this._possible) {
      await (journal && this._app.commands.execute('docmanager:open', { path: journal, factory: RECORD_FACTORY }));
      return;
    }
    if (!journal) {
      this.show({ id, task, data: liveRunData(id, null), trusted: true }, this._notebooks?.currentWidget ?? null);
      return;
    }
    const read = async () => {
      const file = await contents.get(journal, { type: 'file', format: 'text', content: true });
      return recordedRunData(id, readRecord(String(file.content))?.events ?? []);
    };
    const data = live ? liveRunData(id, null) : await read();
    const resolver = new RenderMimeRegistry.UrlResolver({ path: journal, contents });
    this._add(id, () => runTab({ id, task, data, trusted: true }, this._rendermime, resolver, ''));
  }

  /** Show a run in a tab as an output of `notebook` shows it. If the run has a tab, bring that tab to the front. */
  show(run: IShownRun, notebook: NotebookPanel | null): void {
    const resolver = notebook?.content.rendermime.resolver ?? undefined;
    this._add(run.id, () => runTab(run, this._rendermime, resolver, null));
  }

  private _add(run: string, make: () => Widget): void {
    const id = tabId(run);
    if (![...this._app.shell.widgets('main')].some(widget => widget.id === id)) {
      this._app.shell.add(make(), 'main');
    }
    this._app.shell.activateById(id);
  }
}

function panelOf(notebooks: INotebookTracker | null, place: HTMLElement): NotebookPanel | null {
  return notebooks?.find(panel => panel.node.contains(place)) ?? null;
}

async function makeRoom(
  app: JupyterFrontEnd,
  sandboxes: Sandboxes,
  host: ISectionHost,
  notebooks: INotebookTracker | null,
  place: HTMLElement
): Promise<void> {
  const { trans } = host;
  const panel = panelOf(notebooks, place);
  await sandboxes.refresh();
  const idle = sandboxes.idle(panel?.context.path ?? null);
  const oldest = idle.sort((a, b) => a.last_activity.localeCompare(b.last_activity))[0];
  if (!panel || !oldest) {
    throw new Error(trans('No sandbox is idle any more: wait until a run ends.'));
  }
  const name = visibleName(oldest.notebook ?? trans('A kernel without a notebook'));
  const lost = trans('%1: its files are lost; records of runs stay. Then this cell runs again.', name);
  if (await host.confirm(trans('Stop the longest idle sandbox?'), lost, trans('Stop and run again'))) {
    await sandboxes.api.stop(oldest.id);
    await sandboxes.refresh();
    const { content } = panel;
    content.activeCellIndex = content.widgets.findIndex(cell => cell.node.contains(place));
    content.deselectAll();
    await app.commands.execute('notebook:run-cell');
  }
}

function sectionHost(
  app: JupyterFrontEnd,
  sandboxes: Sandboxes,
  notebooks: INotebookTracker | null,
  rendermime: IRenderMimeRegistry,
  translator: ITranslator,
  trans: Trans,
  tabs: boolean
): ISectionHost {
  const { api } = sandboxes;
  return {
    api,
    trans,
    confirm: async (title, body, accept) => {
      const buttons = [Dialog.cancelButton({ label: trans('Cancel') }), Dialog.warnButton({ label: accept })];
      return (await showDialog({ title, body, buttons })).button.accept;
    },
    openNotebook: path => void app.commands.execute('docmanager:open', { path }),
    openFile: async (sandbox, file) => {
      if (tabs) {
        app.shell.add(previewFile(api, sandbox, file, rendermime, translator), 'main');
      } else {
        await downloadFile(api, sandbox, file);
      }
    },
    download: (sandbox, file) => downloadFile(api, sandbox, file),
    openTerminal: async sandbox => {
      const widget = await terminalTab(sandbox, api.settings, translator);
      // Notebook 7 has one document to a page, and room below it.
      app.shell.add(widget, tabs ? 'main' : 'down', { mode: 'split-bottom' });
      app.shell.activateById(widget.id);
    },
    acceptCalls: async sandbox => {
      const panel = notebooks?.find(one => one.context.path === sandbox.notebook);
      if (!panel) {
        throw new Error(trans('Open the notebook of this sandbox first, then accept calls.'));
      }
      app.shell.activateById(panel.id);
      insertLine(panel.content, 'mcp');
      await app.commands.execute('notebook:run-cell');
    },
    done: () => void sandboxes.refresh()
  };
}

/** Return a function that returns the present settings. Without a registry, there are no settings. */
function loadSettings(registry: ISettingRegistry | null): () => Promise<Partial<ICellSettings>> {
  const loading = registry?.load(ID).catch(reason => {
    console.warn('The settings of the sandbox cannot be read.', reason);
    return null;
  });
  void loading?.then(settings => {
    const read = () => (personal.runPages = settings?.composite['runPages'] === true);
    settings?.changed.connect(read);
    read();
  });
  return async () => (await loading)?.composite ?? {};
}

interface ICommandParts {
  notebooks: INotebookTracker | null;
  sandboxes: Sandboxes;
  host: ISectionHost;
  settings: () => Promise<Partial<ICellSettings>>;
  trans: Trans;
  panel: () => void;
}

function addCommands(app: JupyterFrontEnd, parts: ICommandParts): void {
  const { notebooks, sandboxes, host, settings, trans } = parts;
  const current = () => sandboxes.of(notebooks?.currentWidget?.context.path ?? null);
  const lost = trans('Its files and running programs are lost. Records of runs stay.');
  app.commands.addCommand(CommandIDs.insertCell, {
    label: trans('Insert a Sandbox Cell'),
    caption: trans('Insert a cell whose text is a task for a language model'),
    icon: args => (args['isPalette'] ? undefined : sandboxIcon),
    describedBy: { args: { type: 'object', properties: {} } },
    isEnabled: () => !!notebooks?.currentWidget,
    execute: async () => {
      const widget = notebooks?.currentWidget;
      if (widget) {
        await insertCell(widget.content, await settings(), trans('Write the task here.'));
      }
    }
  });
  addCommand(app, CommandIDs.showPanel, trans('Show Sandboxes'), () => parts.panel());
  const act = (id: string, label: string, question: string, action: (sandbox: string) => Promise<void>) => {
    const execute = async () => {
      const sandbox = current();
      if (sandbox && (!question || (await host.confirm(question, lost, label)))) {
        await action(sandbox.id);
        await sandboxes.refresh();
      }
    };
    addCommand(app, id, label, execute, () => !!current());
  };
  const openTerminal = async () => {
    const sandbox = current();
    if (sandbox) {
      await host.openTerminal(sandbox);
    }
  };
  const terminal = trans("Open a Terminal in This Notebook's Sandbox");
  addCommand(app, CommandIDs.terminal, terminal, openTerminal, () => !!current()?.terminal);
  const { api } = host;
  act(CommandIDs.restart, trans("Restart This Notebook's Sandbox"), '', id => api.restart(id));
  act(CommandIDs.reset, trans("Reset This Notebook's Sandbox…"), trans('Reset the sandbox?'), id => api.reset(id));
  act(CommandIDs.stop, trans("Stop This Notebook's Sandbox…"), trans('Stop the sandbox?'), id => api.stop(id));
}
