/** Parser of the notes in standard MIDI files. Lengths in the file are not trusted. */

export interface INote {
  /** Seconds. */
  start: number;
  end: number;
  /** 0 to 127; 60 is middle C. */
  pitch: number;
  velocity: number;
  channel: number;
}

export interface IScore {
  notes: INote[];
  tracks: number;
  seconds: number;
  /** True if something was malformed or left out. */
  damaged: boolean;
}

const MOST_NOTES = 20_000;
const MOST_EVENTS = 400_000;
const MOST_TRACKS = 256;

interface ITick {
  tick: number;
  order: number;
}
interface ISound extends ITick {
  channel: number;
  pitch: number;
  velocity: number;
}
interface ITempo extends ITick {
  micros: number;
}

/** Return the notes of a MIDI file; null for any other file. */
export function parseMidi(bytes: Uint8Array): IScore | null {
  const reader = new Reader(bytes);
  if (reader.text(4) !== 'MThd') {
    return null;
  }
  const length = reader.number(4);
  reader.number(2);
  reader.number(2);
  const division = reader.number(2);
  reader.at = Math.min(bytes.length, 8 + Math.max(6, length));
  const file = new File();
  while (reader.left >= 8 && file.tracks < MOST_TRACKS) {
    const name = reader.text(4);
    const part = reader.part(reader.number(4));
    file.damaged ||= part.short;
    if (name === 'MTrk') {
      file.readTrack(part);
    }
  }
  return file.score(division);
}

class Reader {
  at = 0;
  short = false;

  constructor(
    readonly bytes: Uint8Array,
    readonly end = bytes.length
  ) {}

  get left(): number {
    return this.end - this.at;
  }

  byte(): number {
    if (this.at >= this.end) {
      this.short = true;
      return 0;
    }
    return this.bytes[this.at++];
  }

  number(size: number): number {
    let value = 0;
    for (let i = 0; i < size; i++) {
      value = value * 256 + this.byte();
    }
    return value;
  }

  /** Read a number of variable length: at most four bytes of seven bits. */
  variable(): number {
    let value = 0;
    for (let i = 0; i < 4; i++) {
      const byte = this.byte();
      value = value * 128 + (byte & 127);
      if (byte < 128) {
        return value;
      }
    }
    this.short = true;
    return value;
  }

  text(size: number): string {
    return String.fromCharCode(...Array.from({ length: size }, () => this.byte()));
  }

  skip(size: number): void {
    this.short ||= size > this.left;
    this.at = Math.min(this.end, this.at + size);
  }

  /** Return a reader of the next `size` bytes, or of all that are left. */
  part(size: number): Reader {
    const part = new Reader(this.bytes, Math.min(this.end, this.at + size));
    part.at = this.at;
    part.short = size > this.left;
    this.at = part.end;
    return part;
  }
}

class File {
  tracks = 0;
  damaged = false;
  private _events = 0;
  private _sounds: ISound[] = [];
  private _tempos: ITempo[] = [];

  readTrack(reader: Reader): void {
    this.tracks++;
    let tick = 0;
    let status = 0;
    reader.short = false;
    while (reader.left > 0 && !reader.short) {
      if (++this._events > MOST_EVENTS) {
        this.damaged = true;
        return;
      }
      tick += reader.variable();
      const first = reader.bytes[reader.at];
      if (first >= 128) {
        status = reader.byte();
      }
      if (!this._readEvent(reader, tick, status)) {
        break;
      }
    }
    this.damaged ||= reader.short;
  }

  /** Read an event. Return false at the end of the track, or if the event is invalid. */
  private _readEvent(reader: Reader, tick: number, status: number): boolean {
    const order = this._events;
    if (status === 0xff) {
      const type = reader.byte();
      const part = reader.part(reader.variable());
      this.damaged ||= part.short;
      if (type === 0x51) {
        this._tempos.push({ tick, order, micros: part.number(3) || 500_000 });
      }
      return type !== 0x2f;
    }
    if (status === 0xf0 || status === 0xf7) {
      reader.skip(reader.variable());
      return true;
    }
    if (status < 0x80 || status > 0xef) {
      this.damaged = true;
      return false;
    }
    const pitch = reader.byte() & 127;
    const kind = status >> 4;
    const velocity = kind === 0xc || kind === 0xd ? 0 : reader.byte() & 127;
    if ((kind === 8 || kind === 9) && !reader.short) {
      this._sounds.push({ tick, order, channel: status & 15, pitch, velocity: kind === 9 ? velocity : 0 });
    }
    return true;
  }

  score(division: number): IScore {
    const byTime = (a: ITick, b: ITick) => a.tick - b.tick || a.order - b.order;
    this._sounds.sort(byTime);
    const clock = clockOf(division, this._tempos.sort(byTime));
    const sounding = new Map<number, INote>();
    const notes: INote[] = [];
    let seconds = 0;
    for (const { tick, channel, pitch, velocity } of this._sounds) {
      const time = clock(tick);
      const key = channel * 128 + pitch;
      const before = sounding.get(key);
      if (before) {
        before.end = time;
        sounding.delete(key);
      }
      if (velocity && notes.length >= MOST_NOTES) {
        this.damaged = true;
      } else if (velocity) {
        const note = { start: time, end: time, pitch, velocity, channel };
        notes.push(note);
        sounding.set(key, note);
      }
      seconds = time;
    }
    sounding.forEach(note => (note.end = seconds));
    return { notes, tracks: this.tracks, seconds, damaged: this.damaged };
  }
}

/** Return a function that converts ticks to seconds. Its calls must have increasing ticks. */
function clockOf(division: number, tempos: ITempo[]): (tick: number) => number {
  if (division & 0x8000) {
    const frames = 256 - (division >> 8);
    const perSecond = Math.max(1, frames * (division & 255));
    return tick => tick / perSecond;
  }
  const perBeat = division || 480;
  let [next, at, seconds, micros] = [0, 0, 0, 500_000];
  return tick => {
    while (next < tempos.length && tempos[next].tick <= tick) {
      seconds += ((tempos[next].tick - at) * micros) / perBeat / 1e6;
      ({ tick: at, micros } = tempos[next++]);
    }
    return seconds + ((tick - at) * micros) / perBeat / 1e6;
  };
}
