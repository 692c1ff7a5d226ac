/** JSON as a tree that the reader unfolds; elements exist only for unfolded parts. */
import { h, makeButton } from '../view/dom';
import { formatCount } from '../formatting';
import { IHost } from '../view/host';
import { afterClick } from './bounds';
import { decode, ILoaded } from './content';
import { visibleName } from './names';
import { renderText } from './text';

const MOST_BYTES = 8 * 2 ** 20;
/** Maximum number of values; a larger tree would need too much memory. */
const MOST_VALUES = 500_000;
const PAGE_MEMBERS = 100;
const STRING_CHARACTERS = 500;

export function renderJson(loaded: ILoaded): HTMLElement {
  const { bytes, host } = loaded;
  if (bytes.length > MOST_BYTES) {
    return renderText(loaded);
  }
  const values = countValues(bytes);
  const warning = values > MOST_VALUES ? host.trans('This file unfolds to %1 values.', formatCount(values)) : '';
  return afterClick(warning, host.trans('Show it anyway'), () => treeOf(loaded));
}

/** Return an upper limit of the number of values: one before each comma, and one in each list or object. */
function countValues(bytes: Uint8Array): number {
  let values = 1;
  for (const byte of bytes) {
    values += byte === 0x2c || byte === 0x5b || byte === 0x7b ? 1 : 0;
  }
  return values;
}

function treeOf(loaded: ILoaded): HTMLElement {
  const { bytes, host } = loaded;
  try {
    const value: unknown = JSON.parse(decode(bytes, MOST_BYTES));
    return h('div', { class: 'lsn-json' }, nodeOf(null, value, host, true));
  } catch {
    const note = h('p', { class: 'lsn-quiet' }, host.trans('Not valid JSON; shown as text.'));
    return h('div', {}, note, renderText(loaded));
  }
}

function nodeOf(name: string | null, value: unknown, host: IHost, open: boolean): HTMLElement {
  const label = name === null ? null : h('span', { class: 'lsn-json-key' }, `${visibleName(name)}: `);
  if (value === null || typeof value !== 'object') {
    return h('div', { class: 'lsn-json-leaf' }, label, leaf(value));
  }
  const size = Array.isArray(value) ? value.length : Object.keys(value).length;
  const brackets = Array.isArray(value) ? `[${size}]` : `{${size}}`;
  const branch = h('details', {}, h('summary', {}, label, h('span', { class: 'lsn-quiet' }, brackets)));
  const fill = () => {
    if (branch.open && branch.childElementCount === 1) {
      branch.append(pageOf(value, 0, host));
    }
  };
  branch.addEventListener('toggle', fill);
  if (open) {
    branch.open = true;
    fill();
  }
  return branch;
}

/** Return `PAGE_MEMBERS` members from number `start` on, and a button for the next ones. */
function pageOf(value: object, start: number, host: IHost): HTMLElement {
  const list = Array.isArray(value);
  const keys = list ? value : Object.keys(value);
  const page = h('div', { class: 'lsn-json-members' });
  for (let index = start; index < Math.min(keys.length, start + PAGE_MEMBERS); index++) {
    const key = list ? String(index) : (keys[index] as string);
    page.append(nodeOf(key, (value as Record<string, unknown>)[key], host, false));
  }
  const rest = keys.length - start - PAGE_MEMBERS;
  if (rest > 0) {
    const show = () => more.replaceWith(pageOf(value, start + PAGE_MEMBERS, host));
    const more = makeButton(host.trans('%1 more', rest), show, { class: 'lsn-button' });
    page.append(more);
  }
  return page;
}

function leaf(value: unknown): HTMLElement {
  const kind = value === null ? 'null' : typeof value;
  const text = typeof value === 'string' ? JSON.stringify(value) : String(value);
  const shown = text.length <= STRING_CHARACTERS ? text : `${text.slice(0, STRING_CHARACTERS)}… (${text.length})`;
  return h('span', { class: `lsn-json-${kind}` }, visibleText(shown));
}

const visibleText = (text: string) =>
  text.replace(/[\u202a-\u202e\u2066-\u2069\u200e\u200f]/g, c => `\\u${c.charCodeAt(0).toString(16)}`);
