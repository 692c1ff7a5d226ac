/** PDF: no viewer within the page (a sandboxed frame cannot hold the browser's), but its own tab. */
import { h } from '../view/dom';
import { ILoaded } from './content';

export function renderPdf({ host, bytes }: ILoaded): HTMLElement {
  const head = new TextDecoder('latin1').decode(bytes.subarray(0, 1024));
  const text = head.includes('%PDF-')
    ? host.trans('A PDF document; open it in a new tab or download it.')
    : host.trans('Named as a PDF document, but it is none.');
  return h('p', { class: 'lsn-quiet' }, text);
}
