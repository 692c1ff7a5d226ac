/**
 * The keyboard stays with the page: a script in a frame can call `window.focus()` without a click, and would then get what
 * the person types into the next cell. No attribute and no policy prevents it (`inert` keeps the Tab key out, not a script),
 * so a frame that has the focus while the pointer is not in it is ended at once.
 */

/** Milliseconds after a key in which nobody clicks on purpose. */
const TYPING = 400;

const frames = new Map<HTMLIFrameElement, () => void>();
let lastFocused: WeakRef<HTMLElement> | null = null;
let lastKey = -Infinity;

/** Call `end`, which removes `frame`, as soon as it has the focus while the pointer is not in `region`, which holds it. */
export function guardFocus(region: HTMLElement, frame: HTMLIFrameElement, end: () => void): void {
  listen();
  frame.inert = !region.matches(':hover');
  frames.set(frame, end);
  region.addEventListener('pointerenter', () => {
    frame.inert = false;
  });
  region.addEventListener('pointerleave', () => {
    frame.inert = true;
    if (document.activeElement === frame) {
      giveBack(frame);
    }
  });
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
  });
  document.addEventListener('keydown', () => (lastKey = performance.now()), true);
  window.addEventListener('blur', check);
  window.setInterval(check, 100);
}

function check(): void {
  for (const [frame, end] of frames) {
    if (!frame.isConnected) {
      frames.delete(frame);
    } else if (document.activeElement === frame && (frame.inert || performance.now() - lastKey < TYPING)) {
      frames.delete(frame);
      end();
      giveBack(frame);
    }
  }
}

function giveBack(frame: HTMLIFrameElement): void {
  frame.blur();
  window.focus();
  lastFocused?.deref()?.focus({ preventScroll: true });
}
