/** The status bar's word on the sandbox of the notebook in front. */

import { Widget } from '@lumino/widgets';

import { h } from '../view/dom';
import { ISandbox } from './api';

export class SandboxStatus extends Widget {
  private _button: HTMLButtonElement;

  constructor(
    private _trans: (text: string, ...args: (string | number)[]) => string,
    open: () => void
  ) {
    super();
    this.addClass('lsn-status');
    this._button = h('button', { type: 'button', title: _trans('Show the sandboxes'), onclick: open });
    this.node.append(this._button);
    this.showState(undefined);
  }

  showState(sandbox: ISandbox | undefined): void {
    this._button.textContent = this._trans('Sandbox: %1', sandbox ? this._words(sandbox) : this._trans('none'));
    this._button.dataset.state = sandbox?.state ?? 'none';
  }

  private _words(sandbox: ISandbox): string {
    const isolation = sandbox.protection?.isolation;
    const states = {
      starting: this._trans('starting'),
      lost: this._trans('lost'),
      running: sandbox.requests ? this._trans('at work') : this._trans('idle')
    };
    return isolation ? `${isolation}, ${states[sandbox.state]}` : states[sandbox.state];
  }
}
