/** The bar above the steps, with which a reader searches, filters and opens steps, and jumps to problems. */

import { visibleName } from '../artifacts/names';
import { Cause } from './cause';
import { h, makeButton, onEnter, setText } from './dom';
import { IHost } from './host';
import { StepView } from './step';

export interface IFilter {
  text: string;
  tool: string;
  errorsOnly: boolean;
  /** Only steps that changed a file. */
  changesOnly: boolean;
  /** Only steps that touched this file; all steps if empty. */
  path: string;
}

/** Return true for a step that the filter lets through. */
export function matches(view: StepView, filter: IFilter, cause: Cause): boolean {
  return (
    (!filter.errorsOnly || view.failed) &&
    (!(filter.changesOnly || filter.path) || cause.touches(view.step, filter.path)) &&
    (!filter.tool || view.step.calls.some(call => call.tool === filter.tool)) &&
    (!filter.text || view.text.includes(filter.text))
  );
}

export interface IBarActions {
  filter(filter: IFilter): void;
  anyOpen(): boolean;
  foldAll(folded: boolean): void;
  nextProblem(): void;
  anyProblem(): boolean;
  /** Go to the next step that is found. */
  nextFound(): void;
}

export class Bar {
  readonly node: HTMLElement;
  readonly search: HTMLInputElement;
  private _tool: HTMLSelectElement;
  private _errors: HTMLInputElement;
  private _changes: HTMLInputElement;
  private _path = '';
  private _pathChip: HTMLButtonElement;
  private _count = h('span', { class: 'lsn-count', role: 'status' });
  private _tools = new Set<string>();
  private _fold: HTMLButtonElement;
  private _problem: HTMLButtonElement;

  constructor(
    private _host: IHost,
    private _actions: IBarActions
  ) {
    const trans = _host.trans;
    const apply = () => this._actions.filter(this.filter);
    this.search = h('input', {
      type: 'search',
      class: 'lsn-search',
      placeholder: trans('Search steps'),
      'aria-label': trans('Search the steps'),
      oninput: apply
    });
    onEnter(this.search, () => this._actions.nextFound());
    this._tool = h(
      'select',
      { 'aria-label': trans('Tool'), onchange: apply },
      h('option', { value: '' }, trans('all tools'))
    );
    this._errors = h('input', { type: 'checkbox', onchange: apply });
    this._changes = h('input', { type: 'checkbox', onchange: apply });
    this._pathChip = makeButton('', () => this.setPath(''), { class: 'lsn-chip' });
    this._pathChip.hidden = true;
    this._problem = this._button(trans('Next problem'), 'e', () => this._actions.nextProblem());
    this._fold = this._button('', 'f', () => this.toggleFold());
    this._fold.addEventListener('pointerenter', () => this.update());
    this._fold.addEventListener('focus', () => this.update());
    this.node = h(
      'div',
      { class: 'lsn-bar', role: 'toolbar', 'aria-label': trans('Steps') },
      this.search,
      this._tool,
      this._pathChip,
      h('label', {}, this._errors, trans('errors only')),
      h('label', {}, this._changes, trans('changed files')),
      this._problem,
      this._fold,
      this._count
    );
    this.update();
  }

  get filter(): IFilter {
    return {
      text: this.search.value.toLowerCase(),
      tool: this._tool.value,
      errorsOnly: this._errors.checked,
      changesOnly: this._changes.checked,
      path: this._path
    };
  }

  get active(): boolean {
    const { text, tool, errorsOnly, changesOnly, path } = this.filter;
    return !!text || !!tool || errorsOnly || changesOnly || !!path;
  }

  /** Show only the steps that touched the file `path`, or all steps if `path` is empty. */
  setPath(path: string): void {
    this._path = path;
    this._pathChip.hidden = !path;
    this._pathChip.textContent = path ? this._host.trans('%1 ×', visibleName(path)) : '';
    this._pathChip.setAttribute(
      'aria-label',
      this._host.trans('Show all steps again, not only those of %1', visibleName(path))
    );
    this._actions.filter(this.filter);
  }

  /** Close all steps if any is open, else open all. */
  toggleFold(): void {
    this._actions.foldAll(this._actions.anyOpen());
    this.update();
  }

  /** Update the buttons for all steps and for the next problem. */
  update(): void {
    const { trans } = this._host;
    this._problem.disabled = !this._actions.anyProblem();
    const label = this._actions.anyOpen() ? trans('Close all') : trans('Open all');
    if (this._fold.textContent !== label) {
      setText(this._fold, label);
      this._fold.title = `${label} (f)`;
    }
  }

  /** Add a used tool to the choices of the filter. */
  addTool(tool: string): void {
    if (!this._tools.has(tool)) {
      this._tools.add(tool);
      this._tool.append(h('option', { value: tool }, tool));
    }
  }

  /** Show the number of steps that are shown. */
  setCount(shown: number, all: number): void {
    this._count.textContent = shown === all ? '' : this._host.trans('%1 of %2 steps', shown, all);
  }

  private _button(label: string, key: string, action: () => void): HTMLButtonElement {
    return makeButton(label, action, { 'aria-keyshortcuts': key, title: `${label} (${key})` });
  }
}
