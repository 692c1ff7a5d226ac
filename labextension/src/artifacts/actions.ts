/** The buttons 'Open in a new tab' and 'Download', for every file whose content is loaded. */
import { h, makeButton } from '../view/dom';
import { addressFor, blobOf, ILoaded } from './content';
import { documentOf } from './document';
import { wrapper } from './frame';
import { IKind } from './kinds';
import { downloadName, visibleName } from './names';

export function renderActions(loaded: ILoaded, kind: IKind): HTMLElement {
  const { artifact, host, bytes } = loaded;
  const bar = h('span', { class: 'lsn-artifact-actions' });
  const name = visibleName(artifact.path);
  if (kind.opens) {
    const open = () => openTab(loaded, kind);
    const label = host.trans('Open in a new tab: %1', name);
    bar.append(makeButton(host.trans('Open in a new tab'), open, { class: 'lsn-button', 'aria-label': label }));
  }
  const address = addressFor(bar, bytes, 'application/octet-stream');
  const label = host.trans('Download %1', name);
  const link = { class: 'lsn-button', href: address, download: downloadName(artifact.path), 'aria-label': label };
  bar.append(h('a', link, host.trans('Download')));
  return bar;
}

/**
 * Open the file in a new tab. A blob address has the origin of this page, so the browser must not run scripts in it:
 * pictures, sound, PDF and plain text are opened unchanged, but HTML and SVG inside a page with the sandboxed frame.
 */
function openTab(loaded: ILoaded, kind: IKind): void {
  const blob = kind.opens === 'framed' ? framedPage(loaded) : blobOf(loaded.bytes, kind.opens ?? 'text/plain');
  const address = URL.createObjectURL(blob);
  window.open(address, '_blank', 'noopener,noreferrer');
  window.setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

function framedPage(loaded: ILoaded): Blob {
  const { text, rights } = documentOf(loaded);
  return new Blob([wrapper(text, rights)], { type: 'text/html;charset=utf-8' });
}
