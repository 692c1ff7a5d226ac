/** The side panel, the commands, the toolbar's button and the status bar's word. */

import { ILabShell, ILayoutRestorer, JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { Dialog, ICommandPalette, showDialog } from '@jupyterlab/apputils';
import { INotebookTracker } from '@jupyterlab/notebook';
import { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { IStatusBar } from '@jupyterlab/statusbar';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { SandboxApi } from './api';
import { ICellSettings, insertCell } from './cell';
import { sandboxIcon } from './icon';
import { SandboxPanel } from './panel';
import { downloadFile, previewFile } from './preview';
import { RunsView } from './runs';
import { Sandboxes } from './sandboxes';
import { ISectionHost } from './section';
import { SandboxStatus } from './status';
import { terminalTab } from './terminal';

const ID = 'llm-sandbox-nb:plugin';
const PANEL = 'llm-sandbox-panel';

export namespace CommandIDs {
  export const insertCell = 'llm-sandbox:insert-cell';
  export const showPanel = 'llm-sandbox:show-panel';
  export const restart = 'llm-sandbox:restart';
  export const reset = 'llm-sandbox:reset';
  export const stop = 'llm-sandbox:stop';
  export const terminal = 'llm-sandbox:terminal';
}

type Trans = (text: string, ...args: (string | number)[]) => string;

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
  const sandboxes = new Sandboxes(new SandboxApi(app.serviceManager.serverSettings));
  const host = sectionHost(app, sandboxes, rendermime, translator ?? nullTranslator, trans, !!labShell);
  const open = (path: string) => void app.commands.execute('docmanager:open', { path });
  const panel = new SandboxPanel(sandboxes, host, new RunsView(app.serviceManager.contents, open, trans));
  panel.id = PANEL;
  panel.title.icon = sandboxIcon;
  panel.title.caption = trans('Sandboxes');
  app.shell.add(panel, 'left', { rank: 650, type: trans('Sandboxes') });
  restorer?.add(panel, PANEL);

  const settings = loadSettings(registry);
  addCommands(app, { notebooks, sandboxes, host, settings, trans, panel: () => app.shell.activateById(PANEL) });
  const category = trans('Sandbox');
  Object.values(CommandIDs).forEach(command => palette?.addItem({ command, category }));

  const status = new SandboxStatus(trans, () => void app.commands.execute(CommandIDs.showPanel));
  statusBar?.registerStatusItem(ID, { item: status, align: 'left', rank: 90, isActive: () => true });

  const current = () => notebooks?.currentWidget?.context.path ?? null;
  const follow = () => {
    panel.notebook = current();
    status.showState(sandboxes.of(current()));
  };
  notebooks?.currentChanged.connect((_sender, widget) => {
    widget?.context.pathChanged.connect(follow);
    follow();
  });
  sandboxes.changed.connect(() => {
    status.showState(sandboxes.of(current()));
    app.commands.notifyCommandChanged();
  });
  labShell?.layoutModified.connect(follow);
  follow();
}

function sectionHost(
  app: JupyterFrontEnd,
  sandboxes: Sandboxes,
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
    done: () => void sandboxes.refresh()
  };
}

/** The settings as they are when they are asked for; none without a registry. */
function loadSettings(registry: ISettingRegistry | null): () => Promise<Partial<ICellSettings>> {
  const loading = registry?.load(ID).catch(reason => {
    console.warn('The settings of the sandbox cannot be read.', reason);
    return null;
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
  const { commands } = app;
  const current = () => sandboxes.of(notebooks?.currentWidget?.context.path ?? null);
  const lost = trans('Its files and everything that runs in it are lost. Records of runs stay.');
  commands.addCommand(CommandIDs.insertCell, {
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
  commands.addCommand(CommandIDs.showPanel, {
    label: trans('Show Sandboxes'),
    describedBy: { args: { type: 'object', properties: {} } },
    execute: () => parts.panel()
  });
  const act = (id: string, label: string, question: string, action: (sandbox: string) => Promise<void>) =>
    commands.addCommand(id, {
      label,
      describedBy: { args: { type: 'object', properties: {} } },
      isEnabled: () => !!current(),
      execute: async () => {
        const sandbox = current();
        if (sandbox && (!question || (await host.confirm(question, lost, label)))) {
          await action(sandbox.id);
          await sandboxes.refresh();
        }
      }
    });
  commands.addCommand(CommandIDs.terminal, {
    label: trans("Open a Terminal in This Notebook's Sandbox"),
    describedBy: { args: { type: 'object', properties: {} } },
    isEnabled: () => !!current()?.terminal,
    execute: async () => {
      const sandbox = current();
      if (sandbox) {
        await host.openTerminal(sandbox);
      }
    }
  });
  const { api } = host;
  act(CommandIDs.restart, trans("Restart This Notebook's Sandbox"), '', id => api.restart(id));
  act(CommandIDs.reset, trans("Reset This Notebook's Sandbox…"), trans('Reset the sandbox?'), id => api.reset(id));
  act(CommandIDs.stop, trans("Stop This Notebook's Sandbox…"), trans('Stop the sandbox?'), id => api.stop(id));
}
