/**
 * An HTML or SVG file without its scripts: nothing in it runs, loads or navigates.
 *
 * Attributes with an address outside of the page are removed, because a policy and a sandbox are not enough: Chromium
 * looks up the host of a frame, form or link, and connects to it, before the policy refuses the address. A page could
 * put secret data into such a host name.
 */
import createDOMPurify, { type Config, type DOMPurify } from 'dompurify';

/** Maximum characters of a page that is shown without its scripts; a longer page would block the browser. */
export const STATIC_LIMIT = 8 * 2 ** 20;

const CONFIG: Config = {
  WHOLE_DOCUMENT: true,
  ADD_TAGS: ['use'],
  FORBID_TAGS: ['form', 'base', 'link', 'meta', 'animate', 'animateMotion', 'animateTransform', 'set'],
  FORBID_ATTR: ['srcset', 'action', 'formaction', 'ping', 'autofocus', 'background', 'download', 'target', 'poster'],
  ADD_ATTR: ['xlink:href'],
  ALLOW_UNKNOWN_PROTOCOLS: false
};
const ADDRESSES = new Set(['href', 'xlink:href', 'src']);
/** Matches the allowed addresses: places in the page itself, and embedded pictures, sound, video and fonts. */
const WITHIN = /^\s*(?:#|data:(?:image|audio|video|font)\/)/i;
const PROGRAMS = 'script, iframe, frame, object, embed';

let purifier: DOMPurify | null = null;

export interface IStaticPage {
  html: string;
  /** True if the page has scripts, so that it may look different when it runs. */
  runs: boolean;
}

/** Return the page without its scripts. */
export function staticPage(text: string): IStaticPage {
  purifier ??= makePurifier();
  const html = purifier.sanitize(text, CONFIG);
  return { html, runs: purifier.removed.some(isProgram) };
}

function isProgram(removed: { element?: Node; attribute?: Attr | null }): boolean {
  const { element, attribute } = removed;
  if (element) {
    return element instanceof Element && (element.matches(PROGRAMS) || !!element.querySelector(PROGRAMS));
  }
  return !!attribute && (/^on/i.test(attribute.name) || /^\s*javascript:/i.test(attribute.value));
}

function makePurifier(): DOMPurify {
  const made = createDOMPurify(window);
  made.addHook('uponSanitizeAttribute', (_, data) => {
    if (ADDRESSES.has(data.attrName.toLowerCase()) && !WITHIN.test(data.attrValue)) {
      data.keepAttr = false;
    }
  });
  return made;
}
