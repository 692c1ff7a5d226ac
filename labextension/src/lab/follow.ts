/** Connects the cards to the server, which knows the events of runs and passes decisions on. */

import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { liveOffer, pastOffer } from '../live';
import { LiveRun } from './live';
import { isLive, RunApi, RunHistory } from './run-api';
import { KernelTimeTravel } from './time-travel';

export const followPlugin: JupyterFrontEndPlugin<void> = {
  id: 'llm-sandbox-nb:live',
  description: 'Follows runs while they go on.',
  autoStart: true,
  optional: [INotebookTracker, ITranslator],
  activate: (app: JupyterFrontEnd, notebooks: INotebookTracker | null, translator: ITranslator | null) => {
    const bundle = (translator ?? nullTranslator).load('llm_sandbox_nb');
    const api = new RunApi(app.serviceManager.serverSettings);
    const travel = (runId: string) =>
      new KernelTimeTravel(runId, api, notebooks, (text, ...args) => bundle.__(text, ...args));
    liveOffer.resolve((runId, sink) => new LiveRun(api, runId, sink, travel(runId)));
    pastOffer.resolve(async runId => {
      const known = await api.run(runId).catch(() => null);
      const history = new RunHistory(api.settings, runId);
      const journal = () => history.journal();
      return known && { history, events: known.events, live: isLive(known), timeTravel: travel(runId), journal };
    });
  }
};
