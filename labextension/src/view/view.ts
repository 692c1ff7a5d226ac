/**
 * The trajectory view: shows a run from its events, all at once or one at a time, with constant work for each.
 *
 * It is the same component in JupyterLab, Notebook, the cell's panel and an exported page; a host gives it what differs.
 */

import { renderArtifact } from '../artifacts';
import { ControlBar } from './controls';
import { h } from './dom';
import { IEvent } from './events';
import { Bar, matches } from './filter';
import { IChange, IStep, Trajectory } from './fold';
import { Header, renderEnding } from './header';
import { HistoryPanel } from './history';
import { IHost } from './host';
import { StepList } from './list';
import { StepView } from './step';
import { Stops } from './stops';
import { IChosen, Timeline } from './timeline';

/** New steps at once that are a run going on, and not one that is shown. */
const FEW = 3;

/** Who is silent at this moment, so that what is shown may be old. */
export type Away = 'server' | 'kernel' | null;

export interface IViewOptions {
  /** Whether more events may come: a run that has no end and is not live was broken off. */
  live?: boolean;
}

export class TrajectoryView {
  readonly node: HTMLElement;
  readonly trajectory = new Trajectory();
  private _header: Header;
  private _bar: Bar;
  private _controls: ControlBar | null = null;
  private _list = new StepList();
  private _artifacts = h('div', { class: 'lsn-artifacts' });
  private _ending = h('div', { class: 'lsn-ending' });
  private _stops: Stops;
  private _timeline: Timeline;
  private _history = h('div', {});
  private _views = new Map<number, StepView>();
  private _shownArtifacts = new Map<string, { sha256: string; node: HTMLElement }>();
  private _dirtySteps = new Set<IStep>();
  private _dirty: IChange = {};
  private _frame = 0;
  private _live: boolean;
  private _away: Away = null;
  private _shown = 0;

  constructor(
    private _host: IHost,
    options: IViewOptions = {}
  ) {
    this._live = options.live ?? false;
    this._header = new Header(this.trajectory, _host);
    this._stops = new Stops(this.trajectory, _host);
    this._timeline = new Timeline(this.trajectory, _host, chosen => this._showHistory(chosen));
    this._bar = new Bar(_host, {
      filter: () => this._filter(),
      foldAll: folded => this._views.forEach(view => view.fold(folded)),
      nextError: () => this.nextError()
    });
    this.node = h(
      'article',
      { class: 'lsn-view', 'aria-label': _host.trans('Trajectory'), tabindex: 0 },
      this._header.node,
      this._bar.node,
      this._timeline.node,
      this._history,
      this._list.node,
      this._stops.node,
      this._artifacts,
      this._ending
    );
    this.node.addEventListener('keydown', event => this._key(event));
    this._header.update(this._live);
    this._updateControls();
  }

  /** Take events into account; what they change is drawn with the next frame. */
  add(...events: IEvent[]): void {
    for (const event of events) {
      const change = this.trajectory.add(event);
      if (change.branch) {
        this._leaveBranch();
      }
      if (change.step) {
        this._dirtySteps.add(change.step);
      }
      this._dirty.header ||= change.header;
      this._dirty.artifacts ||= change.artifacts;
    }
    this._schedule();
  }

  /** Whether more events may come. */
  setLive(live: boolean): void {
    this._live = live;
    this._dirty.header = true;
    this._schedule();
  }

  /** Say that nothing comes because the server or the kernel is away; null when it is back. */
  setAway(away: Away): void {
    this._away = away;
    this._dirty.header = true;
    this._schedule();
  }

  /** Draw at once what waits for the next frame. */
  flush(): void {
    cancelAnimationFrame(this._frame);
    this._frame = 0;
    const steps = [...this._dirtySteps];
    const { header, artifacts } = this._dirty;
    this._dirtySteps.clear();
    this._dirty = {};
    const follows = steps.length <= FEW;
    steps.forEach(step => this._drawStep(step, follows));
    this._timeline.touch(steps);
    if (steps.length && this._bar.active) {
      this._bar.setCount(this._shown, this._views.size);
    }
    if (artifacts) {
      this._drawArtifacts();
    }
    if (header || artifacts) {
      this._timeline.update();
      this._header.update(this._live, this._away);
      this._ending.replaceChildren(...renderEnding(this.trajectory, this._host));
      this._updateControls();
    }
  }

  /** Scroll to the next step that went wrong, after the last one jumped to. */
  nextError(): void {
    const failed = this.trajectory.steps.map(step => this._views.get(step.number)).filter(view => view?.failed);
    const current = this._list.node.querySelector('.lsn-current');
    const index = failed.findIndex(view => view!.node === current);
    this._goTo(failed[(index + 1) % failed.length]);
  }

  private _goTo(view: StepView | undefined): void {
    if (view) {
      this._list.node.querySelector('.lsn-current')?.classList.remove('lsn-current');
      view.node.classList.add('lsn-current');
      view.node.scrollIntoView({ block: 'start' });
    }
  }

  dispose(): void {
    cancelAnimationFrame(this._frame);
    this._stops.dispose();
    this._list.dispose();
    this.node.remove();
  }

  private _schedule(): void {
    if (!this._frame) {
      this._frame = requestAnimationFrame(() => this.flush());
    }
  }

  /** The run is on another branch: what is shown of the one before is drawn anew. */
  private _leaveBranch(): void {
    this._list.clear();
    this._views.clear();
    this._dirtySteps = new Set(this.trajectory.steps);
    this._header.reset();
    this._timeline.reset();
    this._history.replaceChildren();
  }

  /** What is known of one step below the timeline; nothing when none is chosen. */
  private _showHistory(chosen: IChosen | null): void {
    const close = () => {
      this._history.replaceChildren();
      this._timeline.unchoose();
    };
    const show = (number: number) => this._goTo(this._views.get(number));
    const told = (text: string) => this._history.replaceChildren(h('pre', { class: 'lsn-told', role: 'status' }, text));
    const panel = chosen && new HistoryPanel(chosen, this.trajectory, this._host, { show, told, close });
    this._history.replaceChildren(...(panel ? [panel.node] : []));
    void this._host.refresh?.();
  }

  private _drawStep(step: IStep, follows: boolean): void {
    let view = this._views.get(step.number);
    if (view) {
      view.update();
    } else {
      view = new StepView(step, this._host);
      this._views.set(step.number, view);
      this._list.append(view, follows);
      this._shown++;
    }
    step.calls.forEach(call => this._bar.addTool(call.tool));
    if (this._bar.active) {
      this._show(view, matches(view, this._bar.filter));
    }
  }

  private _show(view: StepView, shown: boolean): void {
    this._shown += Number(shown) - Number(!view.node.hidden);
    view.node.hidden = !shown;
  }

  private _drawArtifacts(): void {
    const { artifacts, skipped } = this.trajectory;
    for (const [path, shown] of this._shownArtifacts) {
      if (artifacts.get(path)?.sha256 !== shown.sha256) {
        shown.node.remove();
        this._shownArtifacts.delete(path);
      }
    }
    for (const [path, artifact] of artifacts) {
      if (!this._shownArtifacts.has(path)) {
        const node = renderArtifact(artifact, this._host);
        this._shownArtifacts.set(path, { sha256: artifact.sha256, node });
        this._artifacts.append(node);
      }
    }
    this._artifacts.querySelectorAll('.lsn-skipped').forEach(node => node.remove());
    this._artifacts.append(...skipped.map(reason => h('div', { class: 'lsn-note lsn-skipped' }, reason)));
  }

  private _filter(): void {
    const filter = this._bar.filter;
    this._views.forEach(view => this._show(view, matches(view, filter)));
    this._bar.setCount(this._shown, this._views.size);
  }

  private _updateControls(): void {
    const controls = this._live && !this.trajectory.finish ? this._host.controls : undefined;
    this._stops.update(!!controls);
    if (controls && !this._controls) {
      this._controls = new ControlBar(controls, this._host);
      this._bar.node.before(this._controls.node);
    } else if (!controls && this._controls) {
      this._controls.node.remove();
      this._controls = null;
    }
    this._controls?.update(this.trajectory.controls, this._stops.shown);
  }

  private _key(event: KeyboardEvent): void {
    const target = event.target as HTMLElement;
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName)) {
      return;
    }
    const actions: Record<string, () => void> = {
      '/': () => this._bar.search.focus(),
      e: () => this.nextError(),
      f: () => this._bar.toggleFold()
    };
    const action = actions[event.key];
    if (action) {
      event.preventDefault();
      event.stopPropagation();
      action();
    }
  }
}
