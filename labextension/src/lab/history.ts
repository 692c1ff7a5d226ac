/** The files of a run's earlier steps, as the Jupyter server reads them from the run's history. */

import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';

import type { IFileChanges, IHistory, IOldFolder } from '../view/host';
import { ApiError, sentence } from './api';

export class RunHistory implements IHistory {
  constructor(
    private _settings: ServerConnection.ISettings,
    private _runId: string
  ) {}

  async files(checkpoint: string, path: string): Promise<IOldFolder> {
    const query: Record<string, string> = path ? { path } : {};
    return (await (await this._get(checkpoint, 'files', query)).json()) as IOldFolder;
  }

  async read(checkpoint: string, path: string): Promise<Uint8Array> {
    return new Uint8Array(await (await this._get(checkpoint, 'files/content', { path })).arrayBuffer());
  }

  async changes(from: string, to: string): Promise<IFileChanges> {
    return (await (await this._get(to, 'changes', { since: from })).json()) as IFileChanges;
  }

  async diff(from: string, to: string, path: string): Promise<{ diff: string | null; note: string }> {
    return (await (await this._get(to, 'diff', { since: from, path })).json()) as { diff: string | null; note: string };
  }

  /** The run's record as it is now; null when the server does not have it. */
  async journal(): Promise<string | null> {
    try {
      return await (await this._get('journal')).text();
    } catch {
      return null;
    }
  }

  private async _get(checkpoint: string, rest = '', query: Record<string, string> = {}): Promise<Response> {
    const parts = [this._runId, 'history', checkpoint].map(encodeURIComponent);
    const { baseUrl } = this._settings;
    const url = URLExt.join(baseUrl, 'llm-sandbox/api/runs', ...parts, rest) + URLExt.objectToQueryString(query);
    const response = await ServerConnection.makeRequest(url, {}, this._settings);
    if (!response.ok) {
      throw new ApiError(await sentence(response), response.status);
    }
    return response;
  }
}
