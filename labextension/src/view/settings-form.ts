/** Form for another model, temperature or limits of the rest of the run. */

import { errorText, h, makeButton, onEnter } from './dom';
import { IChangedSettings, IHost } from './host';

/** Fields of the form. `into` is the part of the change that holds the field's number; null for the model's name. */
const FIELDS = [
  { name: 'model', label: 'Model', into: null, step: '' },
  { name: 'temperature', label: 'Temperature', into: 'settings', step: '0.1' },
  { name: 'steps', label: 'Maximum steps', into: 'limits', step: '1' },
  { name: 'tokens', label: 'Maximum tokens of the conversation', into: 'limits', step: '1' },
  { name: 'total_tokens', label: 'Maximum tokens of all requests together', into: 'limits', step: '1' },
  { name: 'cost', label: 'Budget (US dollars)', into: 'limits', step: 'any' },
  { name: 'time', label: 'Maximum time (seconds)', into: 'limits', step: 'any' }
] as const;

export class SettingsForm {
  readonly node: HTMLElement;
  private _inputs = new Map<string, HTMLInputElement>();
  private _status = h('span', { class: 'lsn-count', role: 'status' });

  constructor(
    model: string,
    private _change: (changed: IChangedSettings) => Promise<void>,
    private _host: IHost
  ) {
    const { trans } = _host;
    const rows = FIELDS.map(({ name, label, step }) => {
      const input = h('input', {
        type: step ? 'number' : 'text',
        step: step || null,
        min: step ? 0 : null,
        placeholder: step ? trans('unchanged') : model,
        'data-lm-suppress-shortcuts': 'true'
      });
      onEnter(input, () => this._apply());
      this._inputs.set(name, input);
      return h('label', {}, trans(label), input);
    });
    const apply = makeButton(trans('Apply'), () => this._apply());
    this.node = h(
      'details',
      { class: 'lsn-settings' },
      h('summary', {}, trans('Model and limits from here on')),
      h('div', { class: 'lsn-settings-rows' }, ...rows),
      apply,
      this._status
    );
  }

  private _changed(): IChangedSettings | null {
    const changed: IChangedSettings = {};
    for (const { name, into } of FIELDS) {
      const value = this._inputs.get(name)!.value.trim();
      if (value && into === null) {
        changed.model = value;
      } else if (value && into) {
        changed[into] = { ...changed[into], [name]: Number(value) };
      }
    }
    return Object.keys(changed).length ? changed : null;
  }

  private _apply(): void {
    const { trans } = this._host;
    const changed = this._changed();
    if (!changed) {
      this._status.textContent = trans('Nothing is filled in.');
      return;
    }
    const done = () => {
      this._inputs.forEach(input => (input.value = ''));
      this._status.textContent = trans('Applies from the next request on.');
    };
    this._change(changed).then(done, error => {
      this._status.textContent = errorText(error);
    });
  }
}
