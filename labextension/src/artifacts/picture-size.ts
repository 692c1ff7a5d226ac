/**
 * Decoded size of a picture, from its headers. The format is read from the content and not from the name, as in browsers: a
 * file named .png may have any of these formats.
 */
import { ISize, Largest, viewOf, withinEnd } from './binary';
import { boxes, largestSequence } from './iso-boxes';

export interface IPictureSize extends ISize {
  /** Number of frames of an animation. */
  frames: number;
  /** Bytes of one pixel while it is decoded. */
  depth: number;
}

/** Return the size of the largest picture in the file; null for formats that browsers do not decode. */
export function pictureSize(bytes: Uint8Array): IPictureSize | null {
  return withinEnd(() => READERS.find(({ begins }) => begins.test(start(bytes)))?.read(viewOf(bytes)) ?? null);
}

/** Return the bytes that a browser needs to show the picture. For an animation, this is the size of three frames. */
export function pictureBytes({ width, height, frames, depth }: IPictureSize): number {
  return width * height * depth * (frames > 1 ? 3 : 1);
}

const start = (bytes: Uint8Array) => String.fromCharCode(...bytes.subarray(0, 16));

/* eslint-disable no-control-regex */
const READERS: { begins: RegExp; read: (view: DataView) => IPictureSize | null }[] = [
  { begins: /^\x89PNG\r\n\x1a\n/, read: readPng },
  { begins: /^\xff\xd8\xff/, read: readJpeg },
  { begins: /^GIF8[79]a/, read: readGif },
  { begins: /^RIFF[^]{4}WEBP/, read: readWebp },
  { begins: /^BM/, read: readBmp },
  { begins: /^\0\0[\x01\x02]\0/, read: readIcon },
  { begins: /^[^]{4}ftyp/, read: readAvif }
];
/* eslint-enable no-control-regex */

const ascii = (view: DataView, at: number, length: number) =>
  String.fromCharCode(...new Uint8Array(view.buffer, view.byteOffset + at, length));

function readPng(view: DataView): IPictureSize {
  const depth = view.getUint8(24) === 16 ? 8 : 4;
  let frames = 1;
  for (let at = 8; at + 12 <= view.byteLength && ascii(view, at + 4, 4) !== 'IDAT'; at += 12 + view.getUint32(at)) {
    frames = ascii(view, at + 4, 4) === 'acTL' ? view.getUint32(at + 8) : frames;
  }
  return { width: view.getUint32(16), height: view.getUint32(20), frames, depth };
}

function readJpeg(view: DataView): IPictureSize | null {
  for (let at = 2; ;) {
    const marker = view.getUint8(at + 1);
    if (view.getUint8(at) !== 0xff || marker === 0xff || (marker >= 0xd0 && marker <= 0xd8) || marker === 1) {
      at += 1; // padding, or a marker without a length
    } else if (marker >= 0xc0 && marker <= 0xcf && ![0xc4, 0xc8, 0xcc].includes(marker)) {
      // While a progressive picture is decoded, its coefficients need two more bytes for each of three colours.
      const depth = [0xc2, 0xc6, 0xca, 0xce].includes(marker) ? 10 : 4;
      return { width: view.getUint16(at + 7), height: view.getUint16(at + 5), frames: 1, depth };
    } else if (marker === 0xda) {
      return null;
    } else {
      at += 2 + view.getUint16(at + 2);
    }
  }
}

function readGif(view: DataView): IPictureSize {
  const size = new Largest();
  let frames = 0;
  size.grow(view.getUint16(6, true), view.getUint16(8, true));
  const tableOf = (flags: number) => (flags & 0x80 ? 3 << ((flags & 7) + 1) : 0);
  // Browsers show the intact beginning of a truncated file.
  withinEnd(() => {
    for (let at = 13 + tableOf(view.getUint8(10)); view.getUint8(at) !== 0x3b;) {
      if (view.getUint8(at) === 0x2c) {
        frames++;
        const [left, top] = [view.getUint16(at + 1, true), view.getUint16(at + 3, true)];
        size.grow(left + view.getUint16(at + 5, true), top + view.getUint16(at + 7, true));
        at += 11 + tableOf(view.getUint8(at + 9));
      } else {
        at += 2;
      }
      while (view.getUint8(at)) {
        at += 1 + view.getUint8(at);
      }
      at += 1;
    }
  });
  return { width: size.width, height: size.height, frames, depth: 4 };
}

function readWebp(view: DataView): IPictureSize {
  const size = new Largest();
  let frames = 0;
  const three = (at: number) => view.getUint16(at, true) + 0x10000 * view.getUint8(at + 2) + 1;
  const walk = (from: number, to: number) => {
    for (let at = from; at + 8 <= to;) {
      const length = view.getUint32(at + 4, true);
      switch (ascii(view, at, 4)) {
        case 'VP8X':
          size.grow(three(at + 12), three(at + 15));
          break;
        case 'VP8 ':
          size.grow(view.getUint16(at + 14, true) & 0x3fff, view.getUint16(at + 16, true) & 0x3fff);
          break;
        case 'VP8L': {
          const bits = view.getUint32(at + 9, true);
          size.grow((bits & 0x3fff) + 1, ((bits >>> 14) & 0x3fff) + 1);
          break;
        }
        case 'ANMF':
          frames++;
          size.grow(three(at + 14), three(at + 17));
          walk(at + 24, Math.min(to, at + 8 + length));
      }
      at += 8 + length + (length & 1);
    }
  };
  withinEnd(() => walk(12, view.byteLength)); // browsers ignore bytes after the picture
  return { width: size.width, height: size.height, frames, depth: 4 };
}

function readBmp(view: DataView): IPictureSize {
  const old = view.getUint32(14, true) === 12;
  const width = old ? view.getUint16(18, true) : Math.abs(view.getInt32(18, true));
  const height = old ? view.getUint16(20, true) : Math.abs(view.getInt32(22, true));
  return { width, height, frames: 1, depth: 4 };
}

/** Read an icon file. It holds several pictures, of which one may be a large PNG; return the largest. */
function readIcon(view: DataView): IPictureSize {
  let largest: IPictureSize = { width: 256, height: 256, frames: 1, depth: 4 };
  for (let entry = 0; entry < Math.min(view.getUint16(4, true), 256); entry++) {
    const from = view.getUint32(6 + 16 * entry + 12, true);
    if (from + 40 <= view.byteLength) {
      const inner = new DataView(view.buffer, view.byteOffset + from);
      const size =
        inner.getUint32(0) === 0x89504e47
          ? readPng(inner)
          : {
              width: Math.abs(inner.getInt32(4, true)),
              height: Math.abs(inner.getInt32(8, true)),
              frames: 1,
              depth: 4
            };
      largest = pictureBytes(size) > pictureBytes(largest) ? size : largest;
    }
  }
  return largest;
}

/** Read an AVIF file. Its properties name a size, but its AV1 streams decide how much is decoded: return the larger. */
function readAvif(view: DataView): IPictureSize | null {
  const size = new Largest();
  let frames = 1;
  for (const { type, at, end } of boxes(view)) {
    if (type === 'ispe' && at + 12 <= end) {
      size.grow(view.getUint32(at + 4), view.getUint32(at + 8));
    } else if (type === 'tkhd') {
      frames = 2; // a film
    }
  }
  const stream = largestSequence(view);
  size.grow(stream.width, stream.height);
  return size.width ? { width: size.width, height: size.height, frames, depth: 8 } : null;
}
