// The view in a DOM without a browser: what it says and sends. What needs layout, frames, media or keys is tested in Chromium.
import { configure, within } from '@testing-library/dom';
import { JSDOM } from 'jsdom';
import { after } from 'node:test';
import { loadFile } from './load.mjs';

const { window } = new JSDOM('<!doctype html><div id="view"></div>', {
  pretendToBeVisual: true,
  url: 'http://view.test/'
});

/** Everything comes near the visible part at once. */
class AlwaysNear {
  constructor(callback) {
    this.callback = callback;
  }
  observe(target) {
    this.callback([{ target, isIntersecting: true }]);
  }
  unobserve() {}
  disconnect() {}
  takeRecords() {
    return [];
  }
}

for (const name of Object.getOwnPropertyNames(window)) {
  if (!(name in globalThis) || /Event$|^EventTarget$/.test(name)) {
    Object.defineProperty(globalThis, name, { configurable: true, writable: true, value: window[name] });
  }
}
Object.assign(window, { IntersectionObserver: AlwaysNear, ResizeObserver: AlwaysNear });
Object.assign(globalThis, {
  window,
  document: window.document,
  IntersectionObserver: AlwaysNear,
  ResizeObserver: AlwaysNear
});
// Names of roles need only this of a style. There is no style sheet here, and jsdom takes long to find that out.
const INLINE = new Set('A ABBR B BDI CODE DEL EM I INS KBD LABEL MARK SMALL SPAN STRONG SUB SUP TIME'.split(' '));
const displayOf = element =>
  element.style?.display || (element.hidden ? 'none' : INLINE.has(element.tagName) ? 'inline' : 'block');
window.getComputedStyle = element => ({
  getPropertyValue: name => (name === 'display' ? displayOf(element) : (element.style?.getPropertyValue(name) ?? ''))
});
globalThis.getComputedStyle = window.getComputedStyle;
window.Element.prototype.scrollIntoView = () => undefined;
URL.createObjectURL = () => 'blob:view';
URL.revokeObjectURL = () => {};
configure({ defaultHidden: true });
// A view of a run under way has a clock.
after(() => window.close());

await loadFile(new URL('entry.ts', import.meta.url).pathname);

export const { lsn } = window;
export const place = window.document.getElementById('view');

/** Wait until this gives something true, or throws no more. */
export async function until(check) {
  for (let tries = 0; ; tries++) {
    try {
      const found = await check();
      if (found !== false && found !== null) {
        return found;
      }
      throw new Error(`It did not happen: ${check}`);
    } catch (error) {
      if (tries > 6000) {
        throw error;
      }
      await new Promise(done => setTimeout(done, 10));
    }
  }
}

/** What a person does to a field. */
export function fill(field, value) {
  field.value = value;
  for (const kind of ['input', 'change']) {
    field.dispatchEvent(new window.Event(kind, { bubbles: true }));
  }
}

export { within };
