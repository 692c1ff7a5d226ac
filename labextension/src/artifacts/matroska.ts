/** WebM and Matroska: tracks, and the number of blocks. */

import { ISize, Largest, UNKNOWN, withinEnd } from './binary';
import { frameSize } from './vp-frames';

export interface ITrack extends ISize {
  /** Samples of sound per second; 0 without sound. */
  rate: number;
  channels: number;
}

/** Elements that contain elements: segment, cluster, tracks, track, video, audio, group. */
const HOLDERS = new Set([0x18538067, 0x1f43b675, 0x1654ae6b, 0xae, 0xe0, 0xe1, 0xa0]);
/** Maximum number of elements, and of tracks. No normal file has more. */
const MOST_ELEMENTS = 1_000_000;
const MOST_TRACKS = 1000;

export function matroska(view: DataView): { tracks: ITrack[]; blocks: number; frame: ISize } {
  const tracks: ITrack[] = [];
  const frame = new Largest();
  let [blocks, seen] = [0, 0];
  const number = (at: number, size: number) => {
    let value = 0;
    for (let byte = 0; byte < Math.min(size, 8); byte++) {
      value = value * 256 + view.getUint8(at + byte);
    }
    return value;
  };
  const mayGoOn = () => seen < MOST_ELEMENTS && tracks.length < MOST_TRACKS;
  const walk = (from: number, to: number, depth: number) => {
    for (let at = from; at + 2 <= to && mayGoOn(); seen++) {
      const wide = Math.clz32(view.getUint8(at) << 24) + 1;
      const id = number(at, wide);
      at += wide;
      const long = Math.clz32(view.getUint8(at) << 24) + 1;
      const unknown = 2 ** (7 * long) - 1;
      const claimed = number(at, long) - 2 ** (7 * long);
      at += long;
      const size = claimed === unknown ? to - at : Math.min(claimed, to - at);
      const track = tracks[tracks.length - 1];
      if (id === 0xae) {
        tracks.push({ width: 0, height: 0, rate: 0, channels: 1 });
      } else if (id === 0xb0 && track) {
        track.width = number(at, size);
      } else if (id === 0xba && track) {
        track.height = number(at, size);
      } else if (id === 0xb5 && track) {
        track.rate = size === 8 ? view.getFloat64(at) : view.getFloat32(at);
      } else if (id === 0x9f && track) {
        track.channels = number(at, size);
      } else if (id === 0xa3 || id === 0xa1) {
        // A block with lacing contains several frames; their number minus one follows.
        blocks += size > 4 && view.getUint8(at + 3) & 6 ? view.getUint8(at + 4) + 1 : 1;
        const head = Math.clz32(view.getUint8(at) << 24) + 4; // the track's number, two bytes of time, one of flags
        if (tracks.some(one => one.width) && size > head + 10 && at + size <= view.byteLength) {
          const { width, height } = frameSize(view, at + head, at + size);
          frame.grow(width, height);
        }
      }
      if (HOLDERS.has(id) && depth < 8) {
        walk(at, at + size, depth + 1);
      }
      at += size;
    }
  };
  withinEnd(() => walk(0, view.byteLength, 0));
  return mayGoOn() ? { tracks, blocks, frame } : { tracks, blocks: Infinity, frame: UNKNOWN };
}
