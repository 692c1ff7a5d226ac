/** The arguments of a call as a person edits them: texts as they are, everything else as JSON. */

import { h } from './dom';
import { IHost } from './host';

const ROWS_MOST = 14;

export class ArgumentsEditor {
  readonly node = h('div', { class: 'lsn-arguments' });
  private _fields = new Map<string, { area: HTMLTextAreaElement; value: unknown; before: string }>();

  constructor(
    values: Record<string, unknown>,
    private _host: IHost,
    changed: () => void
  ) {
    for (const [name, value] of Object.entries(values)) {
      const text = typeof value === 'string';
      const before = text ? value : JSON.stringify(value, null, 2);
      const area = editArea(before, _host.trans('Argument %1', name));
      area.addEventListener('input', changed);
      this._fields.set(name, { area, value, before: area.value });
      this.node.append(h('label', {}, h('code', {}, name), area));
    }
  }

  /** True if an argument differs from the proposal. */
  get edited(): boolean {
    return [...this._fields.values()].some(({ area, before }) => area.value !== before);
  }

  /** The arguments as they are now. Throws if an argument must be JSON and is not. */
  get values(): Record<string, unknown> {
    const before = new Map([...this._fields].map(([name, { value }]) => [name, value]));
    return { ...Object.fromEntries<unknown>(before), ...this.changes };
  }

  /**
   * The edited arguments. Throws like `values`. The others are better not sent: JavaScript rounds integers above 2^53,
   * and a text field normalises line ends.
   */
  get changes(): Record<string, unknown> {
    const edited = [...this._fields].filter(([, { area, before }]) => area.value !== before);
    const parsed = new Map<string, unknown>();
    for (const [name, { area, value }] of edited) {
      parsed.set(name, typeof value === 'string' ? area.value : this._parse(name, area.value));
    }
    return Object.fromEntries(parsed);
  }

  /** Put the cursor into the first field. */
  focus(): void {
    [...this._fields.values()][0]?.area.focus();
  }

  private _parse(name: string, text: string): unknown {
    try {
      return JSON.parse(text);
    } catch {
      throw new Error(this._host.trans('%1 has to be JSON: a number, true, false, null, "text" or [1, 2].', name));
    }
  }
}

/** Return a field for text of several lines, in which the page's shortcuts do nothing. */
export function editArea(text: string, label: string): HTMLTextAreaElement {
  const area = h('textarea', {
    'aria-label': label,
    spellcheck: 'false',
    rows: Math.min(ROWS_MOST, Math.max(1, text.split('\n').length)),
    'data-lm-suppress-shortcuts': 'true'
  });
  area.value = text;
  return area;
}
