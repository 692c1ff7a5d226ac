/** SHA-256 (FIPS 180-4); `crypto.subtle` does not exist on pages served over plain HTTP, as Lab often is. */

const PRIMES: number[] = [];
for (let candidate = 2; PRIMES.length < 64; candidate++) {
  if (PRIMES.every(prime => candidate % prime)) {
    PRIMES.push(candidate);
  }
}
const fraction = (value: number) => ((value - Math.floor(value)) * 2 ** 32) | 0;
const ROUND = PRIMES.map(prime => fraction(Math.cbrt(prime)));
const START = PRIMES.slice(0, 8).map(prime => fraction(Math.sqrt(prime)));

const turn = (word: number, by: number) => (word >>> by) | (word << (32 - by));

/** The digest in hexadecimal. */
export function sha256(bytes: Uint8Array): string {
  const blocks = Math.ceil((bytes.length + 9) / 64);
  const padded = new Uint8Array(blocks * 64);
  padded.set(bytes);
  padded[bytes.length] = 0x80;
  const view = new DataView(padded.buffer);
  view.setUint32(padded.length - 8, Math.floor(bytes.length / 2 ** 29));
  view.setUint32(padded.length - 4, (bytes.length * 8) % 2 ** 32);
  const state = Int32Array.from(START);
  const words = new Int32Array(64);
  for (let block = 0; block < blocks; block++) {
    expand(words, view, block * 64);
    compress(state, words);
  }
  return Array.from(state, word => (word >>> 0).toString(16).padStart(8, '0')).join('');
}

function expand(words: Int32Array, view: DataView, offset: number): void {
  for (let i = 0; i < 16; i++) {
    words[i] = view.getInt32(offset + i * 4);
  }
  for (let i = 16; i < 64; i++) {
    const [a, b] = [words[i - 15], words[i - 2]];
    const low = turn(a, 7) ^ turn(a, 18) ^ (a >>> 3);
    const high = turn(b, 17) ^ turn(b, 19) ^ (b >>> 10);
    words[i] = (words[i - 16] + low + words[i - 7] + high) | 0;
  }
}

function compress(state: Int32Array, words: Int32Array): void {
  let [a, b, c, d, e, f, g, h] = state;
  for (let i = 0; i < 64; i++) {
    const choice = (e & f) ^ (~e & g);
    const first = (h + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + choice + ROUND[i] + words[i]) | 0;
    const majority = (a & b) ^ (a & c) ^ (b & c);
    const second = ((turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + majority) | 0;
    [h, g, f, e, d, c, b, a] = [g, f, e, (d + first) | 0, c, b, a, (first + second) | 0];
  }
  [a, b, c, d, e, f, g, h].forEach((word, i) => (state[i] = (state[i] + word) | 0));
}
