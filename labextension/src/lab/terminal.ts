/** A terminal in a sandbox, in Lab's own terminal widget: the shell behind it ends when the tab is closed. */

import { MainAreaWidget } from '@jupyterlab/apputils';
import { ServerConnection, Terminal } from '@jupyterlab/services';
import { ITranslator } from '@jupyterlab/translation';
import { ISignal, Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';

import { visibleName } from '../artifacts/names';
import { ISandbox } from './api';
import { sandboxIcon } from './icon';
import { openSocket } from './server';

/** Milliseconds until output is acknowledged. The server waits for this, so that it never floods the page. */
const ACK_MS = 16;

/** The connection of Lab's terminal widget to the server extension. */
class SandboxTerminal implements Terminal.ITerminalConnection {
  readonly name: string;
  readonly model: Terminal.IModel;
  isDisposed = false;
  connectionStatus: Terminal.ConnectionStatus = 'connecting';
  private _socket: WebSocket | null = null;
  private _shown = 0;
  private _timer = 0;
  private _received = new Signal<this, Terminal.IMessage>(this);
  private _statusChanged = new Signal<this, Terminal.ConnectionStatus>(this);
  private _disposed = new Signal<this, void>(this);

  constructor(
    sandbox: ISandbox,
    readonly serverSettings: ServerConnection.ISettings,
    private _ended: (reason: string) => string
  ) {
    this.name = sandbox.id;
    this.model = { name: sandbox.id };
    this._open();
  }

  get messageReceived(): ISignal<this, Terminal.IMessage> {
    return this._received;
  }

  get connectionStatusChanged(): ISignal<this, Terminal.ConnectionStatus> {
    return this._statusChanged;
  }

  get disposed(): ISignal<this, void> {
    return this._disposed;
  }

  send(message: Terminal.IMessage): void {
    this._tell(message.type, ...(message.content ?? []));
  }

  /** Start a new shell, because the earlier shell ended with its connection. */
  async reconnect(): Promise<void> {
    if (!this.isDisposed && this.connectionStatus === 'disconnected') {
      this._open();
    }
  }

  async shutdown(): Promise<void> {
    this.dispose();
  }

  dispose(): void {
    if (this.isDisposed) {
      return;
    }
    this.isDisposed = true;
    window.clearTimeout(this._timer);
    const socket = this._socket;
    this._socket = null;
    socket?.close();
    this._disposed.emit();
    this._setStatus('disconnected');
    Signal.clearData(this);
  }

  private _open(): void {
    this._setStatus('connecting');
    const socket = openSocket(this.serverSettings, ['sandboxes', this.name, 'terminal']);
    this._socket = socket;
    socket.onmessage = event => {
      if (socket === this._socket) {
        this._take(JSON.parse(event.data as string) as [string, string, number]);
      }
    };
    socket.onclose = event => {
      if (socket === this._socket) {
        this._socket = null;
        this._show(`\r\n[${this._ended(event.reason)}]\r\n`);
        this._setStatus('disconnected');
      }
    };
  }

  private _take([type, text, size]: [string, string, number]): void {
    if (type === 'setup') {
      this._setStatus('connected');
    } else if (type === 'stdout') {
      this._show(text);
      this._shown += size;
      this._timer ||= window.setTimeout(() => this._acknowledge(), ACK_MS);
    }
  }

  private _acknowledge(): void {
    this._timer = 0;
    this._tell('ack', this._shown);
    this._shown = 0;
  }

  private _show(text: string): void {
    this._received.emit({ type: 'stdout', content: [text] });
  }

  private _tell(...message: unknown[]): void {
    if (this._socket?.readyState === WebSocket.OPEN) {
      this._socket.send(JSON.stringify(message));
    }
  }

  private _setStatus(status: Terminal.ConnectionStatus): void {
    if (status !== this.connectionStatus) {
      this.connectionStatus = status;
      this._statusChanged.emit(status);
    }
  }
}

/** Return a tab with a terminal. The output of programs cannot change the tab's title or the clipboard. */
export async function terminalTab(
  sandbox: ISandbox,
  settings: ServerConnection.ISettings,
  translator: ITranslator
): Promise<MainAreaWidget<Widget>> {
  const widgets = await import('@jupyterlab/terminal');
  const bundle = translator.load('llm_sandbox_nb');
  const ended = (reason: string) => visibleName(reason) || bundle.__('The connection has ended.');
  const session = new SandboxTerminal(sandbox, settings, ended);
  const content = new widgets.Terminal(session, {}, translator);
  content.disposed.connect(() => session.dispose());
  const label = bundle.__('Sandbox of %1', visibleName(sandbox.notebook ?? sandbox.id));
  const widget = new MainAreaWidget<Widget>({ content });
  const named = () => {
    for (const { title } of [content, widget]) {
      title.label = label;
      title.caption = label;
    }
  };
  content.title.icon = sandboxIcon;
  content.title.closable = true;
  widget.addClass('lsn-terminal');
  await content.ready;
  content.title.changed.connect(named);
  named();
  return widget;
}
