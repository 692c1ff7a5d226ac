/** Markdown, rendered by the host's renderer, which prevents running and loading. */
import { h } from '../view/dom';
import { decode, ILoaded } from './content';
import { leftOut, renderText } from './text';

const SHOWN_BYTES = 200_000;

export function renderMarkdown(loaded: ILoaded): HTMLElement {
  const { host, bytes } = loaded;
  if (!host.renderMarkdown) {
    return renderText(loaded);
  }
  const body = h('div', { class: 'lsn-markdown' });
  host.renderMarkdown(decode(bytes, SHOWN_BYTES), body);
  return h('div', {}, body, leftOut(loaded, SHOWN_BYTES));
}
