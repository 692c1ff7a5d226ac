/** Sound with its waveform, and moving pictures. */
import { h } from '../view/dom';
import { afterClick, SOUND_BOUND, soundWarning, videoWarning } from './bounds';
import { addressFor, ILoaded } from './content';
import { IKind } from './kinds';
import { visibleName } from './names';
import { soundBytes, soundSize } from './sound-size';
import { drawWave, peaksOf } from './waveform';

export function renderAudio(loaded: ILoaded, kind: IKind): HTMLElement {
  const { host, bytes } = loaded;
  return afterClick(soundWarning(bytes, host), host.trans('Play it anyway'), () => playerOf(loaded, kind));
}

function playerOf(loaded: ILoaded, kind: IKind): HTMLElement {
  const { artifact, host, bytes } = loaded;
  const name = visibleName(artifact.path);
  const player = h('audio', { controls: true, preload: 'metadata', 'aria-label': host.trans('Sound %1', name) });
  const wave = h('canvas', { class: 'lsn-wave', role: 'img', 'aria-label': host.trans('Waveform of %1', name) });
  wave.hidden = true;
  const place = h('div', { class: 'lsn-audio' }, wave, player);
  // The waveform needs the whole decoded sound in memory; the player needs only a small part at a time.
  const size = soundSize(bytes);
  if (size && soundBytes(size) <= SOUND_BOUND) {
    player.addEventListener('loadedmetadata', () => void showWave(player, wave, bytes));
  }
  player.addEventListener('error', () => place.replaceChildren(unplayable(loaded)));
  player.src = addressFor(place, bytes, kind.type);
  return place;
}

async function showWave(player: HTMLAudioElement, wave: HTMLCanvasElement, bytes: Uint8Array): Promise<void> {
  const peaks = await peaksOf(bytes);
  if (!peaks) {
    return;
  }
  wave.hidden = false;
  const draw = () => drawWave(wave, peaks, player.currentTime / (player.duration || 1));
  for (const event of ['timeupdate', 'seeked', 'ended']) {
    player.addEventListener(event, draw);
  }
  wave.addEventListener('click', event => {
    const box = wave.getBoundingClientRect();
    player.currentTime = ((event.clientX - box.left) / box.width) * player.duration;
  });
  new ResizeObserver(draw).observe(wave);
}

export function renderVideo(loaded: ILoaded, kind: IKind): HTMLElement {
  const { host, bytes } = loaded;
  return afterClick(videoWarning(bytes, host), host.trans('Play it anyway'), () => filmOf(loaded, kind));
}

function filmOf(loaded: ILoaded, kind: IKind): HTMLElement {
  const { artifact, host, bytes } = loaded;
  const label = host.trans('Video %1', visibleName(artifact.path));
  const player = h('video', {
    controls: true,
    preload: 'metadata',
    playsinline: true,
    class: 'lsn-video',
    'aria-label': label
  });
  const place = h('div', {}, player);
  player.addEventListener('error', () => place.replaceChildren(unplayable(loaded)));
  player.src = addressFor(place, bytes, kind.type);
  return place;
}

function unplayable({ host }: ILoaded): HTMLElement {
  return h('p', { class: 'lsn-quiet' }, host.trans('This browser cannot play the file; download it.'));
}
