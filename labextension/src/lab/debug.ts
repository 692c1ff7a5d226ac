/** Commands and keys for a run that waits at a call, as in JupyterLab's debugger. They work only while a run waits. */

import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { addCommand } from './commands';
import { IPausedRun, pausedRunWithin, watchPausedRuns } from '../view/paused-runs';

/** Data attribute of the page's body while the run of the document in front waits. Selectors of shortcuts name it. */
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
  const add = (id: string, label: string, action: (run: IPausedRun) => void) => {
    const execute = () => {
      const run = stopped();
      if (run) {
        action(run);
      }
    };
    addCommand(app, id, label, execute, () => stopped() !== null);
    palette?.addItem({ command: id, category: bundle.__('Sandbox') });
  };
  add(DebugCommandIDs.resume, bundle.__('Continue the Paused Run'), run => run.continue());
  add(DebugCommandIDs.step, bundle.__('Step the Paused Run'), run => run.step());
  add(DebugCommandIDs.stop, bundle.__('Stop the Paused Run'), run => run.end());
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
