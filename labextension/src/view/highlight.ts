/** Code with its colours, as elements: the highlighter gives a tree of tokens, and no HTML is ever parsed. */

import bash from 'highlight.js/lib/languages/bash';
import json from 'highlight.js/lib/languages/json';
import python from 'highlight.js/lib/languages/python';
import xml from 'highlight.js/lib/languages/xml';
import yaml from 'highlight.js/lib/languages/yaml';
import { createLowlight } from 'lowlight';
import { suffix } from '../artifacts/names';
import { h, setText } from './dom';

/** Maximum characters of highlighted code. Longer code stays plain, because hostile code could keep the page busy. */
const MOST_CHARACTERS = 20_000;

const lowlight = createLowlight({ bash, json, python, xml, yaml });

const LANGUAGES = new Map([
  ['.sh', 'bash'],
  ['.bash', 'bash'],
  ['.json', 'json'],
  ['.ipynb', 'json'],
  ['.geojson', 'json'],
  ['.py', 'python'],
  ['.html', 'xml'],
  ['.htm', 'xml'],
  ['.svg', 'xml'],
  ['.xml', 'xml'],
  ['.yaml', 'yaml'],
  ['.yml', 'yaml']
]);

/** Return the language of a file, by its name; null for an unknown language. */
export function languageOf(path: string): string | null {
  return LANGUAGES.get(suffix(path)) ?? null;
}

/** Put `code` into `node`, coloured if its language is known. The colours come when the page has time for them. */
export function highlight(code: string, language: string | null, node: HTMLElement): void {
  setText(node, code);
  if (!language || code.length > MOST_CHARACTERS) {
    return;
  }
  const colour = () => {
    if (node.textContent === code) {
      node.replaceChildren(...lowlight.highlight(language, code).children.map(element));
    }
  };
  if ('requestIdleCallback' in window) {
    window.requestIdleCallback(colour, { timeout: 500 });
  } else {
    colour(); // Safari
  }
}

type Token = ReturnType<typeof lowlight.highlight>['children'][number];

/** Convert a token to an element. Its classes come from the highlighter, never from the code. */
function element(token: Token): Node | string {
  if (token.type !== 'element') {
    return token.type === 'text' ? token.value : '';
  }
  const { className } = token.properties;
  const names = Array.isArray(className) ? className.join(' ') : '';
  return h('span', { class: names }, ...(token.children as Token[]).map(element));
}
