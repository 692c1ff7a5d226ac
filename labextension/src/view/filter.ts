/** Searching, filtering, folding and jumping: the bar above the steps. */

import { h } from './dom';
import { IHost } from './host';
import { StepView } from './step';

export interface IFilter {
  text: string;
  tool: string;
  errorsOnly: boolean;
}

/** Whether a step is to be shown. */
export function matches(view: StepView, filter: IFilter): boolean {
  return (
    (!filter.errorsOnly || view.failed) &&
    (!filter.tool || view.step.calls.some(call => call.tool === filter.tool)) &&
    (!filter.text || view.text.includes(filter.text))
  );
}

export interface IBarActions {
  filter(filter: IFilter): void;
  foldAll(folded: boolean): void;
  nextError(): void;
}

export class Bar {
  readonly node: HTMLElement;
  readonly search: HTMLInputElement;
  private _tool: HTMLSelectElement;
  private _errors: HTMLInputElement;
  private _count = h('span', { class: 'lsn-count', role: 'status' });
  private _tools = new Set<string>();
  private _folded = false;

  constructor(
    private _host: IHost,
    private _actions: IBarActions
  ) {
    const trans = _host.trans;
    const apply = () => this._actions.filter(this.filter);
    this.search = h('input', {
      type: 'search',
      class: 'lsn-search',
      placeholder: trans('Search the steps'),
      'aria-label': trans('Search the steps'),
      oninput: apply
    });
    this._tool = h(
      'select',
      { 'aria-label': trans('Tool'), onchange: apply },
      h('option', { value: '' }, trans('all tools'))
    );
    this._errors = h('input', { type: 'checkbox', onchange: apply });
    this.node = h(
      'div',
      { class: 'lsn-bar', role: 'toolbar', 'aria-label': trans('Steps') },
      this.search,
      this._tool,
      h('label', {}, this._errors, trans('errors only')),
      this._button(trans('Next error'), 'e', () => this._actions.nextError()),
      this._button(trans('Fold all'), 'f', () => this.toggleFold()),
      this._count
    );
  }

  get filter(): IFilter {
    return {
      text: this.search.value.toLowerCase(),
      tool: this._tool.value,
      errorsOnly: this._errors.checked
    };
  }

  get active(): boolean {
    const { text, tool, errorsOnly } = this.filter;
    return !!text || !!tool || errorsOnly;
  }

  /** Fold all steps, or unfold them. */
  toggleFold(): void {
    this._folded = !this._folded;
    this._actions.foldAll(this._folded);
  }

  /** A tool has been used: it can be filtered by. */
  addTool(tool: string): void {
    if (!this._tools.has(tool)) {
      this._tools.add(tool);
      this._tool.append(h('option', { value: tool }, tool));
    }
  }

  /** Say how many steps are shown. */
  setCount(shown: number, all: number): void {
    this._count.textContent = shown === all ? '' : this._host.trans('%1 of %2 steps', shown, all);
  }

  private _button(label: string, key: string, action: () => void): HTMLElement {
    return h(
      'button',
      { type: 'button', 'aria-keyshortcuts': key, title: `${label} (${key})`, onclick: action },
      label
    );
  }
}
