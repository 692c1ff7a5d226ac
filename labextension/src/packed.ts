/**
 * Unpacks data that Python packed to keep notebooks small (`card/bundle.py`): the record, and files on the card's page.
 *
 * A notebook may come from anywhere, so unpacking is limited: a few kilobytes must not exhaust the page's memory.
 */

import { Unzlib } from 'fflate';

import { MOST_BYTES } from './feed';

/** Number of packed bytes that are unpacked at a time; each becomes at most about a thousand bytes. */
const PIECE_BYTES = 4096;

export class TooLargeError extends Error {}

/** Unpack `text`, base64 of zlib's format. Throws TooLargeError beyond `most` bytes, and Error for damaged data. */
export function unpack(text: string, most = MOST_BYTES): Uint8Array {
  const packed = decodeBase64(text);
  const parts: Uint8Array[] = [];
  let size = 0;
  const stream = new Unzlib(part => {
    size += part.length;
    if (size > most) {
      throw new TooLargeError();
    }
    parts.push(part);
  });
  for (let at = 0; at < packed.length || at === 0; at += PIECE_BYTES) {
    stream.push(packed.subarray(at, at + PIECE_BYTES), at + PIECE_BYTES >= packed.length);
  }
  const whole = new Uint8Array(size);
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

/** Decode base64; empty for any other text. */
export function decodeBase64(text: string): Uint8Array {
  let decoded: string;
  try {
    decoded = atob(text);
  } catch {
    return new Uint8Array();
  }
  const bytes = new Uint8Array(decoded.length);
  for (let index = 0; index < decoded.length; index++) {
    bytes[index] = decoded.charCodeAt(index);
  }
  return bytes;
}

const FIGURE = "<figure class='lsn-artifact'>";
/** Matches the data of a figure. Texts on the page do not match, because their quotes and brackets are escaped. */
const HELD =
  /<\/figcaption>[^]*?(?: (?:src|href|data)='data:[^']*;base64,([A-Za-z0-9+/=]*)'| srcdoc="[^"]*packed=&quot;([A-Za-z0-9+/=]*)&quot;)/;

/** Return the file of `size` bytes that a figure of the card's page holds; null if the figure does not hold it. */
export function heldOnPage(page: string, figure: number, size: number): Uint8Array | null {
  const [, plain, packed] = HELD.exec(page.split(FIGURE)[figure + 1] ?? '') ?? [];
  if (plain === undefined && packed === undefined) {
    return null;
  }
  try {
    const bytes = plain === undefined ? unpack(packed, size) : decodeBase64(plain);
    return bytes.length === size ? bytes : null;
  } catch {
    return null;
  }
}
