/**
 * Only the person decides which element gets key presses. A script in a frame can call `focus()` without a click, and would
 * then get the text that the person types into the next cell. No attribute prevents this, and a page cannot distinguish a
 * script from a click that moved the focus into a frame. So a button covers the frame: a click on it, or Enter after Tab,
 * gives the frame the keyboard until the person moves the focus elsewhere. A frame that takes the focus without this is removed.
 */
import { h } from '../view/dom';

interface IGuarded {
  cover: HTMLButtonElement;
  /** True while the frame has the keyboard because the person gave it. */
  entered: boolean;
  /** Remove the frame. */
  end: () => void;
}

const frames = new Map<HTMLIFrameElement, IGuarded>();
let lastFocused: WeakRef<HTMLElement> | null = null;

/**
 * Return a button that covers `frame`, and gives the frame the keyboard at a click. The caller puts the button next to
 * the frame. `end` removes a frame that took the keyboard without a click.
 */
export function coverOf(frame: HTMLIFrameElement, label: string, end: () => void): HTMLButtonElement {
  listen();
  const cover = h('button', { type: 'button', class: 'lsn-frame-cover', title: label, 'aria-label': label });
  cover.addEventListener('click', event => event.isTrusted && enter(frame));
  frames.set(frame, { cover, entered: false, end });
  frame.tabIndex = -1;
  return cover;
}

function enter(frame: HTMLIFrameElement): void {
  const guarded = frames.get(frame);
  if (guarded) {
    guarded.entered = true;
    guarded.cover.hidden = true;
    frame.removeAttribute('tabindex');
    frame.focus();
    frame.contentWindow?.[0]?.focus(); // the page itself, in the inner frame: Tab moves to its elements
  }
}

function leave(frame: HTMLIFrameElement, guarded: IGuarded): void {
  guarded.entered = false;
  guarded.cover.hidden = false;
  frame.tabIndex = -1;
}

let listening = false;

function listen(): void {
  if (listening) {
    return;
  }
  listening = true;
  document.addEventListener('focusin', event => {
    if (event.target instanceof HTMLElement && !frames.has(event.target as HTMLIFrameElement)) {
      lastFocused = new WeakRef(event.target);
    }
    check();
  });
  window.addEventListener('blur', check);
  window.setInterval(check, 50); // the focus can move from one frame to another without an event
  // The page must not receive data that is dragged over it.
  document.addEventListener('dragenter', () => frames.forEach((guarded, frame) => leave(frame, guarded)), true);
}

function check(): void {
  for (const [frame, guarded] of frames) {
    const focused = document.activeElement === frame;
    if (!frame.isConnected) {
      frames.delete(frame);
    } else if (focused && !guarded.entered) {
      frames.delete(frame);
      guarded.end();
      giveBack(frame);
    } else if (!focused && guarded.entered) {
      leave(frame, guarded);
    }
  }
}

function giveBack(frame: HTMLIFrameElement): void {
  frame.blur();
  window.focus();
  lastFocused?.deref()?.focus({ preventScroll: true });
}
