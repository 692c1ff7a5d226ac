/**
 * Maximum memory of files that are shown without a click. A few kilobytes can decode to gigabytes, each time the
 * notebook is opened, so the size is read from the headers before anything is decoded.
 */
import { formatCount, formatDuration, formatSize } from '../formatting';
import { h, makeButton } from '../view/dom';
import { IHost } from '../view/host';
import { pictureBytes, pictureSize } from './picture-size';
import { soundBytes, soundSize } from './sound-size';
import { videoBytes, videoSize } from './video-size';

/** Maximum bytes of a decoded picture or video. `card/picture_size.py` has the same limit for pictures. */
export const PICTURE_BOUND = 128 * 2 ** 20;
/** Maximum bytes of a decoded sound. */
export const SOUND_BOUND = 96 * 2 ** 20;

/** Return the reason why a picture waits for a click, in one sentence; empty for a small one. */
export function pictureWarning(bytes: Uint8Array, host: IHost): string {
  const size = pictureSize(bytes);
  if (!size || pictureBytes(size) <= PICTURE_BOUND) {
    return '';
  }
  const { width, height } = size;
  return host.trans('This picture decodes to %1 (%2 × %3 pixels).', formatSize(pictureBytes(size)), width, height);
}

/** Return the reason why a sound waits for a click; empty for a small one. */
export function soundWarning(bytes: Uint8Array, host: IHost): string {
  const size = soundSize(bytes);
  if (!size || soundBytes(size) <= SOUND_BOUND) {
    return '';
  }
  const { samples, rate, channels } = size;
  const length = formatDuration(samples / channels / (rate || 1));
  const decoded = formatSize(soundBytes(size));
  return host.trans(
    'This sound decodes to %1 (%2 at %3 Hz, %4 channels).',
    decoded,
    length,
    formatCount(rate),
    channels
  );
}

/** Return the reason why a video waits for a click; empty for a small one. */
export function videoWarning(bytes: Uint8Array, host: IHost): string {
  const size = videoSize(bytes);
  if (!size || videoBytes(size) <= PICTURE_BOUND) {
    return '';
  }
  const { width, height } = size;
  return host.trans(
    'This video decodes to %1 at a time (%2 × %3 pixels).',
    formatSize(videoBytes(size)),
    width,
    height
  );
}

/** Call `make` at once, or with a `warning` after a click on a button. */
export function afterClick(warning: string, label: string, make: () => HTMLElement): HTMLElement {
  if (!warning) {
    return make();
  }
  const button = makeButton(label, () => place.replaceChildren(make()), { class: 'lsn-button' });
  const place = h('div', { class: 'lsn-waits' }, h('p', { class: 'lsn-quiet' }, warning, ' ', button));
  return place;
}
