/** The messages that the model saw, rendered only when a person opens them. */

import { h, makeButton, plainText } from './dom';
import { IMessage } from '../trajectory/conversation';
import { formatCount } from '../formatting';
import { IHost } from './host';

/** Number of the newest messages, which are shown at first. */
const SHOWN_MESSAGES = 40;

export class MessagesView {
  readonly node: HTMLDetailsElement;
  private _summary = h('summary', {});
  private _list = h('ol', { class: 'lsn-messages' });

  constructor(
    private _messages: () => IMessage[],
    private _host: IHost,
    private _title = _host.trans('Messages the model saw')
  ) {
    this.node = h('details', { class: 'lsn-messages-box' }, this._summary, this._list);
    this.node.addEventListener('toggle', () => this._draw());
    this._summary.textContent = this._title;
  }

  private _draw(): void {
    if (!this.node.open) {
      this._list.replaceChildren();
      return;
    }
    const messages = this._messages();
    const { trans } = this._host;
    this._summary.textContent = `${this._title} (${formatCount(messages.length)})`;
    const earlier = messages.slice(0, -SHOWN_MESSAGES);
    this._list.replaceChildren(...messages.slice(-SHOWN_MESSAGES).map(renderMessage));
    if (earlier.length) {
      const show = () => this._list.firstElementChild!.replaceWith(...earlier.map(renderMessage));
      const more = makeButton(trans('%1 earlier messages', earlier.length), show, { class: 'lsn-more' });
      this._list.prepend(h('li', {}, more));
    }
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
