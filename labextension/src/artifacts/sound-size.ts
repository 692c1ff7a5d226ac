/**
 * Length of a sound, from its headers and those of its frames. The length in the header may be wrong, and decoders ignore
 * it, so each frame is counted. The format is read from the content and not from the name, as in browsers.
 */
import { viewOf, withinEnd } from './binary';
import { boxes } from './iso-boxes';
import { matroska } from './matroska';

export interface ISoundSize {
  rate: number;
  channels: number;
  /** Number of samples of all channels together. */
  samples: number;
}

/** Return the size of the decoded sound; null for a format that browsers do not decode. */
export function soundSize(bytes: Uint8Array): ISoundSize | null {
  const sound = bytes.subarray(afterTag(bytes));
  const view = viewOf(sound);
  const head = String.fromCharCode(...sound.subarray(0, 12));
  return withinEnd(() => READERS.find(([begins]) => begins.test(head))?.[1](view) ?? readFrames(view));
}

/** Return the bytes of the decoded sound. */
export const soundBytes = ({ samples }: ISoundSize) => samples * 4;

const READERS: [RegExp, (view: DataView) => ISoundSize | null][] = [
  [/^(?:RIFF|RF64)[^]{4}WAVE/, readWav],
  [/^fLaC/, readFlac],
  [/^OggS/, readOgg],
  [/^[^]{4}ftyp/, readIso],
  // eslint-disable-next-line no-control-regex
  [/^\x1a\x45\xdf\xa3/, readMatroska]
];

/** Find the start of the sound after an ID3 tag, which any format may have. */
function afterTag(bytes: Uint8Array): number {
  let at = 0;
  while (bytes[at] === 0x49 && bytes[at + 1] === 0x44 && bytes[at + 2] === 0x33 && at + 10 < bytes.length) {
    const [a, b, c, d] = bytes.subarray(at + 6, at + 10);
    at += 10 + (a & 127) * 2 ** 21 + (b & 127) * 2 ** 14 + (c & 127) * 128 + (d & 127) + (bytes[at + 5] & 16 ? 10 : 0);
  }
  return Math.min(at, bytes.length);
}

function readWav(view: DataView): ISoundSize | null {
  let [format, channels, rate, bits] = [1, 1, 8000, 8];
  for (let at = 12; at + 8 <= view.byteLength;) {
    const id = view.getUint32(at);
    const size = view.getUint32(at + 4, true);
    if (id === 0x666d7420) {
      format = view.getUint16(at + 8, true);
      channels = view.getUint16(at + 10, true);
      rate = view.getUint32(at + 12, true);
      bits = view.getUint16(at + 22, true);
      format = format === 0xfffe && size >= 40 ? view.getUint16(at + 32, true) : format;
    } else if (id === 0x64617461) {
      const data = view.byteLength - at - 8;
      const packed: Record<number, number> = { 1: bits, 3: bits, 6: 8, 7: 8, 2: 4, 0x11: 4 };
      if (packed[format]) {
        return { rate, channels, samples: Math.floor((data * 8) / packed[format]) };
      }
      return readFrames(new DataView(view.buffer, view.byteOffset + at + 8, data));
    }
    at += 8 + size + (size & 1);
  }
  return null;
}

function readFlac(view: DataView): ISoundSize {
  const bits = view.getUint32(18);
  const [rate, channels] = [bits >>> 12, ((bits >>> 9) & 7) + 1];
  const claimed = ((view.getUint8(21) & 15) * 2 ** 32 + view.getUint32(22)) * channels;
  const bytes = new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
  let samples = 0;
  for (let at = bytes.indexOf(0xff, 42); at >= 0; at = bytes.indexOf(0xff, at + 1)) {
    samples += flacFrame(bytes, at);
  }
  return { rate, channels, samples: Math.max(claimed, samples) };
}

/** Return the samples of all channels in the FLAC frame that begins at `at`; 0 if no frame begins there. */
function flacFrame(bytes: Uint8Array, at: number): number {
  const [, second, sizes, kind] = bytes.subarray(at, at + 4);
  const [size, rate, channels] = [sizes >> 4, sizes & 15, kind >> 4];
  if ((second & 0xfe) !== 0xf8 || !size || rate === 15 || channels > 10 || kind & 1) {
    return 0;
  }
  let end = at + 4;
  const lead = bytes[end];
  end += lead < 0x80 ? 1 : Math.max(1, Math.clz32(~(lead << 24)));
  const extra = size === 6 ? bytes[end] + 1 : size === 7 ? bytes[end] * 256 + bytes[end + 1] + 1 : 0;
  end += (size === 6 ? 1 : size === 7 ? 2 : 0) + (rate === 12 ? 1 : rate > 12 ? 2 : 0);
  let check = 0;
  for (let place = at; place < end; place++) {
    check ^= bytes[place];
    for (let bit = 0; bit < 8; bit++) {
      check = check & 0x80 ? ((check << 1) ^ 7) & 0xff : check << 1;
    }
  }
  const block = extra || (size === 1 ? 192 : size < 6 ? 576 << (size - 2) : 256 << (size - 8));
  return check === bytes[end] ? block * (channels < 8 ? channels + 1 : 2) : 0;
}

const MP3_RATES = [44100, 48000, 32000];
const BITRATES = {
  first: [0, 32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448],
  second: [0, 32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384],
  third: [0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320],
  lowFirst: [0, 32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256],
  low: [0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160]
};

/** MPEG audio (MP3) and ADTS (AAC): count the frames, and skip other bytes. */
function readFrames(view: DataView): ISoundSize | null {
  const bytes = new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
  const sound = { rate: 0, channels: 1, samples: 0 };
  let frames = 0;
  for (let at = bytes.indexOf(0xff); at >= 0; at = bytes.indexOf(0xff, at)) {
    const frame = frameAt(bytes, at);
    if (frame) {
      frames++;
      sound.rate = Math.max(sound.rate, frame.rate);
      sound.channels = Math.max(sound.channels, frame.channels);
      sound.samples += frame.samples;
    }
    at += frame?.length ?? 1;
  }
  return frames > 1 ? sound : null;
}

function frameAt(bytes: Uint8Array, at: number): (ISoundSize & { length: number }) | null {
  const [, a, b, c, d, e] = bytes.subarray(at, at + 6);
  const [version, layer] = [(a >> 3) & 3, (a >> 1) & 3];
  if (a === undefined || c === undefined || (a & 0xe0) !== 0xe0) {
    return null;
  }
  if (layer === 0) {
    const length = ((c & 3) << 11) | (d << 3) | (e >> 5);
    const rate = [96000, 88200, 64000, 48000, 44100, 32000, 24000, 22050, 16000, 12000, 11025, 8000, 7350][
      (b >> 2) & 15
    ];
    if ((a & 0xf0) !== 0xf0 || !rate || !(length >= 7)) {
      return null;
    }
    const blocks = (bytes[at + 6] & 3) + 1;
    const channels = Math.max(2, ((b & 1) << 2) | (c >> 6));
    return { rate, channels, length, samples: blocks * 2048 * channels };
  }
  const [bitrate, rateIndex, padding] = [b >> 4, (b >> 2) & 3, (b >> 1) & 1];
  if (version === 1 || bitrate === 0 || bitrate === 15 || rateIndex === 3) {
    return null;
  }
  const rate = MP3_RATES[rateIndex] >> (version === 3 ? 0 : version === 2 ? 1 : 2);
  const channels = c >> 6 === 3 ? 1 : 2;
  const full = version === 3;
  const table =
    layer === 3 ? (full ? 'first' : 'lowFirst') : layer === 2 ? (full ? 'second' : 'low') : full ? 'third' : 'low';
  const bits = BITRATES[table][bitrate] * 1000;
  const block = layer === 3 ? 384 : layer === 2 || full ? 1152 : 576;
  const length =
    layer === 3 ? (Math.floor((12 * bits) / rate) + padding) * 4 : Math.floor(((block / 8) * bits) / rate) + padding;
  return { rate, channels, length: Math.max(4, length), samples: block * channels };
}

interface IStream {
  rate: number;
  channels: number;
  /** Function that returns the maximum number of samples of one channel in a packet. */
  packet: (data: Uint8Array) => number;
}

/** Read Ogg with Vorbis, Opus or FLAC: return the maximum number of samples in its packets. */
function readOgg(view: DataView): ISoundSize | null {
  const bytes = new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
  const streams = new Map<number, IStream | null>();
  const sound = { rate: 0, channels: 1, samples: 0 };
  let known = false;
  for (let page = 0; page + 27 <= bytes.length;) {
    if (view.getUint32(page) !== 0x4f676753) {
      page = bytes.indexOf(0x4f, page + 1);
      if (page < 0) {
        break;
      }
      continue;
    }
    const segments = bytes[page + 26];
    const serial = view.getUint32(page + 14, true);
    let at = page + 27 + segments;
    let begin = at;
    for (let segment = 0; segment < segments; segment++) {
      const size = bytes[page + 27 + segment];
      at += size;
      if (size < 255) {
        const packet = bytes.subarray(begin, at);
        const stream = streams.get(serial);
        if (stream === undefined) {
          const begun = streamOf(packet);
          streams.set(serial, begun);
          known ||= begun !== null;
          sound.rate = Math.max(sound.rate, begun?.rate ?? 0);
          sound.channels = Math.max(sound.channels, begun?.channels ?? 1);
        } else if (stream) {
          sound.samples += stream.packet(packet) * stream.channels;
        }
        begin = at;
      }
    }
    page = at;
  }
  return known ? sound : null;
}

function streamOf(head: Uint8Array): IStream | null {
  const name = String.fromCharCode(...head.subarray(0, 8));
  const view = new DataView(head.buffer, head.byteOffset, head.byteLength);
  if (name.startsWith('\x01vorbis')) {
    const longest = 1 << (head[28] >> 4);
    return { rate: view.getUint32(12, true), channels: head[11], packet: () => longest / 2 };
  }
  if (name === 'OpusHead') {
    return { rate: 48_000, channels: head[9], packet: opusSamples };
  }
  if (name.startsWith('\x7fFLAC')) {
    const channels = ((view.getUint32(27) >>> 9) & 7) + 1;
    return { rate: view.getUint32(27) >>> 12, channels, packet: data => flacFrame(data, 0) / channels };
  }
  return null;
}

/** Return the samples in an Opus packet: the length of its frames times their number (RFC 6716, 3.1). */
function opusSamples(packet: Uint8Array): number {
  if (!packet.length || String.fromCharCode(...packet.subarray(0, 8)) === 'OpusTags') {
    return 0;
  }
  const kind = packet[0] >> 3;
  const frame = kind < 12 ? [480, 960, 1920, 2880][kind & 3] : kind < 16 ? [480, 960][kind & 1] : 120 << (kind & 3);
  const count = [1, 2, 2, packet[1] & 63][packet[0] & 3];
  return Math.min(5760, frame * count);
}

/** Read MP4 or M4A: return the number of samples in its tables or fragments. */
function readIso(view: DataView): ISoundSize | null {
  const sound = { rate: 0, channels: 1, samples: 0 };
  let [frames, known, per] = [0, false, 2048];
  for (const { type, at, end } of boxes(view)) {
    if (type === 'stsd' && end - at >= 44) {
      const codec = String.fromCharCode(...new Uint8Array(view.buffer, view.byteOffset + at + 12, 4));
      if (!['avc1', 'hvc1', 'hev1', 'vp09', 'vp08', 'av01'].includes(codec)) {
        known = true;
        per = codec === 'mp4a' ? 2048 : 65_535;
        sound.channels = Math.max(2, sound.channels, view.getUint16(at + 32));
        sound.rate = Math.max(sound.rate, view.getUint16(at + 40), 48_000);
      }
    } else if (type === 'stsz' || type === 'trun') {
      frames += type === 'stsz' ? view.getUint32(at + 8) : view.getUint32(at + 4);
    }
  }
  sound.samples = frames * per * sound.channels;
  return known ? sound : null;
}

/** Read WebM: return the maximum number of samples in its blocks. */
function readMatroska(view: DataView): ISoundSize | null {
  const { tracks, blocks } = matroska(view);
  const sounds = tracks.filter(({ rate }) => rate > 0);
  const channels = Math.max(1, ...sounds.map(track => track.channels));
  const rate = Math.max(0, ...sounds.map(track => track.rate));
  return sounds.length || blocks === Infinity ? { rate, channels, samples: blocks * 5760 * channels } : null;
}
