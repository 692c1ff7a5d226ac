/** Readers for headers of binary files, which may be truncated and may claim any size. */

export interface ISize {
  width: number;
  height: number;
}

/** Size that is assumed if not all headers of a file were read: the largest that formats allow. */
export const UNKNOWN: ISize = { width: 2 ** 16, height: 2 ** 16 };

/** The largest of several sizes. */
export class Largest implements ISize {
  width = 0;
  height = 0;

  grow(width = 0, height = 0): void {
    this.width = Math.max(this.width, width);
    this.height = Math.max(this.height, height);
  }
}

/** Return the result of `look`, or null if `look` reads beyond the end of the file. */
export function withinEnd<T>(look: () => T): T | null {
  try {
    return look();
  } catch (error) {
    if (error instanceof RangeError) {
      return null;
    }
    throw error;
  }
}

export function viewOf(bytes: Uint8Array): DataView {
  return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

/** Reader of bits; the highest bit of a byte is the first. */
export class Bits {
  private _at: number;

  constructor(
    readonly view: DataView,
    at: number
  ) {
    this._at = at * 8;
  }

  take(count: number): number {
    let value = 0;
    for (let bit = 0; bit < count; bit++, this._at++) {
      value = value * 2 + ((this.view.getUint8(this._at >> 3) >> (7 - (this._at & 7))) & 1);
    }
    return value;
  }
}
