/** The loudness of a sound over its length. */

const COLUMNS = 600;
/** The lowest sample rate to which browsers decode: it is enough for the drawing, and needs the least memory. */
const RATE = 8000;
const MOST_BYTES = 24 * 2 ** 20;

/** Return the loudest sample, 0 to 1, of each of `COLUMNS` equal parts; null if the sound cannot be decoded. */
export async function peaksOf(bytes: Uint8Array): Promise<Float32Array | null> {
  if (bytes.length > MOST_BYTES) {
    return null;
  }
  try {
    const copy = bytes.slice().buffer;
    const sound = await new OfflineAudioContext(1, 1, RATE).decodeAudioData(copy);
    return loudest(sound.getChannelData(0));
  } catch {
    return null;
  }
}

function loudest(samples: Float32Array): Float32Array {
  const peaks = new Float32Array(COLUMNS);
  for (let i = 0; i < samples.length; i++) {
    const column = Math.floor((i * COLUMNS) / samples.length);
    peaks[column] = Math.max(peaks[column], Math.abs(samples[i]));
  }
  return peaks;
}

/** Draw the waveform, with the part before `position` (0 to 1) in the strong colour. */
export function drawWave(canvas: HTMLCanvasElement, peaks: Float32Array, position: number): void {
  const context = fitted(canvas);
  const { width, height } = canvas;
  const [strong, weak] = colours(canvas);
  const step = width / peaks.length;
  context.clearRect(0, 0, width, height);
  peaks.forEach((peak, i) => {
    const size = Math.max(1, Math.min(1, peak) * height);
    context.fillStyle = i / peaks.length < position ? strong : weak;
    context.fillRect(i * step, (height - size) / 2, Math.max(1, step - 0.5), size);
  });
}

/** Give a canvas one pixel for each screen pixel that it covers, and return its drawing context. */
export function fitted(canvas: HTMLCanvasElement): CanvasRenderingContext2D {
  const ratio = Math.min(2, window.devicePixelRatio || 1);
  canvas.width = Math.min(4096, Math.max(1, Math.round(canvas.clientWidth * ratio)));
  canvas.height = Math.min(1024, Math.max(1, Math.round(canvas.clientHeight * ratio)));
  return canvas.getContext('2d')!;
}

/** The theme's strong and weak colour. */
function colours(node: HTMLElement): [string, string] {
  const style = getComputedStyle(node);
  const read = (name: string, other: string) => style.getPropertyValue(name).trim() || other;
  return [read('--jp-brand-color1', '#1976d2'), read('--jp-brand-color2', '#64a5e0')];
}
