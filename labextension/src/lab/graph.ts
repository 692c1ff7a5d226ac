/** A small graph of a number over the last minutes, with the number beside it. */

import { h } from '../view/dom';

const POINTS = 60;
const WIDTH = 120;
const HEIGHT = 28;
const SVG = 'http://www.w3.org/2000/svg';

export class Graph {
  readonly node: HTMLElement;
  private _values: number[] = [];
  private _line = document.createElementNS(SVG, 'polyline');
  private _area = document.createElementNS(SVG, 'polygon');
  private _number = h('output', { class: 'lsn-graph-number' });

  /** The height of the graph stands for `_floor` or more, so that small changes of small values look small. */
  constructor(
    private _name: string,
    private _floor: number,
    private _words: (value: number) => string
  ) {
    const svg = document.createElementNS(SVG, 'svg');
    svg.setAttribute('viewBox', `0 0 ${WIDTH} ${HEIGHT}`);
    svg.setAttribute('preserveAspectRatio', 'none');
    svg.setAttribute('aria-hidden', 'true');
    svg.append(this._area, this._line);
    this.node = h(
      'div',
      { class: 'lsn-graph', role: 'group', 'aria-label': _name },
      h('span', { class: 'lsn-graph-name' }, _name),
      svg as unknown as Node,
      this._number
    );
  }

  add(value: number): void {
    this._values.push(value);
    if (this._values.length > POINTS) {
      this._values.shift();
    }
    const top = Math.max(this._floor, ...this._values) * 1.1;
    const first = POINTS - this._values.length;
    const x = (index: number) => ((first + index) / (POINTS - 1)) * WIDTH;
    const points = this._values.map((one, index) => `${x(index)},${HEIGHT - (one / top) * (HEIGHT - 2) - 1}`);
    this._line.setAttribute('points', points.join(' '));
    this._area.setAttribute('points', `${x(0)},${HEIGHT} ${points.join(' ')} ${WIDTH},${HEIGHT}`);
    this._number.textContent = this._words(value);
    this.node.title = `${this._name}: ${this._words(value)}`;
  }
}
