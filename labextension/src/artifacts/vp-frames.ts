/** Sizes in the frames of VP8 and VP9. They are read because the header of a video may claim a smaller size. */
import { Bits, ISize, Largest, withinEnd } from './binary';

/** Return the size of the largest frame in a block. With VP9, a block may hold several frames. */
export function frameSize(view: DataView, from: number, to: number): ISize {
  const largest = new Largest();
  for (const at of starts(view, from, to)) {
    const size = withinEnd(() => vp8(view, at) ?? vp9(view, at));
    largest.grow(size?.width, size?.height);
  }
  return largest;
}

/** Find the starts of the frames in a block. A block of several frames ends with an index between two equal bytes. */
function starts(view: DataView, from: number, to: number): number[] {
  const mark = view.getUint8(to - 1);
  const [count, wide] = [(mark & 7) + 1, ((mark >> 3) & 3) + 1];
  const index = to - 2 - count * wide;
  if (mark >> 5 !== 6 || index < from || view.getUint8(index) !== mark) {
    return [from];
  }
  const found: number[] = [];
  for (let [frame, at] = [0, from]; frame < count && at < to; frame++) {
    found.push(at);
    for (let byte = 0; byte < wide; byte++) {
      at += view.getUint8(index + 1 + frame * wide + byte) * 256 ** byte;
    }
  }
  return found;
}

/** Read the size of a key frame (RFC 6386, 9.1). */
function vp8(view: DataView, at: number): ISize | null {
  if (view.getUint8(at) & 1 || view.getUint16(at + 3) !== 0x9d01 || view.getUint8(at + 5) !== 0x2a) {
    return null;
  }
  return { width: view.getUint16(at + 6, true) & 0x3fff, height: view.getUint16(at + 8, true) & 0x3fff };
}

/** Read the size of any frame that names one (VP9, 6.2). */
function vp9(view: DataView, start: number): ISize | null {
  const bits = new Bits(view, start);
  const take = (count: number) => bits.take(count);
  if (take(2) !== 2) {
    return null;
  }
  const profile = take(1) + take(1) * 2;
  if ((profile === 3 && take(1)) || take(1)) {
    return null; // it only repeats an earlier frame
  }
  const [inter, shown, resilient] = [take(1), take(1), take(1)];
  const intraOnly = inter && !shown ? take(1) : 0;
  if (inter && !resilient) {
    take(2);
  }
  if (inter && !intraOnly) {
    take(8 + 3 * 4);
    if (take(1) || take(1) || take(1)) {
      return null; // as large as an earlier frame
    }
    return { width: take(16) + 1, height: take(16) + 1 };
  }
  if (take(24) !== 0x498342) {
    return null;
  }
  if (!intraOnly || profile > 0) {
    colours(take, profile);
  }
  if (intraOnly) {
    take(8);
  }
  return { width: take(16) + 1, height: take(16) + 1 };
}

/** Skip the colours of a frame. */
function colours(take: (count: number) => number, profile: number): void {
  if (profile >= 2) {
    take(1);
  }
  if (take(3) !== 7) {
    take(1);
    take(profile & 1 ? 3 : 0);
  } else {
    take(profile & 1 ? 1 : 0);
  }
}
