/** Requests about sandboxes to the server. */

import { URLExt } from '@jupyterlab/coreutils';

import type { IFileEntry as IFile } from '../view/host';
import { ServerApi } from './server';

export type { IFile };

export interface IProtection {
  isolation: string;
  isolates?: boolean;
  profile: string;
  user: string;
  capabilities: string[];
  seccomp: string;
  network: string;
  memory_bytes: number | null;
  pids: number | null;
  cpus: number | null;
  /** Limit of all files together; absent at an older server. */
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
  /** Address of a terminal in the sandbox; null if the site allows none. */
  terminal: string | null;
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
  /** Id of the notebook's run that accepts calls now; null until the notebook executes `%sandbox mcp`. */
  run: string | null;
}

export class SandboxApi extends ServerApi {
  async list(): Promise<ISandbox[]> {
    return (await this.json<{ sandboxes: ISandbox[] }>(['sandboxes'])).sandboxes;
  }

  async stop(id: string): Promise<void> {
    await this.request(['sandboxes', id], {}, { method: 'DELETE' });
  }

  /** Stop all idle sandboxes of other kernels. */
  async stopIdle(kernel: string): Promise<void> {
    const body = JSON.stringify({ kernel_id: kernel });
    await this.request(['sandboxes', 'stop-idle'], {}, { method: 'POST', body });
  }

  async reset(id: string): Promise<void> {
    await this.request(['sandboxes', id, 'reset'], {}, { method: 'POST' });
  }

  async restart(id: string): Promise<void> {
    await this.request(['sandboxes', id, 'restart'], {}, { method: 'POST' });
  }

  usage(id: string): Promise<IUsage> {
    return this.json(['sandboxes', id, 'stats']);
  }

  async files(id: string, path: string): Promise<IFile[]> {
    return (await this.json<{ files: IFile[] }>(['sandboxes', id, 'files'], { path })).files;
  }

  read(id: string, path: string): Promise<Uint8Array> {
    return this.bytes(['sandboxes', id, 'files', 'content'], { path });
  }

  async write(id: string, path: string, body: Blob): Promise<void> {
    await this.request(['sandboxes', id, 'files', 'content'], { path }, { method: 'PUT', body });
  }

  mcpAccess(id: string): Promise<IMcpAccess> {
    return this.json<IMcpAccess>(['sandboxes', id, 'mcp-token']);
  }

  /** Replace the token. Return lines for the configuration of MCP clients: only they contain the new token. */
  async makeMcpToken(id: string): Promise<string> {
    const body = JSON.stringify({ url: URLExt.join(this.settings.baseUrl, '/') });
    return (await this.json<{ connect: string }>(['sandboxes', id, 'mcp-token'], {}, { method: 'POST', body })).connect;
  }

  async revokeMcpToken(id: string): Promise<void> {
    await this.request(['sandboxes', id, 'mcp-token'], {}, { method: 'DELETE' });
  }
}
