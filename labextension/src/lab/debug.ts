/** Commands and keys for a run that waits at a call: as in JupyterLab's debugger, and only while one waits. */

import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { IPausedRun, pausedRunWithin, watchPausedRuns } from '../view/paused-runs';

/** On the page's body while the run of the document in front waits: the shortcuts' selectors name it. */
const MARK = 'llmSandboxStopped';

export namespace DebugCommandIDs {
  export const resume = 'llm-sandbox:continue';
  export const step = 'llm-sandbox:step';
  export const stop = 'llm-sandbox:stop-run';
}

export const debugPlugin: JupyterFrontEndPlugin<void> = {
  id: 'llm-sandbox-nb:debugger',
  description: 'Commands and keys for a run that waits for a person.',
  autoStart: true,
  optional: [ITranslator, ICommandPalette],
  activate
};

function activate(app: JupyterFrontEnd, translator: ITranslator | null, palette: ICommandPalette | null): void {
  const bundle = (translator ?? nullTranslator).load('llm_sandbox_nb');
  const stopped = () => pausedRunWithin(app.shell.currentWidget?.node);
  const add = (id: string, label: string, action: (one: IPausedRun) => void) => {
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
  add(DebugCommandIDs.resume, bundle.__('Continue the Paused Run'), one => one.continue());
  add(DebugCommandIDs.step, bundle.__('Step the Paused Run'), one => one.step());
  add(DebugCommandIDs.stop, bundle.__('Stop the Paused Run'), one => one.end());
  const mark = () => {
    if (stopped()) {
      document.body.dataset[MARK] = 'true';
    } else {
      delete document.body.dataset[MARK];
    }
    app.commands.notifyCommandChanged();
  };
  watchPausedRuns(mark);
  app.shell.currentChanged?.connect(mark);
}
