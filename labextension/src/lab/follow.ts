/** Connects the cards of live runs to the server, which knows what has happened and passes decisions on. */

import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ServerConnection } from '@jupyterlab/services';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { Follow, LookBack, offerLive, offerPast } from '../live';
import type { ITimeTravel } from '../view/host';
import { RunHistory } from './history';
import { LiveRun, RunState } from './live';
import { isLive, RunApi } from './run-api';
import { KernelTimeTravel } from './time-travel';

const OVER: readonly RunState[] = ['finished', 'lost', 'unknown'];

export const followPlugin: JupyterFrontEndPlugin<void> = {
  id: 'llm-sandbox-nb:live',
  description: 'Follows runs while they go on.',
  autoStart: true,
  optional: [INotebookTracker, ITranslator],
  activate: (app: JupyterFrontEnd, notebooks: INotebookTracker | null, translator: ITranslator | null) => {
    const settings = app.serviceManager.serverSettings;
    const bundle = (translator ?? nullTranslator).load('llm_sandbox_nb');
    const api = new RunApi(settings);
    const travel = (runId: string) =>
      new KernelTimeTravel(runId, api, notebooks, (text, ...args) => bundle.__(text, ...args));
    offerLive(follower(settings, travel));
    offerPast(rememberer(settings, api, travel));
  }
};

function follower(settings: ServerConnection.ISettings, travel: (runId: string) => ITimeTravel): Follow {
  return (runId, sink) => {
    const run = new LiveRun(settings, runId, travel(runId));
    run.connect(
      events => sink.add(events),
      state => {
        if (state !== 'offline' && state !== 'unknown') {
          sink.known();
        }
        sink.away(state === 'offline' ? 'server' : state === 'away' ? 'kernel' : null);
        if (OVER.includes(state)) {
          sink.ended();
        }
      }
    );
    return run;
  };
}

function rememberer(
  settings: ServerConnection.ISettings,
  api: RunApi,
  travel: (runId: string) => ITimeTravel
): LookBack {
  return async runId => {
    const known = await api.run(runId).catch(() => null);
    const history = new RunHistory(settings, runId);
    const journal = () => history.journal();
    return known && { history, events: known.events, live: isLive(known), timeTravel: travel(runId), journal };
  };
}
