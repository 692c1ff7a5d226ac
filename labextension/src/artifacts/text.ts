/** The beginning of a text file. */
import { h, plainText, setText } from '../view/dom';
import { formatSize } from '../formatting';
import { decode, ILoaded } from './content';

const SHOWN_BYTES = 200_000;

export function renderText(loaded: ILoaded): HTMLElement {
  const text = decode(loaded.bytes, SHOWN_BYTES);
  const { host } = loaded;
  const body = h('pre', { class: 'lsn-text', tabindex: 0 });
  if (host.renderAnsi && text.includes('\u001b[')) {
    host.renderAnsi(text, body);
  } else {
    setText(body, plainText(text));
  }
  return h('div', {}, body, leftOut(loaded, SHOWN_BYTES));
}

/** Return a note on the size of the part that is not shown; null if everything is shown. */
export function leftOut({ bytes, host }: ILoaded, limit: number): HTMLElement | null {
  const rest = bytes.length - limit;
  return rest > 0 ? h('p', { class: 'lsn-quiet' }, host.trans('%1 more are in the file.', formatSize(rest))) : null;
}
