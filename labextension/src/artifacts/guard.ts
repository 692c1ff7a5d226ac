/**
 * Messages from artifacts go nowhere. A frame of opaque origin can still call `postMessage` on the page around it, and
 * some other extension may listen without asking who speaks: what comes out of our frames is stopped before it gets there.
 * Chromium calls listeners of a window in the order in which they came, so this one is there as soon as the module is.
 */

const frames = new Set<WeakRef<HTMLIFrameElement>>();

if (typeof window !== 'undefined') {
  window.addEventListener('message', dropIfOurs, true);
}

/** Nothing said by what is in `frame`, however deep, is heard by the page. */
export function guarded(frame: HTMLIFrameElement): void {
  frames.add(new WeakRef(frame));
}

function dropIfOurs(event: MessageEvent): void {
  // A frame that was removed has no window to compare with; who has an opaque origin and is gone expects no answer.
  if (event.origin === 'null' && (event.source === null || comesFromFrame(event.source))) {
    event.stopImmediatePropagation();
  }
}

function comesFromFrame(source: MessageEventSource): boolean {
  const ours = openWindows();
  // Of a window of another origin little can be asked, its parent can; a port or a worker has none.
  for (let current = source as Window; current?.parent && current !== current.parent; current = current.parent) {
    if (ours.some(window => window === current)) {
      return true;
    }
  }
  return false;
}

function openWindows(): Window[] {
  const found: Window[] = [];
  for (const reference of frames) {
    const frame = reference.deref();
    if (!frame) {
      frames.delete(reference);
    } else if (frame.contentWindow) {
      found.push(frame.contentWindow);
    }
  }
  return found;
}
