/**
 * A frame for untrusted pages, the same as in `card/frame.py`.
 *
 * The document is in a frame inside another frame. The inner frame has an opaque origin, so it cannot reach the page, its
 * cookies or its server, and its policy forbids loading. A policy does not prevent the document from navigating elsewhere
 * (`location = ...`, a refresh); the `frame-src` of the outer frame does.
 */
import { guarded } from './guard';

export interface IFrameRights {
  /** Scripts of the document run, within the frame. */
  scripts: boolean;
  /** The document may load pictures, styles, scripts, fonts and data over https. */
  network: boolean;
}

/** Return the Content-Security-Policy of both frames. */
export function policy({ scripts, network }: IFrameRights): string {
  const https = network ? ' https:' : '';
  return [
    "default-src 'none'",
    scripts ? `script-src 'unsafe-inline' 'unsafe-eval' data: blob:${https}` : "script-src 'none'",
    `style-src 'unsafe-inline' data:${https}`,
    `img-src data: blob:${https}`,
    'media-src data: blob:',
    `font-src data:${https}`,
    ...(network ? ['connect-src https:'] : []),
    scripts ? 'worker-src blob:' : "worker-src 'none'",
    "frame-src 'none'",
    "form-action 'none'",
    "base-uri 'none'"
  ].join('; ');
}

/** Features of browsers that no artifact may use: `docs/reference/running-pages.md` has the table. */
const POWERS =
  'accelerometer aria-notify autoplay browsing-topics camera captured-surface-control clipboard-read clipboard-write ' +
  'compute-pressure deferred-fetch deferred-fetch-minimal digital-credentials-create digital-credentials-get ' +
  'display-capture encrypted-media fullscreen gamepad geolocation gyroscope hid identity-credentials-get ' +
  'idle-detection interest-cohort keyboard-map language-detector language-model local-fonts local-network ' +
  'local-network-access loopback-network magnetometer media-playback-while-not-visible microphone midi ' +
  'on-device-speech-recognition otp-credentials payment picture-in-picture private-state-token-issuance ' +
  'private-state-token-redemption publickey-credentials-create publickey-credentials-get screen-wake-lock serial ' +
  'speaker-selection storage-access summarizer sync-xhr translator unload usb window-management xr-spatial-tracking';

/** The permissions policy of both frames, which denies all these features. */
export const DENIED = POWERS.split(' ')
  .map(power => `${power} 'none'`)
  .join('; ');

/**
 * Script that runs before the scripts of a page. It removes functions that reach other hosts in spite of the policy, or
 * that look beyond the frame. Before a person's click into the page, its calls of `focus()` do nothing: otherwise a
 * harmless page would be removed because of them. The frame's sandbox forbids windows and forms. One gap stays: a page
 * can try to open an address, itself or in a frame of its own. Chromium looks up the host and connects before the
 * policy refuses the address, and a frame of opaque origin gets no event with which this script could prevent that.
 */
export const PRELUDE =
  '<script>for(const name of ["RTCPeerConnection","webkitRTCPeerConnection","RTCDataChannel","RTCIceTransport",' +
  '"WebTransport","EyeDropper"])delete window[name];' +
  'for(const one of [window,HTMLElement.prototype,SVGElement.prototype]){const focus=one.focus;' +
  'one.focus=function(how){if(document.hasFocus())focus.call(this,how)}}</script>';

/** Return a page that holds `document` in the inner frame, for a frame or a tab. */
export function wrapper(document: string, rights: IFrameRights): string {
  const style = 'border:0;width:100%;height:100%;position:absolute;inset:0';
  const inner = `<iframe ${attributes(rights)} style="${style}" srcdoc="${quoted(head(rights) + (rights.scripts ? PRELUDE : '') + document)}"></iframe>`;
  return `${head(rights)}<body style="margin:0;background:#fff">${inner}`;
}

/** Return `document` in its two frames. */
export function sandboxedFrame(document: string, rights: IFrameRights, title: string): HTMLIFrameElement {
  const frame = globalThis.document.createElement('iframe');
  frame.setAttribute('sandbox', rights.scripts ? 'allow-scripts' : '');
  frame.setAttribute('allow', DENIED);
  frame.setAttribute('referrerpolicy', 'no-referrer');
  frame.setAttribute('loading', 'lazy');
  frame.className = 'lsn-frame';
  frame.title = title;
  frame.setAttribute('srcdoc', wrapper(document, rights));
  guarded(frame);
  return frame;
}

function attributes(rights: IFrameRights): string {
  return `sandbox="${rights.scripts ? 'allow-scripts' : ''}" allow="${DENIED}" referrerpolicy="no-referrer"`;
}

function head(rights: IFrameRights): string {
  return (
    '<!doctype html><meta charset="utf-8">' +
    `<meta http-equiv="Content-Security-Policy" content="${policy(rights)}">` +
    '<meta http-equiv="x-dns-prefetch-control" content="off"><meta name="referrer" content="no-referrer">'
  );
}

function quoted(text: string): string {
  return text.replace(/&/g, '&amp;').replace(/"/g, '&quot;').replace(/</g, '&lt;').replace(/>/g, '&gt;');
}
