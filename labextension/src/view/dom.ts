/** Functions that make elements. Text is inserted as text: this module never parses HTML. */

type Child = Node | string | null | undefined | false;
type Attributes = Record<string, string | number | boolean | EventListener | null | undefined>;

/** Return an element with attributes (`onclick`... take functions) and children (strings become text). */
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const name in attributes) {
    const value = attributes[name];
    if (typeof value === 'function') {
      element.addEventListener(name.slice(2), value);
    } else if (value === true) {
      element.setAttribute(name, '');
    } else if (value !== false && value !== null && value !== undefined) {
      element.setAttribute(name, String(value));
    }
  }
  for (const child of children) {
    if (child) {
      element.append(child);
    }
  }
  return element;
}

/** Make a button. */
export function makeButton(
  label: Child,
  onclick: (event: Event) => void,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLButtonElement {
  return h('button', { type: 'button', onclick, ...attributes }, label, ...children);
}

/** Call `action` at Enter in an input. The page and JupyterLab do not get this key. */
export function onEnter(input: HTMLInputElement, action: () => void): void {
  input.addEventListener('keydown', event => {
    if (event.key === 'Enter' && !event.isComposing) {
      event.preventDefault();
      event.stopPropagation();
      action();
    }
  });
}

/** Make `text` the text of `node`. If the text only grew at its end, append the new part. */
export function setText(node: HTMLElement, text: string): void {
  const first = node.firstChild;
  if (first instanceof Text && node.childNodes.length === 1) {
    if (first.data === text) {
      return;
    }
    if (first.data && text.startsWith(first.data)) {
      first.appendData(text.slice(first.data.length));
      return;
    }
  }
  node.textContent = text;
}

/**
 * Return terminal output without escape sequences. Other characters that a page cannot show are replaced, and
 * characters that would reorder letters are written as escapes such as `\u202e`.
 */
export function plainText(text: string): string {
  return (
    text
      // eslint-disable-next-line no-control-regex
      .replace(/\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)?|[@-Z\\-_])/g, '')
      // eslint-disable-next-line no-control-regex
      .replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f]/g, '�')
      .replace(/[\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, letter => `\\u${letter.charCodeAt(0).toString(16)}`)
  );
}

/** Return the message of an error as plain text, because it may come from a server or a sandbox. */
export function errorText(error: unknown): string {
  return plainText(error instanceof Error ? error.message : String(error));
}
