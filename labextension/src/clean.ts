/**
 * Sanitiser for HTML that was rendered from Markdown or terminal output.
 *
 * The text comes from the model, so it may be hostile: nothing in it runs or is loaded, no link leads to the Jupyter
 * server (a click on `/logout` would log the person out), and it cannot cover the page with classes or styles.
 */

import { PICTURE_BOUND } from './artifacts/bounds';
import { pictureBytes, pictureSize } from './artifacts/picture-size';
import { decodeBase64 } from './packed';
import createDOMPurify, { type Config, type DOMPurify } from 'dompurify';

const CONFIG: Config = {
  ALLOWED_TAGS: (
    'a abbr b blockquote br code dd del details div dl dt em figure figcaption h1 h2 h3 h4 h5 h6 hr i img ins kbd li ' +
    'mark ol p pre q s samp small span strong sub summary sup table tbody td tfoot th thead tr u ul var'
  ).split(' '),
  ALLOWED_ATTR: ['href', 'src', 'alt', 'title', 'align', 'class', 'start', 'colspan', 'rowspan', 'width', 'height'],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  SANITIZE_NAMED_PROPS: true,
  RETURN_DOM_FRAGMENT: true
};

/** Classes of highlighted code and of coloured terminal output. */
const CLASSES = /^(?:\u037c[\w]+|language-[\w+-]+|ansi-[a-z-]+)$/;

let purifier: DOMPurify | null = null;

/** Return the harmless part of `html`, as nodes. */
export function cleanHtml(html: string): DocumentFragment {
  purifier ??= makePurifier();
  return purifier.sanitize(html) as unknown as DocumentFragment;
}

function makePurifier(): DOMPurify {
  const made = createDOMPurify(window);
  made.setConfig(CONFIG); // read once, not for each text
  made.addHook('uponSanitizeAttribute', (node, data) => {
    if (data.attrName === 'class') {
      data.attrValue = data.attrValue
        .split(/\s+/)
        .filter(name => CLASSES.test(name))
        .join(' ');
      data.keepAttr = data.attrValue !== '';
    } else if (data.attrName === 'src') {
      data.keepAttr = isSmallPicture(data.attrValue);
    } else if (data.attrName === 'href') {
      data.keepAttr = leadsAway(data.attrValue);
    }
  });
  made.addHook('afterSanitizeAttributes', node => {
    if (node.hasAttribute('href')) {
      node.setAttribute('target', '_blank');
      node.setAttribute('rel', 'noopener noreferrer nofollow');
    }
  });
  return made;
}

/** Return true for an address that holds a picture within the memory limit. An SVG is a page, not a picture. */
function isSmallPicture(address: string): boolean {
  const data = /^data:image\/[\w.+-]+;base64,([A-Za-z0-9+/=\s]*)$/i.exec(address)?.[1];
  const size = data === undefined ? null : pictureSize(decodeBase64(data));
  return size !== null && pictureBytes(size) <= PICTURE_BOUND;
}

/** Return true for an absolute address on another server than this page's. */
function leadsAway(href: string): boolean {
  try {
    const url = new URL(href);
    return url.protocol === 'mailto:' || url.host !== window.location.host;
  } catch {
    return false;
  }
}
