/** Access of outside agents, such as Claude Code, to a sandbox: make a token, show it once, revoke it. */

import { Trans } from '../formatting';
import { errorText, h, makeButton } from '../view/dom';
import { IMcpAccess } from './api';

/** Actions of the form on one sandbox. Each rejects with a sentence for the person. */
export interface IAccessActions {
  access(): Promise<IMcpAccess>;
  /** Make a token. Return the lines with the token for the configuration of each client. */
  make(): Promise<string>;
  revoke(): Promise<void>;
  /** Execute `%sandbox mcp` in the notebook, in a new cell, which shows the calls. */
  open(): Promise<void>;
  confirm(title: string, body: string, accept: string): Promise<boolean>;
  copy(text: string): Promise<void>;
}

export class McpAccess {
  readonly node: HTMLDetailsElement;
  private _note = h('div', { class: 'lsn-panel-note', role: 'status' });
  private _problem = h('div', { class: 'lsn-panel-problem', role: 'alert' });
  private _make: HTMLButtonElement;
  private _revoke: HTMLButtonElement;
  private _open: HTMLButtonElement;
  private _lines: HTMLTextAreaElement;
  private _shown: HTMLElement;
  private _exists = false;

  constructor(
    private _actions: IAccessActions,
    private _trans: Trans
  ) {
    const button = (text: string, action: () => Promise<void>) => makeButton(text, () => void this._do(action));
    this._make = button('', () => this._makeToken());
    this._revoke = button(_trans('Revoke'), () => this._revokeToken());
    this._open = button(_trans('Accept calls'), () => _actions.open());
    const copy = button(_trans('Copy'), () => {
      this._lines.select();
      return _actions.copy(this._lines.value);
    });
    this._lines = h('textarea', {
      rows: '12',
      spellcheck: 'false',
      'aria-label': _trans('How to connect, shown once')
    });
    this._lines.readOnly = true;
    const once = _trans(
      'Shown once: the token cannot be read again. Close this section to remove this text from the page.'
    );
    this._shown = h('div', { class: 'lsn-panel-connect' }, h('small', {}, once), this._lines, copy);
    const row = h('div', { class: 'lsn-panel-actions' }, this._make, this._open, this._revoke);
    const summary = h('summary', {}, _trans('Outside agents (MCP)'));
    this.node = h('details', { class: 'lsn-panel-mcp' }, summary, this._note, row, this._shown, this._problem);
    this.node.addEventListener('toggle', () => {
      if (this.node.open) {
        void this._do(async () => undefined);
      } else {
        this.hide();
      }
    });
    this._draw({ exists: false, run: null });
    this.hide();
  }

  /** Forget the token on the page. */
  hide(): void {
    this._lines.value = '';
    this._shown.hidden = true;
  }

  private _draw({ exists, run }: IMcpAccess): void {
    const trans = this._trans;
    this._exists = exists;
    this._make.textContent = exists ? trans('Replace the token…') : trans('Make a token');
    this._revoke.hidden = !exists;
    this._open.hidden = !!run;
    const token = exists
      ? trans('There is a token for Claude Code, Cursor, VS Code and others.')
      : trans('There is no token, so outside agents have no access.');
    const calls = run
      ? trans('The notebook accepts calls; its card shows them.')
      : trans('The notebook does not accept calls: execute %sandbox mcp in it.');
    this._note.textContent = `${token} ${calls}`;
  }

  private async _makeToken(): Promise<void> {
    const trans = this._trans;
    const warning = trans('Agents that have the present token lose their access. The new token is shown once.');
    if (this._exists && !(await this._actions.confirm(trans('Replace the token?'), warning, trans('Replace')))) {
      return;
    }
    this._lines.value = await this._actions.make();
    this._shown.hidden = false;
  }

  private async _revokeToken(): Promise<void> {
    await this._actions.revoke();
    this.hide();
  }

  /** Execute an action, then show the access that the server reports. */
  private async _do(action: () => Promise<void>): Promise<void> {
    const buttons = [this._make, this._revoke, this._open];
    buttons.forEach(button => (button.disabled = true));
    this._problem.textContent = '';
    try {
      await action();
      this._draw(await this._actions.access());
    } catch (error) {
      this._problem.textContent = errorText(error);
    } finally {
      buttons.forEach(button => (button.disabled = false));
    }
  }
}
