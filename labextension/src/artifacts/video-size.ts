/** Size of a video's frames in pixels, from the headers. */
import { ISize, viewOf, withinEnd } from './binary';
import { boxes, largestSequence } from './iso-boxes';
import { matroska } from './matroska';

/** Return the size of the largest frame that the file names; null if it names none. */
export function videoSize(bytes: Uint8Array): ISize | null {
  const view = viewOf(bytes);
  return withinEnd(() => {
    const sizes = bytes[0] === 0x1a ? matroskaSizes(view) : bytes[0] === 0x4f ? [theora(view)] : isoSizes(view);
    const width = Math.max(0, ...sizes.map(size => size.width));
    const height = Math.max(0, ...sizes.map(size => size.height));
    return width && height ? { width, height } : null;
  });
}

/** Return the bytes of the `KEPT` frames that a browser keeps in memory while it shows one. */
export const videoBytes = ({ width, height }: ISize) => width * height * 1.5 * KEPT;
const KEPT = 8;

function matroskaSizes(view: DataView): ISize[] {
  const { tracks, frame } = matroska(view);
  return [...tracks, frame];
}

function isoSizes(view: DataView): ISize[] {
  const sizes: ISize[] = [largestSequence(view)];
  for (const { type, at, end } of boxes(view)) {
    if (type === 'tkhd' && end - at >= 84) {
      sizes.push({ width: view.getUint16(end - 8), height: view.getUint16(end - 4) });
    } else if (type === 'stsd' && end - at >= 44) {
      sizes.push({ width: view.getUint16(at + 40), height: view.getUint16(at + 42) });
    }
  }
  return sizes;
}

function theora(view: DataView): ISize {
  const head = 27 + view.getUint8(26);
  const name = view.getUint32(head) === 0x80746865 && view.getUint16(head + 4) === 0x6f72;
  return name
    ? { width: view.getUint16(head + 10) * 16, height: view.getUint16(head + 12) * 16 }
    : { width: 0, height: 0 };
}
