/** A sandbox in the side panel: its notebook, state, protection and files; the rest behind a button. */

import { PathExt } from '@jupyterlab/coreutils';

import { visibleName } from '../artifacts/names';
import { errorText, h, makeButton } from '../view/dom';
import { isIsolated } from '../view/facts';
import { formatSize } from '../formatting';
import { ISOLATIONS } from '../generated/words';
import { IFile, IProtection, ISandbox, IUsage, SandboxApi } from './api';
import { FilesView } from './files';
import { Graph } from './graph';
import { McpAccess } from './mcp-access';
import { IRunState } from './run-api';
import { runWords } from './status';

/** Services of the page for a section. */
export interface ISectionHost {
  readonly api: SandboxApi;
  trans(text: string, ...args: (string | number)[]): string;
  confirm(title: string, body: string, accept: string): Promise<boolean>;
  openNotebook(path: string): void;
  /** Show a file in a tab. If the page has room for one document only, download the file instead. */
  openFile(sandbox: ISandbox, file: IFile): Promise<void>;
  download(sandbox: ISandbox, file: IFile): Promise<void>;
  openTerminal(sandbox: ISandbox): Promise<void>;
  /** Execute `%sandbox mcp` in the notebook of a sandbox, so that outside agents can call it. */
  acceptCalls(sandbox: ISandbox): Promise<void>;
  /** Called after an action on a sandbox. */
  done(): void;
}

const MEASURE_MS = 2000;
const MB = 1024 * 1024;

export class SandboxSection {
  readonly node: HTMLElement;
  private _title: HTMLButtonElement;
  private _state = h('span', { class: 'lsn-badge' });
  private _line = h('span', { class: 'lsn-panel-line' });
  private _protection = h('dl', { class: 'lsn-panel-protection' });
  private _more: HTMLElement;
  private _moreButton: HTMLButtonElement;
  private _problem = h('div', { class: 'lsn-panel-problem', role: 'alert' });
  private _actions: HTMLElement;
  private _terminal: HTMLButtonElement;
  private _memory: Graph;
  private _cpu: Graph;
  private _graphs: HTMLElement;
  private _files: FilesView | null = null;
  private _folder: HTMLDetailsElement;
  private _count = h('small', {});
  private _access: McpAccess;
  private _memoryUsed: number | null = null;
  private _last: IUsage | null = null;
  private _timer = 0;
  private _visible = false;
  /** Number of times that the section became visible or hidden. */
  private _looks = 0;

  constructor(
    private _sandbox: ISandbox,
    private _host: ISectionHost,
    private _run?: IRunState
  ) {
    const { trans } = _host;
    const open = () => this._sandbox.notebook && _host.openNotebook(this._sandbox.notebook);
    this._title = makeButton('', open, { class: 'lsn-panel-title' });
    this._memory = new Graph(trans('Memory'), 32 * MB, formatSize);
    this._cpu = new Graph(trans('CPU'), 100, value => `${Math.round(value)} %`);
    this._graphs = h('div', { class: 'lsn-graphs' }, this._memory.node, this._cpu.node);
    const openTerminal = () => this._do(() => _host.openTerminal(this._sandbox));
    this._terminal = makeButton(trans('Terminal'), openTerminal, { title: trans('Open a shell in this sandbox') });
    this._actions = this._makeActions();
    const files = h('summary', {}, h('span', {}, trans('Files')), ' ', this._count);
    this._folder = h('details', { class: 'lsn-panel-files' }, files);
    this._folder.addEventListener('toggle', () => this._folder.open && this._openFiles());
    const { api, confirm } = _host;
    this._access = new McpAccess(
      {
        access: () => api.mcpAccess(this._sandbox.id),
        make: () => api.makeMcpToken(this._sandbox.id),
        revoke: () => api.revokeMcpToken(this._sandbox.id),
        open: () => _host.acceptCalls(this._sandbox),
        confirm,
        copy: async text => {
          if (!navigator.clipboard) {
            throw new Error(trans('This page may not use the clipboard: copy the selected lines with the keyboard.'));
          }
          await navigator.clipboard.writeText(text);
        }
      },
      trans
    );
    const more = trans('More about this sandbox');
    this._more = h('div', { class: 'lsn-panel-more', hidden: true }, this._actions, this._graphs, this._protection);
    const toggle = () => {
      this._more.hidden = !this._more.hidden;
      this._moreButton.setAttribute('aria-expanded', String(!this._more.hidden));
    };
    this._moreButton = makeButton('⋯', toggle, { title: more, 'aria-label': more, 'aria-expanded': 'false' });
    this.node = h(
      'section',
      { class: 'lsn-panel-section' },
      h('header', {}, this._title, this._state),
      h('div', { class: 'lsn-panel-row' }, this._line, this._terminal, this._moreButton),
      this._more,
      this._problem,
      this._folder,
      this._access.node
    );
    this._draw(null);
  }

  /** Show the present state; `run` is the live run of the notebook. */
  update(sandbox: ISandbox, run: IRunState | undefined): void {
    const before = this._sandbox;
    this._sandbox = sandbox;
    this._run = run;
    this._draw(before);
    if (before.root !== sandbox.root) {
      this._files?.node.remove();
      this._files = null; // the sandbox was reset: the folder of the earlier sandbox is gone
      if (this._folder.open) {
        this._openFiles();
      }
    }
    if (before.last_activity !== sandbox.last_activity && this._visible) {
      void this._countFiles();
      if (this._folder.open) {
        void this._files?.refresh();
      }
    }
  }

  /** Measure the resource use only while the section is visible. */
  setVisible(visible: boolean): void {
    if (visible !== this._visible) {
      this._visible = visible;
      this._looks++;
      window.clearTimeout(this._timer);
      if (visible) {
        void this._measure(this._looks);
        void this._countFiles();
      }
    }
  }

  dispose(): void {
    this.setVisible(false);
    this.node.remove();
  }

  private _draw(before: ISandbox | null): void {
    const { trans } = this._host;
    const { notebook, state, protection, requests } = this._sandbox;
    const name = visibleName(notebook ?? trans('A kernel without a notebook'));
    this.node.setAttribute('aria-label', trans('Sandbox of %1', name));
    this._title.textContent = visibleName(notebook ? PathExt.basename(notebook) : name);
    this._title.dir = 'auto';
    this._title.title = notebook ? trans('Go to %1', name) : '';
    this._title.disabled = !notebook;
    const words = { starting: trans('starting'), running: trans('idle'), lost: trans('lost') };
    const doing = state === 'running' && requests ? trans('busy') : words[state];
    this._state.textContent = this._run ? runWords(this._run, trans) : doing;
    const live = this._run || requests ? 'live' : '';
    this._state.dataset.state = state === 'lost' ? 'error' : this._run?.paused ? 'wait' : live;
    if (!before || JSON.stringify(before.protection) !== JSON.stringify(protection)) {
      this._protection.replaceChildren(...this._protectionParts(protection));
    }
    this._line.textContent = this._lineText();
    this._graphs.hidden = this._folder.hidden = this._access.node.hidden = state !== 'running';
    this._terminal.hidden = state !== 'running' || !this._sandbox.terminal;
  }

  /** Return the isolation, the network and the memory in one line. */
  private _lineText(): string {
    const { trans } = this._host;
    const { protection } = this._sandbox;
    if (!protection) {
      return trans('No sandbox yet');
    }
    const { isolation } = protection;
    const known = ISOLATIONS.get(isolation) ?? isolation;
    const place = isIsolated(protection) ? known : trans('%1, not isolated', isolation);
    const network = protection.network === 'none' ? trans('no network') : trans('network: %1', protection.network);
    const memory = this._memoryUsed === null ? '' : formatSize(this._memoryUsed);
    return [place, network, memory].filter(part => part).join(' · ');
  }

  /** Show the number of files in the output folder. */
  private async _countFiles(): Promise<void> {
    const { id, root, state } = this._sandbox;
    if (state !== 'running' || !root) {
      return;
    }
    const output = `${root.replace(/\/$/, '')}/output`;
    const files = await this._host.api.files(id, output).catch(() => []);
    this._count.textContent = files.length ? `output/ ${files.length}` : '';
  }

  private _protectionParts(protection: IProtection | null): HTMLElement[] {
    const { trans } = this._host;
    if (!protection) {
      return [];
    }
    const limits = [
      protection.memory_bytes !== null && trans('%1 of memory', formatSize(protection.memory_bytes)),
      protection.cpus !== null && trans('%1 processors', protection.cpus),
      protection.pids !== null && trans('%1 processes', protection.pids),
      typeof protection.disk_bytes === 'number' && trans('%1 of files', formatSize(protection.disk_bytes)),
      typeof protection.files === 'number' && trans('%1 files', protection.files)
    ].filter((one): one is string => !!one);
    const rows: [string, string | HTMLElement][] = [
      [trans('Protects'), protection.protects],
      [trans('Does not protect'), protection.does_not_protect],
      [trans('Profile'), protection.profile],
      [trans('User'), protection.user],
      [trans('Capabilities'), capabilities(protection.capabilities, trans)],
      [trans('System calls'), protection.seccomp],
      [trans('At most'), limits.join(', ') || trans('no limits')]
    ];
    return rows.filter(([, text]) => text).flatMap(([name, text]) => [h('dt', {}, name), h('dd', {}, text)]);
  }

  private _makeActions(): HTMLElement {
    const { trans, api } = this._host;
    const button = (text: string, title: string, action: () => Promise<void>) =>
      makeButton(text, () => void this._do(action), { title });
    const ask = (question: string, consequence: string, accept: string, action: () => Promise<void>) => async () => {
      if (await this._host.confirm(question, consequence, accept)) {
        await action();
      }
    };
    const lost = trans('Its files and running programs are lost. Records of runs stay.');
    return h(
      'div',
      { class: 'lsn-panel-actions', role: 'group', 'aria-label': trans('Actions') },
      button(trans('Restart'), trans('End all processes; files stay'), () => api.restart(this._sandbox.id)),
      button(
        trans('Reset'),
        trans('Replace the sandbox by an empty one'),
        ask(trans('Reset the sandbox?'), lost, trans('Reset'), () => api.reset(this._sandbox.id))
      ),
      button(
        trans('Stop'),
        trans('End the sandbox and free its memory and disk'),
        ask(trans('Stop the sandbox?'), lost, trans('Stop'), () => api.stop(this._sandbox.id))
      )
    );
  }

  private async _do(action: () => Promise<void>): Promise<void> {
    const buttons = this._actions.querySelectorAll('button');
    buttons.forEach(button => (button.disabled = true));
    this._problem.textContent = '';
    try {
      await action();
      await this._files?.refresh();
    } catch (error) {
      this._problem.textContent = errorText(error);
    } finally {
      buttons.forEach(button => (button.disabled = false));
      this._host.done();
    }
  }

  private _openFiles(): void {
    if (!this._files) {
      const { api } = this._host;
      this._files = new FilesView({
        root: this._sandbox.root ?? '/',
        list: path => api.files(this._sandbox.id, path),
        open: file => this._host.openFile(this._sandbox, file),
        download: file => this._host.download(this._sandbox, file),
        upload: (path, file) => api.write(this._sandbox.id, path, file),
        trans: this._host.trans
      });
      this._folder.append(this._files.node);
    }
    void this._files.refresh();
  }

  private async _measure(look: number): Promise<void> {
    if (this._sandbox.state === 'running' && !document.hidden) {
      try {
        this._take(await this._host.api.usage(this._sandbox.id));
      } catch {
        // The error is not shown, because the list of sandboxes shows the state. The graph gets a gap.
        this._last = null;
      }
    }
    if (this._visible && look === this._looks) {
      this._timer = window.setTimeout(() => void this._measure(look), MEASURE_MS);
    }
  }

  private _take(usage: IUsage): void {
    const last = this._last;
    this._last = usage;
    this._memoryUsed = usage.memory_bytes;
    this._line.textContent = this._lineText();
    this._memory.add(usage.memory_bytes);
    if (last && usage.time > last.time) {
      const share = (100 * (usage.cpu_seconds - last.cpu_seconds)) / (usage.time - last.time);
      this._cpu.add(Math.max(0, share));
    }
  }
}

/** Return the number of capabilities; a click lists them. */
function capabilities(names: readonly string[], trans: ISectionHost['trans']): string | HTMLElement {
  const counted = names.length === 1 ? trans('1 capability') : trans('%1 capabilities', names.length);
  return names.length ? h('details', {}, h('summary', {}, counted), names.join(', ')) : trans('none');
}
