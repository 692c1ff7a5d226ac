/** The server extension's REST routes, as far as the page uses them. */

import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';

export interface IProtection {
  isolation: string;
  profile: string;
  user: string;
  capabilities: string[];
  no_new_privileges: boolean;
  seccomp: string;
  network: string;
  read_only_system: boolean;
  memory_bytes: number | null;
  pids: number | null;
  cpus: number | null;
  /** Of all files together; not there in sandboxes of an older server. */
  disk_bytes?: number | null;
  files?: number | null;
  protects: string;
  does_not_protect: string;
}

export interface ISandbox {
  id: string;
  kernel_id: string;
  /** Path of the notebook below the server's root; null when the kernel has none. */
  notebook: string | null;
  state: 'starting' | 'running' | 'lost';
  last_activity: string;
  requests: number;
  root: string | null;
  protection: IProtection | null;
  /** Where a terminal in it is; null when the site allows none. */
  terminal: string | null;
}

export interface IFile {
  path: string;
  kind: 'file' | 'directory' | 'link' | 'other';
  size: number;
}

export interface IUsage {
  time: number;
  processes: number;
  cpu_seconds: number;
  memory_bytes: number;
}

/** How outside agents reach a sandbox over MCP. */
export interface IMcpAccess {
  /** True if there is a token; the server stores only its hash. */
  exists: boolean;
  /** The run of the notebook that accepts calls now; null until the notebook executes `%sandbox mcp`. */
  run: string | null;
}

/** The server's own sentence about what went wrong. */
export class ApiError extends Error {
  constructor(
    message: string,
    readonly status: number
  ) {
    super(message);
  }
}

export class SandboxApi {
  constructor(readonly settings: ServerConnection.ISettings) {}

  async list(): Promise<ISandbox[]> {
    return (await this._json<{ sandboxes: ISandbox[] }>('sandboxes')).sandboxes;
  }

  async stop(id: string): Promise<void> {
    await this._request(`sandboxes/${id}`, { method: 'DELETE' });
  }

  /** End idle sandboxes of other kernels than this one: so many, or all. The notebooks whose they were. */
  async stopIdle(kernel: string, most?: number): Promise<(string | null)[]> {
    const init = { method: 'POST', body: JSON.stringify({ kernel_id: kernel, most }) };
    const response = await this._request('sandboxes/stop-idle', init);
    return ((await response.json()) as { stopped: { notebook: string | null }[] }).stopped.map(one => one.notebook);
  }

  async reset(id: string): Promise<void> {
    await this._request(`sandboxes/${id}/reset`, { method: 'POST' });
  }

  async restart(id: string): Promise<void> {
    await this._request(`sandboxes/${id}/restart`, { method: 'POST' });
  }

  usage(id: string): Promise<IUsage> {
    return this._json<IUsage>(`sandboxes/${id}/stats`);
  }

  async files(id: string, path: string): Promise<IFile[]> {
    return (await this._json<{ files: IFile[] }>(`sandboxes/${id}/files`, { path })).files;
  }

  async read(id: string, path: string): Promise<Uint8Array> {
    const response = await this._request(`sandboxes/${id}/files/content`, {}, { path });
    return new Uint8Array(await response.arrayBuffer());
  }

  async write(id: string, path: string, body: Blob): Promise<void> {
    await this._request(`sandboxes/${id}/files/content`, { method: 'PUT', body }, { path });
  }

  mcpAccess(id: string): Promise<IMcpAccess> {
    return this._json<IMcpAccess>(`sandboxes/${id}/mcp-token`);
  }

  /** Make a token, which replaces an earlier one. Return the ready lines for MCP clients, which cannot be read again. */
  async makeMcpToken(id: string): Promise<string> {
    const body = JSON.stringify({ url: URLExt.join(this.settings.baseUrl, '/') });
    const response = await this._request(`sandboxes/${id}/mcp-token`, { method: 'POST', body });
    return ((await response.json()) as { connect: string }).connect;
  }

  async revokeMcpToken(id: string): Promise<void> {
    await this._request(`sandboxes/${id}/mcp-token`, { method: 'DELETE' });
  }

  private async _json<T>(route: string, query: Record<string, string> = {}): Promise<T> {
    return (await (await this._request(route, {}, query)).json()) as T;
  }

  private async _request(route: string, init: RequestInit, query: Record<string, string> = {}): Promise<Response> {
    const url = URLExt.join(this.settings.baseUrl, 'llm-sandbox/api', route) + URLExt.objectToQueryString(query);
    const response = await ServerConnection.makeRequest(url, init, this.settings);
    if (!response.ok) {
      throw new ApiError(await sentence(response), response.status);
    }
    return response;
  }
}

/** What the server says about a request that it refused. */
export async function sentence(response: Response): Promise<string> {
  try {
    const { message } = (await response.json()) as { message?: unknown };
    return typeof message === 'string' && message ? message : response.statusText;
  } catch {
    return response.statusText;
  }
}
