/**
 * The list of steps, in groups. Because of the groups, a new step does not cause a layout of the whole run, and only
 * the steps of groups near the visible part are checked one by one.
 */

import { CalmRow } from './calm-row';
import { ICalmSteps } from './calm-steps';
import { h } from './dom';
import { IHost } from './host';
import { StepView } from './step';

/** Distance from the visible part within which a step's body is kept, so that scrolling finds it there. */
const MARGIN = '800px 0px';
/** `scrollMargin` is for a view that scrolls itself. In browsers without it, only steps in sight have a body. */
const OPTIONS = { rootMargin: MARGIN, scrollMargin: MARGIN };
/** Number of steps in a group, which are laid out together. */
const GROUP = 8;
/** Maximum number of kept bodies out of sight. If there are more, all are removed at once, for a single layout. */
const KEPT = 8;

export class StepList {
  readonly node = h('div', { class: 'lsn-steps', role: 'list' });
  private _views = new Map<Element, StepView>();
  private _groups = new Map<Element, { views: StepView[]; near: boolean }>();
  private _last: StepView | null = null;
  private _leaving = new Set<StepView>();
  /** The rows of calm steps, by the number of the first. */
  private _calm = new Map<number, CalmRow>();
  private _groupObserver = new IntersectionObserver(entries => this._groupsMoved(entries), OPTIONS);
  private _stepObserver = new IntersectionObserver(entries => this._stepsMoved(entries), OPTIONS);

  /** Add a step; with its body if `follows` and the step before has one. */
  append(view: StepView, follows: boolean): void {
    if (this._views.size % GROUP === 0) {
      const added = h('div', { class: 'lsn-step-group', role: 'presentation' });
      this._groups.set(added, { views: [], near: true });
      this.node.append(added);
      this._groupObserver.observe(added);
    }
    const place = this.node.lastElementChild!;
    const group = this._groups.get(place)!;
    group.views.push(view);
    this._views.set(view.node, view);
    if (follows && this._last?.near) {
      view.setNear(true);
    }
    place.append(view.node);
    if (group.near) {
      this._stepObserver.observe(view.node);
    }
    this._last = view;
  }

  /** Fold these steps and no others; rows that a reader has opened stay open. */
  foldCalm(calm: ICalmSteps[], views: ReadonlyMap<number, StepView>, host: IHost): void {
    const firsts = new Set(calm.map(one => one.steps[0].number));
    for (const [first, row] of this._calm) {
      if (!firsts.has(first)) {
        row.remove();
        this._calm.delete(first);
      }
    }
    for (const one of calm) {
      const first = one.steps[0].number;
      const row = this._calm.get(first) ?? new CalmRow(host);
      this._calm.set(first, row);
      row.show(
        one,
        one.steps.map(step => views.get(step.number)!)
      );
    }
  }

  /** Show the line of a step that is folded. */
  unfold(view: StepView): void {
    [...this._calm.values()].find(row => row.has(view))?.setOpen(true);
  }

  /** Open or close all rows of calm steps. */
  openCalm(open: boolean): void {
    this._calm.forEach(row => row.setOpen(open));
  }

  clear(): void {
    this.dispose();
    this._calm.clear();
    this._views.clear();
    this._groups.clear();
    this._leaving.clear();
    this._last = null;
    this.node.replaceChildren();
  }

  /** Handle now the changes that the browser has not reported yet. Later, a report could remove a step in sight. */
  catchUp(): void {
    this._groupsMoved(this._groupObserver.takeRecords());
    this._stepsMoved(this._stepObserver.takeRecords());
  }

  /** Stop observing the steps. */
  dispose(): void {
    this._groupObserver.disconnect();
    this._stepObserver.disconnect();
  }

  /** Handle groups that came near or left. A new group counts as near until the browser reports the opposite. */
  private _groupsMoved(entries: IntersectionObserverEntry[]): void {
    for (const { target, isIntersecting } of entries) {
      const group = this._groups.get(target);
      if (!group || group.near === isIntersecting) {
        continue;
      }
      group.near = isIntersecting;
      if (isIntersecting) {
        group.views.forEach(view => this._stepObserver.observe(view.node));
      } else {
        group.views.forEach(view => this._stepObserver.unobserve(view.node));
        this._leave(group.views);
      }
    }
  }

  private _stepsMoved(entries: IntersectionObserverEntry[]): void {
    const arrived: StepView[] = [];
    for (const { target, isIntersecting } of entries) {
      const view = this._views.get(target);
      if (view && isIntersecting && this._groups.get(target.parentElement!)?.near) {
        this._leaving.delete(view);
        arrived.push(view);
      } else if (view?.near) {
        this._leaving.add(view);
      }
    }
    if (this._leaving.size > KEPT) {
      this._leave([...this._leaving]);
    }
    arrived.forEach(view => view.setNear(true));
  }

  /** Remove the bodies of steps that are not near any more. Measure all of them before the first change. */
  private _leave(views: StepView[]): void {
    views.forEach(view => view.measure());
    views.forEach(view => view.setNear(false));
    views.forEach(view => this._leaving.delete(view));
  }
}
