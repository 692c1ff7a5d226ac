/** What the model saw, message by message; made only when somebody looks. */

import { h, plainText } from './dom';
import { IMessage } from './conversation';
import { countInWords } from './format';
import { IHost } from './host';

export class MessagesView {
  readonly node: HTMLDetailsElement;
  private _summary = h('summary', {});
  private _list = h('ol', { class: 'lsn-messages' });

  constructor(
    private _messages: () => IMessage[],
    private _host: IHost
  ) {
    this.node = h('details', { class: 'lsn-messages-box' }, this._summary, this._list);
    this.node.addEventListener('toggle', () => this._draw());
    this._summary.textContent = _host.trans('Messages the model saw');
  }

  private _draw(): void {
    if (!this.node.open) {
      this._list.replaceChildren();
      return;
    }
    const messages = this._messages();
    const { trans } = this._host;
    this._summary.textContent = trans('Messages the model saw (%1)', countInWords(messages.length));
    this._list.replaceChildren(...messages.map(renderMessage));
  }
}

function renderMessage(message: IMessage): HTMLElement {
  const calls = message.calls.map(call =>
    h('pre', { class: 'lsn-code', tabindex: 0 }, plainText(`${call.name} ${call.arguments}`))
  );
  return h(
    'li',
    { 'data-role': message.role },
    h('span', { class: 'lsn-role' }, plainText(message.role)),
    message.text && h('pre', { tabindex: 0 }, plainText(message.text)),
    ...calls
  );
}
