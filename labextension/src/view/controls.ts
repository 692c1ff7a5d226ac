/** Stop, pause, resume, and say something, while a run can be controlled. */

import { errorText, h, makeButton, onEnter } from './dom';
import { IControlled } from '../generated/events';
import { IControls, IHost } from './host';

export class ControlBar {
  readonly node: HTMLElement;
  private _status = h('span', { class: 'lsn-count', role: 'status' });
  private _pause: HTMLButtonElement;
  private _say: HTMLInputElement;
  private _paused = false;
  private _known = 0;

  constructor(
    private _controls: IControls,
    private _host: IHost
  ) {
    const trans = _host.trans;
    this._pause = makeButton(trans('Pause'), () => this._toggle());
    this._say = h('input', {
      type: 'text',
      class: 'lsn-say',
      placeholder: trans('Message to the model (read after this command)'),
      'aria-label': trans('Message to the model'),
      'data-lm-suppress-shortcuts': 'true'
    });
    // JupyterLab prevents the Enter key from submitting a form in an output.
    onEnter(this._say, () => this._sendWords());
    const end = () => this._do(() => _controls.stop(), trans('Stopping…'));
    const stop = makeButton(trans('Stop'), end, { class: 'lsn-stop' });
    const form = h('form', { class: 'lsn-say-form' }, this._say, h('button', { type: 'submit' }, trans('Send')));
    form.addEventListener('submit', event => {
      event.preventDefault();
      this._sendWords();
    });
    this.node = h(
      'div',
      { class: 'lsn-controls', role: 'toolbar', 'aria-label': trans('Run') },
      this._pause,
      stop,
      form,
      this._status
    );
  }

  /** Show the newest decision, made here or elsewhere. While a call is held, the call's own panel has the buttons. */
  update(decided: readonly IControlled[], held: boolean): void {
    if (decided.length !== this._known) {
      this._known = decided.length;
      const last = decided.filter(one => one.action !== 'say').pop();
      this._setPaused(last?.action === 'pause' || last?.action === 'paused');
    }
    this._pause.hidden = held;
  }

  private _setPaused(paused: boolean): void {
    this._paused = paused;
    this._pause.textContent = paused ? this._host.trans('Resume') : this._host.trans('Pause');
  }

  private _toggle(): void {
    const trans = this._host.trans;
    const paused = !this._paused;
    const action = paused ? () => this._controls.pause() : () => this._controls.resume();
    void this._do(action, paused ? trans('Pausing after this command') : '').then(done => {
      if (done) {
        this._setPaused(paused);
      }
    });
  }

  private _sendWords(): void {
    const text = this._say.value.trim();
    if (!text) {
      return;
    }
    const told = this._host.trans('The model reads it before its next reply.');
    void this._do(() => this._controls.say(text), told).then(done => {
      if (done) {
        this._say.value = '';
      }
    });
  }

  private async _do(action: () => Promise<void>, told: string): Promise<boolean> {
    try {
      await action();
    } catch (error) {
      this._status.textContent = errorText(error);
      return false;
    }
    this._status.textContent = told;
    return true;
  }
}
