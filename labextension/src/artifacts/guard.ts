/**
 * Stops messages from artifacts. A frame of opaque origin can call `postMessage` on the page around it, and another
 * extension may listen without checking the sender, so messages of these frames are stopped before they reach listeners.
 * Chromium calls listeners of a window in the order of their registration, so this one is registered at import.
 */

const frames = new Set<WeakRef<HTMLIFrameElement>>();

if (typeof window !== 'undefined') {
  window.addEventListener('message', dropIfOurs, true);
}

/** Stop messages to the page from all documents in `frame`, at any depth. */
export function guarded(frame: HTMLIFrameElement): void {
  frames.add(new WeakRef(frame));
}

function dropIfOurs(event: MessageEvent): void {
  // A removed frame has no window to compare with: stop messages of opaque origins whose window is gone.
  if (event.origin === 'null' && (event.source === null || comesFromFrame(event.source))) {
    event.stopImmediatePropagation();
  }
}

function comesFromFrame(source: MessageEventSource): boolean {
  const ours = openWindows();
  // The parent of a window can be read across origins; a port or a worker has no parent.
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
