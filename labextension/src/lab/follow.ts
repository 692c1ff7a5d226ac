/** Connects the cards of runs that go on with the server, which knows what has happened and passes decisions on. */

import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ServerConnection } from '@jupyterlab/services';

import { Follow, offerLive } from '../live';
import { LiveRun, RunState } from './live';

const OVER: readonly RunState[] = ['finished', 'lost', 'unknown'];

export const followPlugin: JupyterFrontEndPlugin<void> = {
  id: 'llm-sandbox-nb:live',
  description: 'Follows runs while they go on.',
  autoStart: true,
  activate: (app: JupyterFrontEnd) => offerLive(follower(app.serviceManager.serverSettings))
};

function follower(settings: ServerConnection.ISettings): Follow {
  return (runId, sink) => {
    const run = new LiveRun(settings, runId);
    run.connect(
      events => sink.add(events),
      state => {
        sink.away(state === 'offline' ? 'server' : state === 'away' ? 'kernel' : null);
        if (OVER.includes(state)) {
          sink.ended();
        }
      }
    );
    return run;
  };
}
