/** HTML and SVG: only ever within a sandboxed frame, without network unless the person allows it for this very file. */
import { h } from '../view/dom';
import { decode, ILoaded } from './content';
import { IFrameRights, sandboxedFrame } from './frame';
import { visibleName } from './names';
import { sha256 } from './sha256';

const LIMIT = 32 * 2 ** 20;

/** The document as text, with what it may do now. */
export function documentOf(loaded: ILoaded): { text: string; rights: IFrameRights } {
  const { host } = loaded;
  const network = host.trusted && host.recall?.(permissionKey(loaded)) === 'allowed';
  return { text: decode(loaded.bytes, LIMIT), rights: { scripts: host.trusted, network } };
}

/**
 * Under which the choice is remembered. The event's id is of one run only; the digest is taken from the bytes that are shown,
 * so that neither another run, another file nor another version of this file has the permission.
 */
function permissionKey({ artifact, bytes }: ILoaded): string {
  return `artifact-network/${artifact.id}/${sha256(bytes)}/${artifact.path}`;
}

export function renderDocument(loaded: ILoaded): HTMLElement {
  const { artifact, host } = loaded;
  const { text, rights } = documentOf(loaded);
  const title = host.trans('Content of %1', visibleName(artifact.path));
  const place = h('div', { class: 'lsn-frame-place' }, sandboxedFrame(text, rights, title));
  if (!host.trusted) {
    return h('div', {}, place, h('p', { class: 'lsn-quiet' }, host.trans('Not trusted: its scripts do not run.')));
  }
  if (host.offline) {
    return h('div', {}, place, h('p', { class: 'lsn-quiet' }, host.trans('It has no network.')));
  }
  let { network } = rights;
  const button = h('button', { type: 'button', class: 'lsn-button', onclick: () => change(!network) });
  const note = h('span', { class: 'lsn-quiet', role: 'status' });
  const change = (allowed: boolean) => {
    network = allowed;
    host.remember?.(permissionKey(loaded), allowed ? 'allowed' : 'denied');
    place.replaceChildren(sandboxedFrame(text, { ...rights, network }, title));
    tell();
  };
  const tell = () => {
    button.setAttribute('aria-pressed', String(network));
    button.textContent = network
      ? host.trans('Take the network from this file')
      : host.trans('Allow this file to use the network');
    note.textContent = network
      ? host.trans('It may load from https addresses and send to them what it shows.')
      : host.trans('It has no network.');
  };
  tell();
  return h('div', {}, place, h('p', { class: 'lsn-frame-rights' }, button, note));
}
