/** Requests to the server extension. */

import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';

/** A refusal, with the server's sentence. */
export class ApiError extends Error {
  constructor(
    message: string,
    readonly status: number
  ) {
    super(message);
  }
}

type Query = Record<string, string>;

export class ServerApi {
  constructor(readonly settings: ServerConnection.ISettings) {}

  /** Ask a route below `llm-sandbox/api`. Rejects with an ApiError if the server refuses. */
  protected async request(route: string[], query: Query = {}, init: RequestInit = {}): Promise<Response> {
    const path = URLExt.join(this.settings.baseUrl, 'llm-sandbox/api', ...route.map(encodeURIComponent));
    const response = await ServerConnection.makeRequest(path + URLExt.objectToQueryString(query), init, this.settings);
    if (!response.ok) {
      throw new ApiError(await sentence(response), response.status);
    }
    return response;
  }

  protected async json<T>(route: string[], query: Query = {}, init: RequestInit = {}): Promise<T> {
    return (await (await this.request(route, query, init)).json()) as T;
  }

  protected async bytes(route: string[], query: Query = {}): Promise<Uint8Array> {
    return new Uint8Array(await (await this.request(route, query)).arrayBuffer());
  }
}

/** Open a WebSocket of the server. The token is in the address, because browsers let no page add headers. */
export function openSocket(settings: ServerConnection.ISettings, route: string[], query: Query = {}): WebSocket {
  const { wsUrl, token, appendToken, WebSocket } = settings;
  const path = URLExt.join(wsUrl, 'llm-sandbox/api', ...route.map(encodeURIComponent));
  return new WebSocket(path + URLExt.objectToQueryString(appendToken && token ? { ...query, token } : query));
}

async function sentence(response: Response): Promise<string> {
  try {
    const { message } = (await response.json()) as { message?: unknown };
    return typeof message === 'string' && message ? message : response.statusText;
  } catch {
    return response.statusText;
  }
}
