/** The status bar's item: the sandbox and the live run of the notebook in front. */

import { Widget } from '@lumino/widgets';

import { makeButton } from '../view/dom';
import { ISandbox } from './api';
import { IRunState } from './run-api';
import { Trans } from '../formatting';

export class SandboxStatus extends Widget {
  private _button: HTMLButtonElement;

  constructor(
    private _trans: Trans,
    open: () => void
  ) {
    super();
    this.addClass('lsn-status');
    this._button = makeButton('', open, { title: _trans('Show the sandboxes') });
    this.node.append(this._button);
    this.showState(undefined, undefined);
  }

  showState(sandbox: ISandbox | undefined, run: IRunState | undefined): void {
    const idle = sandbox ? this._words(sandbox) : this._trans('none');
    this._button.textContent = this._trans('Sandbox: %1', run ? runWords(run, this._trans) : idle);
    this._button.dataset.state = run ? (run.paused ? 'wait' : 'live') : (sandbox?.state ?? 'none');
  }

  private _words(sandbox: ISandbox): string {
    const isolation = sandbox.protection?.isolation;
    const states = {
      starting: this._trans('starting'),
      lost: this._trans('lost'),
      running: sandbox.requests ? this._trans('busy') : this._trans('idle')
    };
    return isolation ? `${isolation}, ${states[sandbox.state]}` : states[sandbox.state];
  }
}

/** Return the present activity of a live run in words. */
export function runWords(run: IRunState, trans: Trans): string {
  if (run.state === 'away') {
    return trans('the kernel does not answer');
  }
  if (run.paused) {
    return trans('waiting for you');
  }
  return run.steps ? trans('running step %1', run.steps) : trans('starting a run');
}
