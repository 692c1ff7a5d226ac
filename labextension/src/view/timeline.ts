/**
 * The timeline: a picture as wide as the view, with a bar for every step, lanes below for earlier attempts, and links
 * to forks. A new step costs only one more bar, because the picture is scaled as a whole.
 */

import { oneLine } from './one-line';
import { headline, toolOf } from './call-summary';
import { h, plainText, setText } from './dom';
import { Trajectory } from '../trajectory/fold';
import type { IStep } from '../trajectory/fold';
import { formatDuration, formatShort } from '../formatting';
import { IHost } from './host';
import { newTokens, stepDecided, stepFailed, stepSeconds, stepTokens } from './step-line';

/** Maximum numbers of shown attempts and forks. A journal may claim any number. */
const LANES_MOST = 8;
const FORKS_MOST = 20;
/** Widths and heights in units of the picture. */
const BAR = 10;
const GAP = 2;
const HEIGHT = 40;
const LANE = 16;
/** Minimum number of bars for which there is room, so that two bars do not fill the width. */
const SLOTS = 9;
/** A run with more than `LONG` bars has room for up to `SPARE` more, so that most new bars do not change the width. */
const LONG = 200;
const SPARE = 16;
const LOWEST = 0.12;
/** Kinds that the legend explains, each from the first bar with its colour on. */
const KINDS = ['bash', 'edit', 'submit', 'failed', 'warn', 'human'] as const;

/** A chosen step, of the branch of HEAD or of an earlier attempt. */
export interface IChosen {
  trajectory: Trajectory;
  /** Number of the step; 0 means before the first step. */
  number: number;
  head: boolean;
}

interface IBar {
  node: SVGRectElement;
  chosen: IChosen;
  step: IStep | null;
  lane: number;
  value: number;
}

let pictures = 0;

export class Timeline {
  readonly node: HTMLElement;
  /** The meaning of the colours, or the step under the pointer. It is in one line with the search. */
  readonly legend: HTMLElement;
  private _picture = svg('svg', { class: 'lsn-bars', role: 'listbox', tabindex: '0', preserveAspectRatio: 'none' });
  private _head = svg('g', { role: 'group' });
  private _lanes = svg('g', { role: 'presentation' });
  private _forks = h('div', { class: 'lsn-forks' });
  private _told = h('span', { class: 'lsn-told-bar', 'aria-hidden': 'true' });
  private _legend = h('span', { class: 'lsn-legend' });
  private _words = new Map<string, HTMLElement>();
  private _measure: HTMLSelectElement;
  private _bars: IBar[] = [];
  private _byStep = new Map<IStep, IBar>();
  private _byNode = new Map<Element, IBar>();
  private _rows = 0;
  private _count = 0;
  private _laneCount = 0;
  private _largest = 0;
  private _size = '';
  private _chosen: IBar | null = null;
  private _id = `lsn-bars-${++pictures}`;

  constructor(
    private _trajectory: Trajectory,
    private _host: IHost,
    private _choose: (chosen: IChosen | null) => void,
    private _warns: (step: IStep) => boolean
  ) {
    const { trans } = _host;
    this._picture.setAttribute('aria-label', trans('Steps; arrows move, Enter goes to the step'));
    this._head.setAttribute('aria-label', trans('Steps of this attempt'));
    this._picture.append(this._head, this._lanes);
    this._measure = h(
      'select',
      { 'aria-label': trans('Height of the bars'), onchange: () => this._measureAnew() },
      h('option', { value: 'tokens' }, trans('new tokens')),
      h('option', { value: 'time' }, trans('time'))
    );
    for (const kind of KINDS) {
      const word = h('span', { 'data-kind': kind }, legendWord(kind, _host));
      word.hidden = true;
      this._words.set(kind, word);
    }
    this._legend.append(...this._words.values());
    this.node = h(
      'nav',
      { class: 'lsn-timeline', 'aria-label': trans('Timeline') },
      h('div', { class: 'lsn-timeline-name' }, trans('Timeline'), this._measure),
      h('div', { class: 'lsn-bars-place' }, this._picture, this._forks)
    );
    this.legend = h('div', { class: 'lsn-timeline-side' }, this._told, this._legend);
    this.node.hidden = true;
    this._picture.addEventListener('click', event => this._click(event));
    this._picture.addEventListener('keydown', event => this._key(event));
    this._picture.addEventListener('pointermove', event => this._point(this._at(event)));
    this._picture.addEventListener('pointerleave', () => this._point(null));
    this._picture.addEventListener('focus', () => this._point(this._chosen ?? this._bars[0] ?? null));
    this._picture.addEventListener('blur', () => this._point(null));
  }

  /** Remove everything, because the run is on another branch. The next update draws it again. */
  reset(): void {
    this._bars = [];
    this._byStep.clear();
    this._byNode.clear();
    this._head.replaceChildren();
    this._lanes.replaceChildren();
    this._chosen = null;
    this._count = 0;
    this._largest = 0;
    this._rows = -1;
    this._words.forEach(word => (word.hidden = true));
  }

  /** Show the present state of these steps. */
  touch(steps: Iterable<IStep>): void {
    const touched: IBar[] = [];
    for (const step of steps) {
      const bar = this._byStep.get(step) ?? this._addBar(step);
      bar.value = this._value(step, this._trajectory);
      this._describe(bar);
      touched.push(bar);
    }
    if (touched.length) {
      this._scale(touched);
      this._resize();
    }
  }

  /** Show attempts and forks, if there are new ones. */
  update(): void {
    const { rewinds, forks, steps, start, checkpoints } = this._trajectory;
    if (checkpoints.has(0) && this._bars[0]?.chosen.number !== 0) {
      this._addStart();
    }
    const rows = rewinds.length + forks.length + (start?.forked_from ? 1 : 0);
    if (rows !== this._rows) {
      this._rows = rows;
      this._drawLanes();
      this._forks.replaceChildren(...this._drawForks());
    }
    this._resize();
    this.node.hidden = steps.length < 2 && !rows;
  }

  /** Unmark the chosen step. */
  unchoose(): void {
    this._chosen?.node.setAttribute('aria-selected', 'false');
    this._chosen = null;
  }

  // --- bars ---

  private _addBar(step: IStep): IBar {
    const bar = this._bar({ trajectory: this._trajectory, number: step.number, head: true }, step, 0);
    this._byStep.set(step, bar);
    this._count = Math.max(this._count, step.number);
    this._head.append(bar.node);
    return bar;
  }

  private _addStart(): void {
    const bar = this._bar({ trajectory: this._trajectory, number: 0, head: true }, null, 0);
    this._bars.unshift(this._bars.pop()!);
    bar.node.setAttribute('aria-label', this._host.trans('Before the first step, files kept'));
    bar.node.dataset.kind = 'start';
    this._head.prepend(bar.node);
    this._fit(bar);
  }

  private _bar(chosen: IChosen, step: IStep | null, lane: number): IBar {
    const node = svg('rect', {
      role: 'option',
      'aria-selected': 'false',
      'data-step': String(chosen.number),
      id: `${this._id}-${lane}-${chosen.number}`,
      x: String(chosen.number * BAR + (step ? GAP / 2 : BAR - 2 * GAP)),
      width: String(step ? BAR - GAP : GAP)
    });
    const bar = { node, chosen, step, lane, value: step ? this._value(step, chosen.trajectory) : 0 };
    this._bars.push(bar);
    this._byNode.set(node, bar);
    return bar;
  }

  private _value(step: IStep, { steps }: Trajectory): number {
    // Steps are numbered from 1. If a record lacks some steps, a step is at an earlier place than its number says.
    const at = steps[step.number - 1] === step ? step.number - 1 : steps.indexOf(step);
    return this._measure.value === 'time' ? stepSeconds(step) : newTokens(step, steps[at - 1]);
  }

  /** Fit the heights of these bars. If one is too high, fit all bars to a larger scale, with room for more growth. */
  private _scale(touched: IBar[]): void {
    const largest = Math.max(...touched.map(bar => bar.value));
    const grown = largest > this._largest;
    if (grown) {
      this._largest = touched.length > 1 ? largest : largest * 1.25;
    }
    (grown ? this._bars : touched).forEach(bar => this._fit(bar));
  }

  /** Draw all bars again, because a person chose another measure. */
  private _measureAnew(): void {
    this._bars.forEach(bar => (bar.value = bar.step ? this._value(bar.step, bar.chosen.trajectory) : 0));
    this._largest = 0;
    this._scale(this._bars);
  }

  private _fit({ node, value, lane, step }: IBar): void {
    const room = lane ? LANE - 3 : HEIGHT;
    const share = this._largest ? Math.min(1, value / this._largest) : 0;
    const height = step ? room * (LOWEST + (1 - LOWEST) * share) : room;
    const foot = lane ? HEIGHT + lane * LANE : HEIGHT;
    node.setAttribute('y', (foot - height).toFixed(1));
    node.setAttribute('height', height.toFixed(1));
  }

  private _resize(): void {
    const size = `0 0 ${this._slots * BAR} ${this._height}`;
    if (size !== this._size) {
      this._size = size;
      this._picture.setAttribute('viewBox', size);
      this._picture.style.height = `${this._height + 4}px`;
    }
  }

  /** Number of bars for which the picture has room. */
  private get _slots(): number {
    const needed = Math.max(SLOTS, this._count + 1);
    return needed > LONG ? Math.ceil(needed / SPARE) * SPARE : needed;
  }

  private get _height(): number {
    return HEIGHT + this._laneCount * LANE;
  }

  /** Describe the step of a bar in colours and in words. */
  private _describe({ node, chosen, step }: IBar): void {
    const { trans } = this._host;
    if (!step) {
      return;
    }
    const wrong = stepFailed(step);
    const decided = stepDecided(step);
    const warns = chosen.head && this._warns(step);
    const done = step.replied && step.calls.every(call => call.result);
    node.dataset.kind = wrong
      ? 'failed'
      : decided
        ? 'human'
        : warns
          ? 'warn'
          : !done
            ? 'live'
            : step.calls[0]
              ? toolOf(step.calls[0])
              : 'other';
    const meaning = this._words.get(node.dataset.kind);
    if (meaning) {
      meaning.hidden = false;
    }
    const words = [
      trans('Step %1', step.number),
      wrong && trans('failed'),
      warns && trans('warning'),
      decided && trans('decided by a person'),
      chosen.trajectory.checkpoints.has(step.number) && trans('files kept')
    ];
    node.setAttribute('aria-label', words.filter(word => word).join(', '));
  }

  // --- attempts and forks ---

  private _drawLanes(): void {
    const { trans } = this._host;
    const left = this._trajectory.branches.filter(branch => !branch.head).slice(-LANES_MOST);
    this._laneCount = left.length;
    this._bars = this._bars.filter(bar => bar.lane === 0);
    const groups = left.map(({ tip, step: shared }, index) => {
      const label = trans('Earlier attempt after step %1', shared);
      const group = svg('g', { role: 'group', 'aria-label': label, class: 'lsn-left' });
      const lane = index + 1;
      const [x, foot] = [(shared + 0.5) * BAR, HEIGHT + lane * LANE - 2];
      group.append(
        svg('path', {
          d: `M${x} ${HEIGHT}V${foot}H${x + BAR / 2}`,
          'vector-effect': 'non-scaling-stroke',
          fill: 'none'
        })
      );
      const branch = this._trajectory.at(tip);
      for (const step of branch?.steps ?? []) {
        if (step.number > shared) {
          const bar = this._bar({ trajectory: branch!, number: step.number, head: false }, step, lane);
          this._describe(bar);
          this._fit(bar);
          this._count = Math.max(this._count, step.number);
          group.append(bar.node);
        }
      }
      return group;
    });
    this._lanes.replaceChildren(...groups);
  }

  private _drawForks(): HTMLElement[] {
    const { trans } = this._host;
    const { forks, start } = this._trajectory;
    const rows = forks.slice(-FORKS_MOST).map(fork => this._runRow(trans('Fork of step %1', fork.step), fork.folder));
    if (start?.forked_from) {
      const { step, folder } = start.forked_from;
      rows.unshift(this._runRow(trans('Forked from step %1 of', step), folder));
    }
    const lanes = this._trajectory.branches.length - 1;
    const more = forks.length - Math.min(forks.length, FORKS_MOST) + lanes - Math.min(lanes, LANES_MOST);
    return more > 0 ? [...rows, h('div', { class: 'lsn-note' }, trans('and %1 more', more))] : rows;
  }

  private _runRow(label: string, folder: string): HTMLElement {
    const name = plainText(folder);
    const run = h('a', { class: 'lsn-run-link' }, name);
    run.title = `%sandbox load ${name} -o other`;
    this._host.linkRun?.(run, folder);
    return h('div', { class: 'lsn-fork' }, h('span', { class: 'lsn-note' }, `${label} `), run);
  }

  // --- choosing ---

  private _click(event: MouseEvent): void {
    const bar = this._byNode.get(event.target as Element) ?? this._at(event);
    if (bar) {
      this._select(bar);
    }
  }

  private _select(bar: IBar): void {
    const again = bar === this._chosen;
    this.unchoose();
    if (!again) {
      this._chosen = bar;
      bar.node.setAttribute('aria-selected', 'true');
    }
    this._choose(again ? null : bar.chosen);
  }

  /** Return the bar in whose column and lane the pointer is. */
  private _at(event: MouseEvent): IBar | null {
    const box = this._picture.getBoundingClientRect();
    if (!box.width) {
      return null;
    }
    const number = Math.floor(((event.clientX - box.left) / box.width) * this._slots);
    const y = ((event.clientY - box.top) / box.height) * this._height;
    const lane = Math.max(0, Math.ceil((y - HEIGHT) / LANE));
    return this._bars.find(bar => bar.lane === lane && bar.chosen.number === number) ?? null;
  }

  /** Describe a bar next to the picture, and to a screen reader. */
  private _point(bar: IBar | null): void {
    const { trans } = this._host;
    this._picture.querySelector('[data-active]')?.removeAttribute('data-active');
    this._legend.hidden = !!bar;
    if (!bar) {
      setText(this._told, '');
      return;
    }
    bar.node.dataset.active = '';
    this._picture.setAttribute('aria-activedescendant', bar.node.id);
    const { step } = bar;
    const tokens = step && stepTokens(step);
    const words = step
      ? [
          bar.lane ? trans('Earlier attempt, step %1', step.number) : trans('Step %1', step.number),
          step.calls[0] && oneLine(headline(step.calls[0], ''), 60),
          tokens && formatShort(tokens),
          formatDuration(stepSeconds(step))
        ]
      : [trans('Before the first step')];
    setText(this._told, words.filter(word => word).join(' · '));
  }

  /** Handle keys: left and right move between steps, up and down between attempts. */
  private _key(event: KeyboardEvent): void {
    const active = this._bars.find(bar => bar.node.dataset.active !== undefined) ?? this._chosen ?? this._bars[0];
    if (!active) {
      return;
    }
    const lane = this._bars.filter(bar => bar.lane === active.lane);
    const place = lane.indexOf(active);
    const across = (by: number) =>
      this._bars.find(bar => bar.lane === active.lane + by && bar.chosen.number >= active.chosen.number) ??
      this._bars.filter(bar => bar.lane === active.lane + by).pop();
    const moves: Record<string, () => IBar | undefined> = {
      ArrowLeft: () => lane[place - 1],
      ArrowRight: () => lane[place + 1],
      Home: () => lane[0],
      End: () => lane[lane.length - 1],
      ArrowUp: () => across(-1),
      ArrowDown: () => across(1)
    };
    if (event.key === 'Enter' || event.key === ' ') {
      this._select(active);
    } else if (Object.hasOwn(moves, event.key)) {
      this._point(moves[event.key]() ?? active);
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  }
}

function legendWord(kind: (typeof KINDS)[number], { trans }: IHost): string {
  return {
    bash: trans('command'),
    edit: trans('edit'),
    submit: trans('submit'),
    failed: trans('failed'),
    warn: trans('warning'),
    human: trans('you')
  }[kind];
}

function svg<K extends keyof SVGElementTagNameMap>(
  tag: K,
  attributes: Record<string, string>
): SVGElementTagNameMap[K] {
  const node = document.createElementNS('http://www.w3.org/2000/svg', tag);
  Object.entries(attributes).forEach(([name, value]) => node.setAttribute(name, value));
  return node;
}
