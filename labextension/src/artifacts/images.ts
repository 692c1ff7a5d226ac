/** Pictures with three sizes: fitted into the view, one screen pixel per pixel, or larger. */
import { h } from '../view/dom';
import { afterClick, pictureWarning } from './bounds';
import { addressFor, ILoaded } from './content';
import { IKind } from './kinds';
import { visibleName } from './names';
import { pictureSize } from './picture-size';

const LARGEST = 16;

export function renderImage(loaded: ILoaded, kind: IKind): HTMLElement {
  const { host, bytes } = loaded;
  if (!pictureSize(bytes)) {
    return h('p', { class: 'lsn-quiet' }, host.trans('This picture cannot be shown.'));
  }
  return afterClick(pictureWarning(bytes, host), host.trans('Show it anyway'), () => pictureOf(loaded, kind));
}

function pictureOf(loaded: ILoaded, kind: IKind): HTMLElement {
  const { artifact, host, bytes } = loaded;
  const name = visibleName(artifact.path);
  const picture = h('img', { alt: name, decoding: 'async', draggable: 'false' });
  const label = host.trans('Picture %1; Enter changes the size, + and - zoom, 0 fits it in', name);
  const stage = h('div', { class: 'lsn-picture', tabindex: 0, role: 'group', 'aria-label': label }, picture);
  const status = h('span', { class: 'lsn-quiet', role: 'status' });
  const zoom = new Zoom(stage, picture, status, host.trans('whole'));
  picture.addEventListener('load', () => zoom.set(0));
  picture.addEventListener('error', () => {
    stage.replaceChildren(h('p', { class: 'lsn-quiet' }, host.trans('This picture cannot be shown.')));
  });
  picture.addEventListener('click', event => zoom.cycle(event));
  stage.addEventListener('keydown', event => zoom.key(event));
  picture.src = addressFor(stage, bytes, kind.type);
  return h('div', {}, stage, status);
}

/** Zoom of a picture. `scale` is the number of screen pixels per picture pixel; 0 fits the picture into the view. */
class Zoom {
  scale = 0;

  constructor(
    readonly stage: HTMLElement,
    readonly picture: HTMLImageElement,
    readonly status: HTMLElement,
    readonly whole: string
  ) {}

  set(scale: number, x = 0.5, y = 0.5): void {
    this.scale = scale && Math.min(LARGEST, Math.max(0.05, scale));
    const { stage, picture } = this;
    const [width, height] = [picture.naturalWidth, picture.naturalHeight];
    stage.dataset.zoom = scale ? String(this.scale) : 'fit';
    picture.style.width = scale ? `${width * this.scale}px` : '';
    picture.style.imageRendering = this.scale > 1 ? 'pixelated' : '';
    const shown = scale ? `${Math.round(this.scale * 100)} %` : this.whole;
    this.status.textContent = `${width} × ${height}, ${shown}`;
    stage.scrollLeft = x * stage.scrollWidth - stage.clientWidth / 2;
    stage.scrollTop = y * stage.scrollHeight - stage.clientHeight / 2;
  }

  /** Cycle through fitted, 1:1, and three times as large. */
  cycle(event?: MouseEvent): void {
    const next = this.scale === 0 ? 1 : this.scale === 1 ? 3 : 0;
    const box = this.picture.getBoundingClientRect();
    const at =
      event && box.width ? [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height] : [];
    this.set(next, ...at);
  }

  key(event: KeyboardEvent): void {
    const now = this.scale || this.picture.clientWidth / (this.picture.naturalWidth || 1);
    const keys: Record<string, () => void> = {
      Enter: () => this.cycle(),
      ' ': () => this.cycle(),
      '+': () => this.set(now * 1.5),
      '=': () => this.set(now * 1.5),
      '-': () => this.set(now / 1.5),
      '0': () => this.set(0),
      '1': () => this.set(1)
    };
    const action = event.ctrlKey || event.metaKey || event.altKey ? undefined : keys[event.key];
    if (action) {
      action();
      event.preventDefault();
      event.stopPropagation();
    }
  }
}
