/** MIDI as a piano-roll: time to the right, pitch upwards, a colour for each channel. */
import { h } from '../view/dom';
import { formatDuration, plural } from '../formatting';
import { ILoaded } from './content';
import { IScore, parseMidi } from './midi';
import { visibleName } from './names';
import { fitted } from './waveform';

export function renderMidi({ artifact, host, bytes }: ILoaded): HTMLElement {
  const score = parseMidi(bytes);
  if (!score) {
    return h('p', { class: 'lsn-quiet' }, host.trans('Not a MIDI file, despite its name.'));
  }
  const facts = [
    plural(score.notes.length, host.trans('note'), host.trans('notes')),
    plural(score.tracks, host.trans('track'), host.trans('tracks')),
    formatDuration(score.seconds)
  ];
  if (score.damaged) {
    facts.push(host.trans('the file is damaged or very large; this is what could be read'));
  }
  const label = host.trans('Piano-roll of %1', visibleName(artifact.path));
  const roll = h('canvas', { class: 'lsn-roll', role: 'img', 'aria-label': label });
  new ResizeObserver(() => drawRoll(roll, score)).observe(roll);
  return h('div', {}, score.notes.length > 0 && roll, h('p', { class: 'lsn-quiet' }, facts.join(', ')));
}

function drawRoll(canvas: HTMLCanvasElement, { notes, seconds }: IScore): void {
  const context = fitted(canvas);
  const { width, height } = canvas;
  const pitches = notes.reduce(([low, high], { pitch }) => [Math.min(low, pitch), Math.max(high, pitch)], [127, 0]);
  const [low, high] = [pitches[0] - 2, pitches[1] + 2];
  const row = height / (high - low + 1);
  const scale = width / (seconds || 1);
  drawKeys(context, low, high, row);
  for (const { start, end, pitch, velocity, channel } of notes) {
    context.fillStyle = `hsl(${(210 + channel * 67) % 360} 65% 45% / ${0.45 + velocity / 230})`;
    context.fillRect(start * scale, (high - pitch) * row, Math.max(2, (end - start) * scale - 1), Math.max(2, row - 1));
  }
}

/** Draw a row for each key, darker for a black key, and a line below each C. */
function drawKeys(context: CanvasRenderingContext2D, low: number, high: number, row: number): void {
  const { width, height } = context.canvas;
  context.clearRect(0, 0, width, height);
  for (let pitch = low; pitch <= high; pitch++) {
    const black = [1, 3, 6, 8, 10].includes(((pitch % 12) + 12) % 12);
    context.fillStyle = black ? 'rgb(128 128 128 / 0.16)' : 'rgb(128 128 128 / 0.05)';
    context.fillRect(0, (high - pitch) * row, width, row);
    if (pitch % 12 === 0) {
      context.fillStyle = 'rgb(128 128 128 / 0.5)';
      context.fillRect(0, (high - pitch + 1) * row, width, 1);
    }
  }
}
