/**
 * Cost of showing a page without its scripts: elements, copies by `use`, cells of tables, filters, and
 * embedded pictures, drawings and fonts (`data:` addresses). `card/page_cost.py` counts in the same way.
 */
import { formatCount, formatSize } from '../formatting';
import { decodeBase64 } from '../packed';
import { IHost } from '../view/host';
import { viewOf } from './binary';
import { PICTURE_BOUND } from './bounds';
import { pictureBytes, pictureSize } from './picture-size';

/** Maximum number of elements of a page that is shown without a click. */
export const ELEMENT_BOUND = 60_000;

export interface IPageCost {
  /** Number of elements, and of other parts that cost the same. */
  elements: number;
  /** Decoded bytes of pictures, drawings and fonts. */
  bytes: number;
}

/** Return the reason why a page waits for a click, in one sentence; empty if the page does not wait. */
export function pageWarning(text: string, host: IHost): string {
  const { elements, bytes } = pageCost(text);
  if (elements > ELEMENT_BOUND) {
    return Number.isFinite(elements)
      ? host.trans('This page unfolds to %1 elements.', formatCount(elements))
      : host.trans('This page unfolds to more elements than can be counted.');
  }
  return bytes > PICTURE_BOUND ? host.trans('The content of this page decodes to %1.', formatSize(bytes)) : '';
}

const FORMATTING = 'a|b|big|code|em|font|i|nobr|s|small|strike|strong|tt|u';
const TAG = new RegExp(`<(/?)(?:(${FORMATTING})(?=[\\s>/])|[a-z])`, 'gi');
/** Maximum number of attributes of one element. No normal page has more. */
const MOST_ATTRIBUTES = 1000;
/** Maximum depth of counted drawings within drawings. */
const DEEPEST = 3;

/** Count the cost of `text`, HTML or SVG. Only a text with few tags is parsed. */
export function pageCost(text: string, depth = 0): IPageCost {
  const tags = countTags(text);
  if (tags > ELEMENT_BOUND || depth > DEEPEST) {
    return { elements: depth > DEEPEST ? Infinity : tags, bytes: 0 };
  }
  return new Count(new DOMParser().parseFromString(text, 'text/html'), depth).cost;
}

/** Count the elements by their tags. Browsers repeat an unclosed formatting element in each later element. */
function countTags(text: string): number {
  let [elements, open] = [0, 0];
  for (const [, end, formatting] of text.matchAll(TAG)) {
    if (formatting) {
      open = end ? Math.max(0, open - 1) : open + 1;
    }
    elements += end ? 0 : 1 + Math.max(0, open - 3);
    if (elements > 1e9) {
      break;
    }
  }
  return elements;
}

class Count {
  readonly cost: IPageCost = { elements: 0, bytes: 0 };
  private _sizes = new Map<Element, number>();

  constructor(
    readonly page: Document,
    readonly depth: number
  ) {
    const all = page.getElementsByTagName('*');
    for (const element of all) {
      const many = element.attributes.length - 8;
      this.cost.elements += Math.max(0, many) + cells(element) + (isFilter(element) ? 20 : 0);
      if (many > MOST_ATTRIBUTES) {
        this.cost.elements = Infinity; // looking at each would take too long
        return;
      }
      for (const { value } of element.attributes) {
        this.addresses(value);
      }
    }
    for (const style of page.querySelectorAll('style')) {
      this.addresses(style.textContent ?? '');
    }
    this.cost.elements += this.size(page.documentElement, 0);
  }

  /** Count the elements inside an element, including copies by `use`. */
  private size(element: Element, within: number): number {
    const known = this._sizes.get(element);
    if (known !== undefined || within > 2000) {
      return known ?? Infinity;
    }
    this._sizes.set(element, 1); // browsers do not draw circular references
    let size = 1;
    for (const child of element.children) {
      size += this.size(child, within + 1);
    }
    if (element.localName === 'use') {
      const name = element.getAttribute('href') ?? element.getAttribute('xlink:href') ?? '';
      const target = name.trim().startsWith('#') ? this.page.getElementById(name.trim().slice(1)) : null;
      size += target ? this.size(target, within + 1) : 0;
    }
    this._sizes.set(element, size);
    return size;
  }

  /** Count the content of `data:` addresses in a text. CSS may write any letter as its character code. */
  private addresses(text: string): void {
    if (text.length < 20) {
      return;
    }
    const plain = text.replace(/\\([0-9a-f]{1,6})\s?/gi, (_, code: string) => {
      const letter = parseInt(code, 16);
      return letter < 0x110000 ? String.fromCodePoint(letter) : '';
    });
    for (const [, type, data] of plain.matchAll(/data:([^,]{0,200}),([^"')]*)/gi)) {
      const bytes = addressed(type, data);
      if (/svg|xml|html/i.test(type)) {
        const inner = pageCost(new TextDecoder().decode(bytes), this.depth + 1);
        this.cost.elements += inner.elements;
        this.cost.bytes += inner.bytes;
      } else {
        const size = pictureSize(bytes);
        this.cost.bytes += size ? pictureBytes(size) : fontBytes(bytes);
      }
    }
  }
}

function addressed(type: string, data: string): Uint8Array {
  let text = data;
  try {
    text = decodeURIComponent(data);
  } catch {
    // Not UTF-8 text: use the bytes unchanged.
  }
  if (!/;\s*base64\s*$/i.test(type)) {
    return new TextEncoder().encode(text);
  }
  return decodeBase64(text);
}

/** Return the number of columns that an element spans. Spanned rows do not count: a table has only its real rows. */
function cells(element: Element): number {
  return ['colspan', 'span'].reduce(
    (sum, name) => sum + Math.min(1000, Math.max(0, Number(element.getAttribute(name)) || 0)),
    0
  );
}

const isFilter = (element: Element) => /^fe[A-Z]/i.test(element.localName);

/** Return the number of decoded bytes that a compressed font (WOFF) claims; 0 for anything else. */
function fontBytes(bytes: Uint8Array): number {
  const isFont = bytes.length >= 20 && /^wOF[F2]/.test(String.fromCharCode(...bytes.subarray(0, 4)));
  return isFont ? viewOf(bytes).getUint32(16) : 0;
}
