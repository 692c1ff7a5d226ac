/** PDF files open in a separate tab, because the browser's viewer does not work in a sandboxed frame. */
import { formatCount, formatSize } from '../formatting';
import { h } from '../view/dom';
import { PICTURE_BOUND } from './bounds';
import { ILoaded } from './content';

/** Numbers of pages and objects up to which a document has no note about its size. */
const USUAL_PAGES = 5_000;
const USUAL_OBJECTS = 200_000;
/** Maximum number of pictures whose sizes are added up. */
const MOST_PICTURES = 10_000;

export function renderPdf({ host, bytes }: ILoaded): HTMLElement {
  const text = new TextDecoder('latin1').decode(bytes);
  if (!text.slice(0, 1024).includes('%PDF-')) {
    return h('p', { class: 'lsn-quiet' }, host.trans('Not a PDF document, despite its name.'));
  }
  const { pages, objects, pictures } = pdfSize(text);
  const large =
    pages > USUAL_PAGES || objects > USUAL_OBJECTS
      ? host.trans('It has %1 pages and %2 objects.', formatCount(pages), formatCount(objects))
      : pictures > PICTURE_BOUND
        ? host.trans('Its pictures decode to %1.', formatSize(pictures))
        : '';
  const note = host.trans('A PDF document; open it in a new tab or download it.');
  return h('p', { class: 'lsn-quiet' }, note, large && ` ${large}`);
}

/** Read sizes from the uncompressed parts of a document: its pages, its objects, and the bytes of decoded pictures. */
export function pdfSize(text: string): { pages: number; objects: number; pictures: number } {
  const largest = (pattern: RegExp) => {
    let most = 0;
    for (const [, value] of text.matchAll(pattern)) {
      most = Math.max(most, Number(value));
    }
    return most;
  };
  let pictures = 0;
  let left = MOST_PICTURES;
  for (const { index } of text.matchAll(/\/Subtype\s*\/Image/g)) {
    if (!left--) {
      break;
    }
    const dictionary = text.slice(Math.max(0, index - 600), index + 600);
    const side = (name: string) => Number(new RegExp(`/${name}\\s+(\\d+)`).exec(dictionary)?.[1] ?? 0);
    pictures += side('Width') * side('Height') * 4;
  }
  return { pages: largest(/\/Count\s+(\d+)/g), objects: largest(/\/(?:Size|N)\s+(\d+)/g), pictures };
}
