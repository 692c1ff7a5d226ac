/** The launcher's card: a notebook with the ten examples, ready to run, in the folder that the file browser shows. */

import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { IDefaultFileBrowser } from '@jupyterlab/filebrowser';
import { ILauncher } from '@jupyterlab/launcher';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import notebook from '../generated/examples.json';
import { sandboxIcon } from './icon';

const COMMAND = 'llm-sandbox:examples';

export const launcherPlugin: JupyterFrontEndPlugin<void> = {
  id: 'llm-sandbox-nb:launcher',
  description: 'A card of the launcher that opens a notebook with ten examples.',
  autoStart: true,
  optional: [ITranslator, ILauncher, ICommandPalette, IDefaultFileBrowser],
  activate
};

function activate(
  app: JupyterFrontEnd,
  translator: ITranslator | null,
  launcher: ILauncher | null,
  palette: ICommandPalette | null,
  browser: IDefaultFileBrowser | null
): void {
  const bundle = (translator ?? nullTranslator).load('llm_sandbox_nb');
  const { contents } = app.serviceManager;
  app.commands.addCommand(COMMAND, {
    label: args => (args['isPalette'] ? bundle.__('New Notebook with Ten Examples') : bundle.__('Ten examples')),
    caption: bundle.__('A new notebook with ten tasks for a model in a sandbox; none needs a key'),
    icon: args => (args['isPalette'] ? undefined : sandboxIcon),
    describedBy: {
      args: {
        type: 'object',
        properties: { cwd: { type: 'string', description: bundle.__('The folder of the new notebook') } }
      }
    },
    execute: async args => {
      const path = typeof args['cwd'] === 'string' ? args['cwd'] : (browser?.model.path ?? '');
      const file = await contents.newUntitled({ path, type: 'notebook' });
      await contents.save(file.path, { type: 'notebook', format: 'json', content: notebook });
      await app.commands.execute('docmanager:open', { path: file.path });
    }
  });
  launcher?.add({ command: COMMAND, category: bundle.__('Sandbox'), rank: 1 });
  palette?.addItem({ command: COMMAND, category: bundle.__('Sandbox'), args: { isPalette: true } });
}
