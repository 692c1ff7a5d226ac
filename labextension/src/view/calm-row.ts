/** The row of calm steps: it stands in place of their lines until a reader opens it. */

import { h, makeButton, setText } from './dom';
import { ICalmSteps } from './calm-steps';
import { IHost } from './host';
import { StepView } from './step';

export class CalmRow {
  readonly node: HTMLElement;
  private _head: HTMLButtonElement;
  private _numbers = h('span', {});
  private _words = h('span', { class: 'lsn-what' });
  private _figures = h('span', { class: 'lsn-fig' });
  private _views: StepView[] = [];
  private _open = false;

  constructor(private _host: IHost) {
    const sign = h('span', { class: 'lsn-calm-sign', 'aria-hidden': 'true' });
    const toggle = () => this.setOpen(!this._open);
    this._head = makeButton(
      h('span', { class: 'lsn-n' }, this._numbers, sign),
      toggle,
      { class: 'lsn-calm-head' },
      this._words
    );
    this.node = h('div', { class: 'lsn-calm', role: 'listitem' }, this._head, this._figures);
    this.setOpen(false);
  }

  /** Show this row in place of these steps. */
  show(calm: ICalmSteps, views: StepView[]): void {
    const shown = new Set(views);
    this._views.filter(view => !shown.has(view)).forEach(view => view.setFolded(false));
    this._views = views;
    const [first, last] = [calm.steps[0], calm.steps[calm.steps.length - 1]];
    setText(this._numbers, `${first.number}–${last.number}`);
    setText(this._words, calm.words);
    setText(this._figures, calm.figures);
    this.node.setAttribute('aria-label', this._host.trans('Steps %1 to %2', first.number, last.number));
    if (views[0].node.previousSibling !== this.node) {
      views[0].node.before(this.node); // a node that is moved loses the keyboard
    }
    this.setOpen(this._open);
  }

  has(view: StepView): boolean {
    return this._views.includes(view);
  }

  /** Show the lines of the steps, or this row alone. */
  setOpen(open: boolean): void {
    this._open = open;
    this._head.setAttribute('aria-expanded', String(open));
    this._views.forEach(view => view.setFolded(!open));
  }

  /** Show the steps as if they were not calm. */
  remove(): void {
    this._views.forEach(view => view.setFolded(false));
    this.node.remove();
  }
}
