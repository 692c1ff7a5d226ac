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
  async run(id: string): Promise<IRunState> {
    const url = URLExt.join(this._settings.baseUrl, 'llm-sandbox/api/runs', encodeURIComponent(id));
    const response = await ServerConnection.makeRequest(url, {}, this._settings);
    if (!response.ok) {
      throw new ApiError(await sentence(response), response.status);
    }
    return (await response.json()) as IRunState;
  }
}
