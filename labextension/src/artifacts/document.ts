/**
 * HTML and SVG, always inside a sandboxed frame. Scripts run only after the person's click, and use the network only if the
 * person allows it for this file.
 */
import { sha256 } from '@noble/hashes/sha2.js';
import { bytesToHex } from '@noble/hashes/utils.js';
import { h, makeButton } from '../view/dom';
import { afterClick } from './bounds';
import { decode, ILoaded } from './content';
import { coverOf } from './focus';
import { IFrameRights, sandboxedFrame } from './frame';
import { suffix, visibleName } from './names';
import { pageWarning } from './page-cost';
import { STATIC_LIMIT, staticPage } from './static-page';

const SHOWN_BYTES = 32 * 2 ** 20;
const STATIC: IFrameRights = { scripts: false, network: false };

/** The document as it is shown now. */
interface IShown {
  text: string;
  rights: IFrameRights;
  /** True if the document may look different when its scripts run. */
  runs: boolean;
}

function mayRun(loaded: ILoaded): boolean {
  const { host } = loaded;
  return (
    host.trusted && (host.choices.get(key('run', loaded)) ?? (host.runsPages ? 'allowed' : 'denied')) === 'allowed'
  );
}

/** Return the document as text, with its present permissions. */
export function documentOf(loaded: ILoaded): IShown {
  const { host } = loaded;
  const text = decode(loaded.bytes, SHOWN_BYTES);
  if (mayRun(loaded)) {
    const network = host.choices.get(key('network', loaded)) === 'allowed';
    return { text, rights: { scripts: true, network }, runs: true };
  }
  if (text.length > STATIC_LIMIT) {
    return { text: host.trans('This page is too large to be shown without its scripts.'), rights: STATIC, runs: true };
  }
  const { html, runs } = staticPage(text);
  return { text: html, rights: STATIC, runs };
}

/**
 * Return the key of a remembered choice. It has the event's id, which is unique over all runs, and the digest of the
 * shown bytes, so that a permission never applies to another run, another file or another version of this file.
 */
function key(what: 'run' | 'network', { artifact, bytes }: ILoaded): string {
  return `artifact-${what}/${artifact.id}/${bytesToHex(sha256(bytes))}/${artifact.path}`;
}

export function renderDocument(loaded: ILoaded): HTMLElement {
  const { host, bytes } = loaded;
  const warning = mayRun(loaded) ? '' : pageWarning(decode(bytes, STATIC_LIMIT), host);
  return afterClick(warning, host.trans('Show it anyway'), () => frameOf(loaded));
}

function frameOf(loaded: ILoaded): HTMLElement {
  const { artifact, host } = loaded;
  const title = host.trans('Content of %1', visibleName(artifact.path));
  const place = h('div', { class: 'lsn-frame-place' });
  fitDrawing(loaded, place);
  const region = h('div', {}, place);
  const bar = h('p', { class: 'lsn-frame-rights' });
  const note = h('span', { class: 'lsn-quiet', role: 'status' });
  const toggle = (what: 'run' | 'network', allowed: boolean) => {
    host.choices.set(key(what, loaded), allowed ? 'allowed' : 'denied');
    show();
  };
  const button = (label: string, tooltip: string, onclick: () => void, pressed?: boolean) =>
    makeButton(label, onclick, { class: 'lsn-button', title: tooltip, 'aria-pressed': pressed?.toString() });
  const show = () => {
    const { text, rights, runs } = documentOf(loaded);
    const frame = sandboxedFrame(text, rights, title);
    place.replaceChildren(frame);
    note.textContent = sentence(rights, runs);
    if (rights.scripts) {
      const label = host.trans('Click to use this page; keys go to it until you click elsewhere');
      const stop = () => {
        toggle('run', false);
        note.textContent = host.trans('This page took the keyboard without a click. It was stopped.');
      };
      place.append(coverOf(frame, label, stop));
    }
    const buttons = !host.trusted
      ? []
      : !rights.scripts
        ? runs && [button(host.trans('Run this page'), remainder(), () => toggle('run', true))]
        : [
            button(host.trans('Stop this page'), '', () => toggle('run', false)),
            !host.offline &&
              button(
                rights.network
                  ? host.trans('Forbid this file to use the network')
                  : host.trans('Allow this file to use the network'),
                '',
                () => toggle('network', !rights.network),
                rights.network
              )
          ];
    bar.replaceChildren(...(buttons || []).filter(one => !!one), note);
    bar.hidden = !bar.textContent;
  };
  const sentence = (rights: IFrameRights, runs: boolean): string => {
    if (rights.network) {
      return host.trans('It may load data from https addresses, and send data to them.');
    }
    if (rights.scripts) {
      return host.trans('It has no network.');
    }
    if (!runs) {
      return '';
    }
    return host.trusted ? host.trans('Shown without its scripts.') : host.trans('Not trusted: its scripts do not run.');
  };
  const remainder = () =>
    host.trans(
      'Its scripts run in a frame that cannot read this page or load from the network. Once you click into it, it gets your keys and can play sound, copy to the clipboard and ask for a file. A hostile page can still send a few bytes in the host name of an address that it tries to open.'
    );
  region.append(bar);
  show();
  return region;
}

/** Pixels to add to the size of an SVG: the margins of a page, and the room below a line of text. */
const AROUND = 24;
/** Maximum height of a frame, in pixels. */
const HIGHEST = 420;

/** Give the frame of a drawing the drawing's size. Other pages keep the default size, because theirs is unknown. */
function fitDrawing({ artifact, bytes }: ILoaded, place: HTMLElement): void {
  const size = suffix(artifact.path) === '.svg' ? drawingSize(decode(bytes, 20_000)) : null;
  if (!size) {
    return;
  }
  const { width, height, fixed } = size;
  if (fixed) {
    place.style.height = `${Math.min(HIGHEST, height + AROUND)}px`;
    place.style.width = `${width + AROUND}px`;
  } else {
    place.style.height = 'auto';
    place.style.maxHeight = `${HIGHEST}px`;
    place.style.aspectRatio = `${width} / ${height}`;
  }
}

/** Read the size of an SVG in pixels, or, if `fixed` is false, only its proportions. Null if it names neither. */
export function drawingSize(text: string): { width: number; height: number; fixed: boolean } | null {
  const tag = /<svg\b[^>]*>/i.exec(text)?.[0] ?? '';
  const pixels = (name: string) =>
    Number(new RegExp(`\\s${name}\\s*=\\s*["']?\\s*(\\d+(?:\\.\\d+)?)(?:px)?\\s*["'\\s/>]`, 'i').exec(tag)?.[1] ?? 0);
  const [width, height] = [pixels('width'), pixels('height')];
  if (width && height) {
    return { width, height, fixed: true };
  }
  const box =
    /\sviewBox\s*=\s*["']([^"']*)["']/i
      .exec(tag)?.[1]
      .trim()
      .split(/[\s,]+/)
      .map(Number) ?? [];
  return box.length === 4 && box[2] > 0 && box[3] > 0 ? { width: box[2], height: box[3], fixed: false } : null;
}
