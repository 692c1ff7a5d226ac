/** Tools around a run in a tab of its own: keys from step to step, and large type for a class. */

import { h, makeButton } from './view/dom';
import { showKeys } from './view/keys';
import { TrajectoryView } from './view/view';
import { Trans } from './formatting';

/** Elements in which keys have another meaning. */
const OWN_KEYS =
  'input, select, textarea, [contenteditable], dialog, pre, .lsn-diff, .lsn-table-place, .lsn-picture, video, audio, canvas, iframe';

const all = new Set<TabTools>();

/** Return the tools of the run within `place`, for commands. */
export function tabToolsWithin(place: Node | null | undefined): TabTools | null {
  return [...all].find(tools => place?.contains(tools.node)) ?? null;
}

export class TabTools {
  readonly node: HTMLElement;
  private _present: HTMLButtonElement;

  /** `place` holds the view and these tools. */
  constructor(
    private _view: () => TrajectoryView | null,
    private _place: HTMLElement,
    private _trans: Trans
  ) {
    const button = (label: string, title: string, action: () => void) => makeButton(label, action, { title });
    this._present = button(_trans('Present'), _trans('Large type, one step at a time (p)'), () => this.present());
    this._present.setAttribute('aria-pressed', 'false');
    this.node = h(
      'div',
      { class: 'lsn-tab-tools', role: 'toolbar', 'aria-label': _trans('Tab') },
      button(_trans('‹ Previous step'), _trans('Previous step (↑ or ←)'), () => this.go(-1)),
      button(_trans('Next step ›'), _trans('Next step (↓ or →)'), () => this.go(1)),
      this._present,
      button('?', _trans('Keys (?)'), () => this.keys())
    );
    this.node.lastElementChild!.setAttribute('aria-label', _trans('Keys'));
    all.add(this);
    _place.addEventListener('keydown', event => this._key(event));
  }

  dispose(): void {
    all.delete(this);
  }

  go(by: number): void {
    this._view()?.goOn(by, this._presents);
  }

  /** Begin or end the presentation. */
  present(presents = !this._presents): void {
    this._place.classList.toggle('lsn-present', presents);
    this._present.setAttribute('aria-pressed', String(presents));
    this._view()?.goOn(0, presents);
  }

  keys(): void {
    showKeys(this._place, this._trans, { tab: true, lab: true });
  }

  private get _presents(): boolean {
    return this._place.classList.contains('lsn-present');
  }

  private _key(event: KeyboardEvent): void {
    const target = event.target as HTMLElement;
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || target.closest(OWN_KEYS)) {
      return;
    }
    const actions: Record<string, () => void> = {
      ArrowDown: () => this.go(1),
      ArrowRight: () => this.go(1),
      ArrowUp: () => this.go(-1),
      ArrowLeft: () => this.go(-1),
      Home: () => this.go(-Infinity),
      End: () => this.go(Infinity),
      p: () => this.present(),
      ...(this._presents ? { Escape: () => this.present(false) } : {})
    };
    const action = actions[event.key];
    if (action) {
      event.preventDefault();
      action();
    }
  }
}
