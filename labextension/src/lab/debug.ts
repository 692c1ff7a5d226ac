/** Commands and keys for a run that is stopped at a call: as in JupyterLab's debugger, and only while one is stopped. */

import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { IStopped, stoppedWithin, watchStops } from '../view/stopped';

/** On the page's body while the run of the document in front is stopped: the shortcuts' selectors name it. */
const MARK = 'llmSandboxStopped';

export namespace DebugCommandIDs {
  export const resume = 'llm-sandbox:continue';
  export const step = 'llm-sandbox:step';
  export const stop = 'llm-sandbox:stop-run';
}

export const debugPlugin: JupyterFrontEndPlugin<void> = {
  id: 'llm-sandbox-nb:debugger',
  description: 'Commands and keys to go on with a run that is stopped.',
  autoStart: true,
  optional: [ITranslator, ICommandPalette],
  activate
};

function activate(app: JupyterFrontEnd, translator: ITranslator | null, palette: ICommandPalette | null): void {
  const bundle = (translator ?? nullTranslator).load('llm_sandbox_nb');
  const stopped = () => stoppedWithin(app.shell.currentWidget?.node);
  const add = (id: string, label: string, action: (one: IStopped) => void) => {
    app.commands.addCommand(id, {
      label,
      describedBy: { args: { type: 'object', properties: {} } },
      isEnabled: () => stopped() !== null,
      execute: () => {
        const one = stopped();
        if (one) {
          action(one);
        }
      }
    });
    palette?.addItem({ command: id, category: bundle.__('Sandbox') });
  };
  add(DebugCommandIDs.resume, bundle.__('Continue the Stopped Run'), one => one.continue());
  add(DebugCommandIDs.step, bundle.__('Step the Stopped Run'), one => one.step());
  add(DebugCommandIDs.stop, bundle.__('End the Stopped Run'), one => one.end());
  const mark = () => {
    if (stopped()) {
      document.body.dataset[MARK] = 'true';
    } else {
      delete document.body.dataset[MARK];
    }
    app.commands.notifyCommandChanged();
  };
  watchStops(mark);
  app.shell.currentChanged?.connect(mark);
}
