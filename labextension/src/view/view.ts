/**
 * The trajectory view. It shows a run from its events, given all at once or one at a time, with constant work for each.
 *
 * The same component is used in JupyterLab, Notebook, the cell's panel and an exported page. An `IHost` provides the
 * differences.
 */

import { renderArtifact } from '../artifacts';
import { CalmKind, calmGroups, calmKind, calmSteps } from './calm-steps';
import { Cause } from './cause';
import { ControlBar } from './controls';
import { h, makeButton } from './dom';
import { Doubts } from './doubts';
import { IEvent } from '../generated/events';
import { OUTSIDE_AGENT } from '../generated/words';
import { Bar, matches } from './filter';
import { IChange, IStep, Trajectory } from '../trajectory/fold';
import { Facts } from './facts';
import { Header } from './header';
import { renderComparison } from './compare';
import { HistoryPanel } from './history';
import { IHost } from './host';
import { showKeys } from './keys';
import { StepList } from './list';
import { Away } from '../trajectory/status';
import { IStepContext, StepView } from './step';
import { Outcome } from './outcome';
import { PausePoints } from './pause-points';
import { ReadyBanner } from './ready-banner';
import { fillStepActions, StepAction } from './step-actions';
import { linkedStep } from './step-link';
import { IChosen, Timeline } from './timeline';

/** Maximum number of new steps in one drawing. If there are more, the run does not count as followed live. */
const FOLLOWED_STEPS = 3;

/** Maximum number of steps of a run in which all small steps are open. In longer runs, only important ones are open. */
const SHORT_RUN_STEPS = 8;
/** Maximum number of steps whose lines are kept even far from the visible part. */
const KEPT_LINES = 20;
/** Number of the newest steps of a live run, which are open. */
const NEWEST_STEPS = 2;

export interface IViewOptions {
  /** True if more events may come. A run that has no end and is not live was cut off. */
  live?: boolean;
  /** True for a view with a limited height and its own scrollbar, as between the cells of a notebook. */
  capped?: boolean;
}

export class TrajectoryView {
  readonly node: HTMLElement;
  readonly trajectory = new Trajectory();
  private _header: Header;
  private _bar: Bar;
  private _controls: ControlBar | null = null;
  private _list = new StepList();
  private _outcome: Outcome;
  private _doubts: Doubts;
  private _facts: Facts;
  private _cause: Cause;
  private _sticky = h('div', { class: 'lsn-sticky' });
  private _stickyObserver: ResizeObserver;
  private _artifacts = h('section', { class: 'lsn-artifacts' });
  private _stops: PausePoints;
  private _ready: ReadyBanner;
  private _compare: HTMLButtonElement;
  private _linked = false;
  private _timeline: Timeline;
  private _history = h('div', {});
  private _panel: HTMLElement | null = null;
  private _views = new Map<number, StepView>();
  private _kinds = new Map<IStep, CalmKind>();
  private _shownArtifacts = new Map<string, { sha256: string; node: HTMLElement }>();
  private _dirtySteps = new Set<IStep>();
  private _dirty: IChange = {};
  private _frame = 0;
  private _live: boolean;
  private _away: Away = null;
  private _shown = 0;
  private _clock: number | undefined;
  private _follows = true;
  private _scrollHeight = 0;
  private _context: IStepContext;

  constructor(
    private _host: IHost,
    options: IViewOptions = {}
  ) {
    this._live = options.live ?? false;
    const { trans } = _host;
    const show = (number: number) => this._goTo(this._views.get(number));
    this._cause = new Cause(this.trajectory, _host, { goTo: show, filter: path => this._bar.setPath(path) });
    this._context = {
      host: _host,
      root: () => this.trajectory.sandbox?.root ?? '',
      settings: () => this.trajectory.start?.settings ?? {},
      cause: this._cause,
      live: () => this._live,
      running: step => this._live && !this.trajectory.finish && step === this.trajectory.steps.slice(-1)[0],
      outside: () => !!this.trajectory.start?.model.startsWith(OUTSIDE_AGENT),
      fillActions: (place, step) =>
        fillStepActions(place, step, _host, (action, one) => this._act(action, one), this.trajectory)
    };
    this._ready = new ReadyBanner(this.trajectory, _host);
    this._compare = makeButton('', () => this._compareAttempts(), { hidden: true });
    this._compare.textContent = trans('Compare attempts');
    this._header = new Header(this.trajectory, _host);
    this._outcome = new Outcome(this.trajectory, _host, path => this._showFile(path), this._cause);
    this._doubts = new Doubts(this.trajectory, _host, show);
    this._facts = new Facts(this.trajectory, _host, show, this._cause.facts.node);
    this._stops = new PausePoints(this.trajectory, _host);
    this._timeline = new Timeline(
      this.trajectory,
      _host,
      chosen => this._choose(chosen),
      step => this._cause.warns(step)
    );
    this._bar = new Bar(_host, {
      filter: () => this._filter(),
      anyOpen: () => this._anyOpen(),
      foldAll: folded => {
        this._list.openCalm(!folded);
        this._views.forEach(view => view.fold(folded));
      },
      nextProblem: () => this.nextProblem(),
      anyProblem: () => this._problems().length > 0,
      nextFound: () => this._goToNext(this._inSight())
    });
    this._artifacts.setAttribute('aria-label', trans('Files it made, in full'));
    this._artifacts.hidden = true;
    this.node = h(
      'article',
      { class: 'lsn-view', 'aria-label': trans('Trajectory'), tabindex: 0 },
      this._header.node,
      this._ready.node,
      this._outcome.node,
      this._doubts.node,
      this._facts.node,
      this._cause.facts.list,
      this._sticky,
      this._history,
      this._list.node,
      this._stops.node,
      this._artifacts
    );
    this._bar.node.append(this._timeline.legend);
    this._header.actions.prepend(this._compare);
    this._sticky.append(this._timeline.node, this._bar.node);
    this._stickyObserver = new ResizeObserver(() => this._measureSticky());
    this._stickyObserver.observe(this._sticky);
    if (options.capped) {
      this.node.classList.add('lsn-capped');
      this.node.addEventListener('scroll', () => this._scrolled(), { passive: true });
    }
    this.node.addEventListener('keydown', event => this._key(event));
    window.addEventListener('hashchange', this._addressChanged);
    this._header.update(this._live, null);
    this._updateControls();
  }

  /** The place for a host's buttons for the whole run. */
  get actions(): HTMLElement {
    return this._header.actions;
  }

  /** Add events; their changes are drawn with the next frame. */
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

  setLive(live: boolean): void {
    this._live = live;
    this._views.forEach(view => view.near && view.update());
    this._dirty.header = true;
    this._schedule();
  }

  /** Show that the server or the kernel is away; null once it is back. */
  setAway(away: Away): void {
    this._away = away;
    this._dirty.header = true;
    this._schedule();
  }

  /** Update the buttons after a change of the host's services. */
  offersChanged(): void {
    this._views.forEach(view => view.refillActions());
    this._dirty.header = true;
    this._schedule();
  }

  /** Draw now the changes that wait for the next frame. */
  flush(): void {
    cancelAnimationFrame(this._frame);
    this._frame = 0;
    const focused = this.node.contains(document.activeElement);
    const steps = [...this._dirtySteps];
    const { header, artifacts } = this._dirty;
    this._dirtySteps.clear();
    this._dirty = {};
    const follows = steps.length <= FOLLOWED_STEPS;
    const before = this._views.size;
    steps.forEach(step => this._drawStep(step, follows));
    this._foldCalm(steps);
    this._facts.touch(steps);
    this._suggest(steps, before);
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
      this._outcome.update();
      this._bar.node.hidden = this._views.size < 2;
      this._bar.update();
      this._updateControls();
    }
    if (header || artifacts || steps.length) {
      this._doubts.update();
      this._facts.update();
      this._cause.update();
    }
    if (focused && !this.node.contains(document.activeElement)) {
      this.node.focus({ preventScroll: true }); // the focused element is gone, such as a call that was decided
    }
    this._runClock();
    this._follow();
    this._followLink();
  }

  /** Follow the page's address again, because a link was opened in this page. */
  private _addressChanged = (): void => {
    this._linked = false;
    this._followLink();
  };

  /** Go to the step to which the page's address leads, if it is a step of this run. */
  private _followLink(): void {
    const step = this._linked ? null : linkedStep(this.trajectory.start?.run_id ?? '');
    const view = step === null ? undefined : this._views.get(step);
    if (view) {
      this._linked = true;
      this._goTo(view);
    }
  }

  /** Go to the next step that failed or has a warning, after the current step, and open it. */
  nextProblem(): void {
    this._goToNext(this._problems());
  }

  private _problems(): StepView[] {
    return this._inSight().filter(view => view.failed || this._cause.warns(view.step));
  }

  /** Return the steps whose lines are neither filtered out nor folded. */
  private _inSight(): StepView[] {
    const filtered = this._list.node.classList.contains('lsn-filtered');
    return [...this._views.values()].filter(view => !view.node.hidden && (filtered || !view.folded));
  }

  private _goToNext(views: StepView[]): void {
    const current = this._list.node.querySelector<HTMLElement>('.lsn-current');
    const number = Number(current?.dataset.step ?? 0);
    this._goTo(views.find(view => view.step.number > number) ?? views[0]);
  }

  /** Go `by` steps on from the current step, or back if negative. If `alone` is true, fold all other steps. */
  goOn(by: number, alone = false): void {
    const views = this._inSight();
    const at = views.findIndex(view => view.node.classList.contains('lsn-current'));
    const from = at < 0 && by > 0 ? -1 : Math.max(at, 0);
    const view = views[Math.max(0, Math.min(views.length - 1, from + by))];
    if (alone) {
      views.filter(one => one !== view).forEach(one => one.fold(true));
      view?.fold(false);
    }
    this._goTo(view);
    view?.node.querySelector<HTMLElement>('button')?.focus({ preventScroll: true });
  }

  /** Measure the timeline's height, so that a step to which the view scrolls stops below the timeline. */
  private _measureSticky(): void {
    this.node.style.setProperty('--lsn-sticky-height', `${this._sticky.offsetHeight}px`);
  }

  /** Open a step and scroll to it. */
  private _goTo(view: StepView | undefined): void {
    if (view) {
      this._list.catchUp();
      this._list.node.querySelector('.lsn-current')?.classList.remove('lsn-current');
      view.node.classList.add('lsn-current');
      this._list.unfold(view);
      view.reveal();
      this._measureSticky();
      view.node.scrollIntoView({ block: 'start' });
    }
  }

  /** Scroll to a file that the run made. */
  private _showFile(path: string): void {
    const node = this._shownArtifacts.get(path)?.node;
    node?.scrollIntoView({ block: 'start' });
    node?.focus({ preventScroll: true });
  }

  /** Show the step of a chosen bar of the timeline, and the actions on this step. */
  private _choose(chosen: IChosen | null): void {
    this._showHistory(chosen);
    if (chosen?.head) {
      this._goTo(this._views.get(chosen.number));
    }
  }

  /** Open important steps: the first failed, decided and running ones, and in a short run all failed and small ones. */
  private _suggest(changed: IStep[], before: number): void {
    const { steps, finish } = this.trajectory;
    const live = this._live && !finish;
    const long = steps.length > SHORT_RUN_STEPS;
    const newest = steps.slice(live ? -NEWEST_STEPS : -1);
    const all = long !== before > SHORT_RUN_STEPS;
    const affected = all ? steps : new Set([...changed, ...steps.slice(-NEWEST_STEPS - FOLLOWED_STEPS - 1)]);
    for (const step of affected) {
      const view = this._views.get(step.number);
      const looked = view?.decided || (live && newest.includes(step)) || step.number === this._facts.firstError;
      view?.suggest(looked || (!long && (view.failed || view.small || newest.includes(step))));
    }
  }

  /** Show on the newest step how long its call has been running. */
  private _runClock(): void {
    const { steps, finish } = this.trajectory;
    const last = steps.length ? this._views.get(steps[steps.length - 1].number) : undefined;
    const runs = this._live && !finish;
    last?.setLive(runs);
    if (!runs) {
      window.clearInterval(this._clock);
      this._clock = undefined;
    } else {
      this._clock ??= window.setInterval(() => {
        const newest = this.trajectory.steps[this.trajectory.steps.length - 1];
        if (newest && !document.hidden) {
          this._views.get(newest.number)?.tick();
        }
      }, 1000);
    }
  }

  /** Keep a reader who is at the end of a live run there. When the run ends, scroll to the outcome. */
  private _follow(): void {
    if (this._follows && this.node.classList.contains('lsn-capped')) {
      this.node.scrollTop = this._live && !this.trajectory.finish ? this.node.scrollHeight : 0;
      this._follows = this._live && !this.trajectory.finish;
    }
  }

  private _scrolled(): void {
    const { scrollTop, clientHeight, scrollHeight } = this.node;
    if (scrollHeight !== this._scrollHeight) {
      this._scrollHeight = scrollHeight; // a drawing has scrolled the view, not the reader
      this._follow();
      return;
    }
    this._follows = this._live && !this.trajectory.finish && scrollTop + clientHeight > scrollHeight - 40;
  }

  dispose(): void {
    cancelAnimationFrame(this._frame);
    window.clearInterval(this._clock);
    this._stickyObserver.disconnect();
    window.removeEventListener('hashchange', this._addressChanged);
    this._stops.dispose();
    this._list.dispose();
    this.node.remove();
  }

  private _schedule(): void {
    if (!this._frame) {
      this._frame = requestAnimationFrame(() => this.flush());
    }
  }

  /** Remove what is shown of the earlier branch, because the run is on another one. */
  private _leaveBranch(): void {
    this._list.clear();
    this._views.clear();
    this._dirtySteps = new Set(this.trajectory.steps);
    this._facts.reset();
    this._cause.reset();
    this._kinds.clear();
    this._shown = 0;
    this._timeline.reset();
    this._history.replaceChildren();
  }

  /** Execute the action of a button in a step's line. */
  private _act(action: StepAction, step: IStep): void {
    this._showHistory({ trajectory: this.trajectory, number: step.number, head: true }, action);
    this._panel?.focus({ preventScroll: true });
    this._panel?.scrollIntoView({ block: 'nearest' });
  }

  /** Show the newest earlier attempt next to this one, or close the comparison. */
  private _compareAttempts(): void {
    const left = this.trajectory.branches.filter(branch => !branch.head);
    const tip = left[left.length - 1]?.tip;
    const other = tip === undefined ? null : this.trajectory.at(tip);
    const open = this._history.querySelector('.lsn-compare-view');
    this._history.replaceChildren(...(other && !open ? [renderComparison(other, this.trajectory, this._host)] : []));
    this._compare.setAttribute('aria-expanded', String(!!other && !open));
    this._history.scrollIntoView({ block: 'nearest' });
  }

  /** Show the history of a chosen step below its line, or remove it. */
  private _showHistory(chosen: IChosen | null, action: StepAction | null = null): void {
    const close = () => {
      const line = this._panel?.closest('.lsn-step')?.querySelector<HTMLElement>('.lsn-step-head');
      this._panel?.remove();
      this._timeline.unchoose();
      line?.focus({ preventScroll: true });
    };
    const told = (text: string) => this._history.replaceChildren(h('pre', { class: 'lsn-told', role: 'status' }, text));
    const rewound = () => this._ready.bring();
    const actions = { told, rewound, close };
    const panel = chosen && new HistoryPanel(chosen, this.trajectory, this._host, actions, action);
    const place = chosen?.head ? this._views.get(chosen.number)?.node : undefined;
    this._history.replaceChildren();
    this._panel?.remove();
    this._panel = panel?.node ?? null;
    (place ?? this._history).append(...(panel ? [panel.node] : []));
    void this._host.refresh?.();
  }

  private _drawStep(step: IStep, follows: boolean): void {
    this._cause.take(step);
    let view = this._views.get(step.number);
    if (view) {
      view.update();
    } else {
      view = new StepView(step, this._context);
      this._views.set(step.number, view);
      view.suggest(follows); // the newest step is open, and drawn before it is in the page
      this._list.append(view, follows);
      this._shown++;
    }
    step.calls.forEach(call => this._bar.addTool(call.tool));
    if (this._bar.active) {
      this._show(view, matches(view, this._bar.filter, this._cause));
    }
  }

  /** Fold calm steps again, because these steps have changed. */
  private _foldCalm(changed: readonly IStep[]): void {
    const { steps, sandbox, finish } = this.trajectory;
    const places = new Set(changed.flatMap(step => [steps.indexOf(step), steps.indexOf(step) + 1]));
    for (const place of places) {
      const step = steps[place];
      if (step) {
        const calm = this._cause.warns(step) ? '' : calmKind(step, steps[place - 1], sandbox?.root ?? '', this._host);
        this._kinds.set(step, calm);
      }
    }
    const doubted = new Set(this.trajectory.doubts.map(doubt => doubt.step));
    const kinds = steps.map(step => (doubted.has(step.number) ? '' : (this._kinds.get(step) ?? '')));
    const groups = calmGroups(kinds, this._live && !finish);
    const calm = groups.map(([from, to]) => calmSteps(kinds[from], steps.slice(from, to), this._host));
    this._list.foldCalm(calm, this._views, this._host);
    const alone = steps.length - calm.reduce((sum, one) => sum + one.steps.length, 0);
    if (alone <= KEPT_LINES) {
      changed.map(step => this._views.get(step.number)!).forEach(view => view.folded || view.keepLine());
    }
  }

  /** Return true if an unfiltered step is open. Check the newest first, because they are open in a live run. */
  private _anyOpen(): boolean {
    const { steps } = this.trajectory;
    for (let at = steps.length - 1; at >= 0; at--) {
      const view = this._views.get(steps[at].number);
      if (view?.open && !view.node.hidden) {
        return true;
      }
    }
    return false;
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
        node.tabIndex = -1;
        this._shownArtifacts.set(path, { sha256: artifact.sha256, node });
        this._artifacts.append(node);
      }
    }
    this._artifacts.querySelectorAll('.lsn-skipped').forEach(node => node.remove());
    this._artifacts.hidden = !artifacts.size && !skipped.length;
    this._artifacts.append(...skipped.map(reason => h('div', { class: 'lsn-note lsn-skipped' }, reason)));
  }

  private _filter(): void {
    const filter = this._bar.filter;
    this._views.forEach(view => {
      const found = matches(view, filter, this._cause);
      this._show(view, found);
      view.setFound(found && !!filter.text);
    });
    this._bar.setCount(this._shown, this._views.size);
    this._list.node.classList.toggle('lsn-filtered', this._bar.active);
  }

  private _updateControls(): void {
    const controls = this._live && !this.trajectory.finish ? this._host.controls : undefined;
    this._stops.update(!!controls);
    this._ready.update(this._live);
    this._compare.hidden = !this.trajectory.rewinds.some(one => one.what !== 'files');
    if (controls && !this._controls) {
      this._controls = new ControlBar(controls, this._host);
      this._outcome.node.before(this._controls.node);
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
      e: () => this.nextProblem(),
      f: () => this._bar.toggleFold(),
      '?': () => showKeys(this.node, this._host.trans, this._host.keys ?? {})
    };
    const action = actions[event.key];
    if (action) {
      event.preventDefault();
      event.stopPropagation();
      action();
    }
  }
}
