/** The boxes of ISO media files (MP4, M4A, AVIF), and the sizes in their AV1 streams. */

import { Bits, ISize, Largest, withinEnd } from './binary';

export interface IBox {
  type: string;
  /** Start and end of the content. */
  at: number;
  end: number;
}

/** Boxes that contain boxes, with the number of bytes before the inner boxes. */
const HOLDERS: Record<string, number> = {
  moov: 0, trak: 0, mdia: 0, minf: 0, stbl: 0, moof: 0, traf: 0, mvex: 0, meta: 4, iprp: 0, ipco: 0
}; // prettier-ignore
/** Maximum number of boxes, and of starts of streams. No normal file has more. */
const MOST_BOXES = 100_000;
/** Size that is assumed if a file has too many starts of streams, or a header has another form than in pictures. */
const UNKNOWN: ISize = { width: 2 ** 16, height: 2 ** 16 };

/** Return all boxes of a file. Inner boxes follow their outer box. */
export function boxes(view: DataView): IBox[] {
  const found: IBox[] = [];
  const walk = (from: number, to: number, depth: number) => {
    for (let at = from; at + 8 <= to && found.length < MOST_BOXES;) {
      const type = String.fromCharCode(...new Uint8Array(view.buffer, view.byteOffset + at + 4, 4));
      const size = view.getUint32(at);
      const long = size === 1 && at + 16 <= to;
      const whole = long ? Number(view.getBigUint64(at + 8)) : size || to - at;
      const [content, end] = [at + (long ? 16 : 8), Math.min(to, at + whole)];
      found.push({ type, at: content, end });
      if (type in HOLDERS && depth < 12) {
        walk(content + HOLDERS[type], end, depth + 1);
      }
      at += Math.max(8, whole);
    }
  };
  walk(0, view.byteLength, 0);
  return found;
}

/** Return the largest size in the headers of the AV1 streams in a file. */
export function largestSequence(view: DataView): ISize {
  const largest = new Largest();
  const found = places(view);
  if (found.length >= MOST_BOXES) {
    return UNKNOWN;
  }
  for (const at of found) {
    const size = withinEnd(() => sequenceAt(view, at));
    largest.grow(size?.width, size?.height);
  }
  return largest;
}

/** Find the starts of a picture's items and of a film's samples, at most `MOST_BOXES`. */
function places(view: DataView): number[] {
  const found: number[] = [];
  for (const { type, at, end } of boxes(view)) {
    withinEnd(() => {
      if (type === 'iloc') {
        addItems(view, at, found);
      } else if (type === 'mdat') {
        found.push(at);
      } else if (type === 'av1C') {
        found.push(at + 4);
      } else if (type === 'stco' || type === 'co64') {
        const wide = type === 'co64';
        const count = Math.min(view.getUint32(at + 4), (end - at - 8) / (wide ? 8 : 4), MOST_BOXES - found.length);
        for (let index = 0; index < count; index++) {
          const place = at + 8 + index * (wide ? 8 : 4);
          found.push(wide ? Number(view.getBigUint64(place)) : view.getUint32(place));
        }
      }
    });
  }
  return found;
}

function addItems(view: DataView, start: number, found: number[]): void {
  const version = view.getUint8(start);
  const sizes = view.getUint16(start + 4);
  const [offsetSize, lengthSize, baseSize] = [sizes >> 12, (sizes >> 8) & 15, (sizes >> 4) & 15];
  const indexSize = version ? sizes & 15 : 0;
  const number = (place: number, size: number) =>
    size === 8 ? Number(view.getBigUint64(place)) : size === 4 ? view.getUint32(place) : 0;
  const wide = version === 2 ? 4 : 2;
  const count = version === 2 ? view.getUint32(start + 6) : view.getUint16(start + 6);
  let at = start + 6 + wide;
  for (let item = 0; item < count && found.length < MOST_BOXES; item++) {
    at += wide + (version ? 2 : 0) + 2;
    const base = number(at, baseSize);
    at += baseSize;
    const extents = view.getUint16(at);
    at += 2;
    for (let extent = 0; extent < extents && found.length < MOST_BOXES; extent++) {
      at += indexSize;
      found.push(base + number(at, offsetSize));
      at += offsetSize + lengthSize;
    }
  }
}

/** Return the size in the sequence header of a stream (AV1, 5.5), if it is one of the first 64 units; else null. */
function sequenceAt(view: DataView, from: number): ISize | null {
  let at = from;
  for (let unit = 0; unit < 64 && at + 2 < view.byteLength; unit++) {
    const head = view.getUint8(at);
    const type = (head >> 3) & 15;
    at += head & 4 ? 2 : 1;
    let length = 0;
    if (head & 2) {
      for (let shift = 0; shift < 28; shift += 7) {
        const next = view.getUint8(at++);
        length |= (next & 0x7f) << shift;
        if (next < 0x80) {
          break;
        }
      }
    }
    if (type === 1) {
      return sequence(new Bits(view, at));
    }
    if (!(head & 2)) {
      return null;
    }
    at += length;
  }
  return null;
}

function sequence(bits: Bits): ISize | null {
  bits.take(4); // profile, still picture
  if (!bits.take(1)) {
    if (bits.take(1)) {
      return UNKNOWN; // with timing, which pictures do not have
    }
    const delays = bits.take(1);
    const points = bits.take(5) + 1;
    for (let point = 0; point < points; point++) {
      bits.take(12);
      bits.take(bits.take(5) > 7 ? 1 : 0);
      bits.take(delays && bits.take(1) ? 4 : 0);
    }
  } else {
    bits.take(5);
  }
  const [wide, high] = [bits.take(4) + 1, bits.take(4) + 1];
  return { width: bits.take(wide) + 1, height: bits.take(high) + 1 };
}
