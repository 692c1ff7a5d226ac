/** One run as the server knows it. */

import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';

import { ApiError, sentence } from './api';

export interface IRunState {
  id: string;
  kernel_id: string;
  notebook: string | null;
  state: 'live' | 'away' | 'lost' | 'finished';
}

export class RunApi {
  constructor(private _settings: ServerConnection.ISettings) {}

  /** How it stands. Rejects when the server does not know it. */
  run(id: string): Promise<IRunState> {
    return this._ask(id, '', {});
  }

  /** Carry a decision to a run that goes on; how it stands then. Rejects with the sentence that says why not. */
  control(id: string, action: string, more: Record<string, unknown>): Promise<IRunState> {
    return this._ask(id, 'control', { method: 'POST', body: JSON.stringify({ action, ...more }) });
  }

  private async _ask(id: string, rest: string, init: RequestInit): Promise<IRunState> {
    const url = URLExt.join(this._settings.baseUrl, 'llm-sandbox/api/runs', encodeURIComponent(id), rest);
    const response = await ServerConnection.makeRequest(url, init, this._settings);
    if (!response.ok) {
      throw new ApiError(await sentence(response), response.status);
    }
    return (await response.json()) as IRunState;
  }
}
