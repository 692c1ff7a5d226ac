/** Tables: names and types of the columns, the first rows, and the number of rows left out. */
import { h, plainText } from '../view/dom';
import { formatCount, formatSize } from '../formatting';
import { IHost, ITablePreview } from '../view/host';
import { decode, ILoaded } from './content';
import { delimiterOf, parseDelimited, typeOf } from './csv';

const BOUNDS = { rows: 101, columns: 50, cell: 200 };
const SHOWN_BYTES = 4 * 2 ** 20;

export function renderDelimited(loaded: ILoaded): HTMLElement {
  const { artifact, bytes, host } = loaded;
  const text = decode(bytes, SHOWN_BYTES);
  const { rows, read, cut } = parseDelimited(text, delimiterOf(artifact.path, text), BOUNDS);
  if (!rows.length) {
    return h('p', { class: 'lsn-quiet' }, host.trans('The file is empty.'));
  }
  const [names, ...body] = rows;
  const columns = names.map((name, index) => ({ name, type: typeOf(body.map(row => row[index] ?? '')) }));
  const notes = [];
  if (read < text.length || bytes.length > SHOWN_BYTES) {
    notes.push(host.trans('The first %1 rows; the file has %2.', body.length, formatSize(bytes.length)));
  }
  if (cut) {
    notes.push(host.trans('The first %1 columns.', BOUNDS.columns));
  }
  return tableOf(columns, body, notes, host);
}

/** Show a table in a format that only Python can read, from the rows that Python stored in the bundle. */
export function renderPreview({ preview, host }: ILoaded): HTMLElement {
  if (!preview?.columns || !preview.rows) {
    return h('p', { class: 'lsn-quiet' }, host.trans('A table that cannot be shown here; download it.'));
  }
  const columns = preview.columns.slice(0, BOUNDS.columns);
  const rows = preview.rows.slice(0, BOUNDS.rows).map(row => row.slice(0, BOUNDS.columns));
  const notes = [];
  if (preview.total_rows > rows.length) {
    notes.push(host.trans('The first %1 of %2 rows.', rows.length, formatCount(preview.total_rows)));
  }
  if (preview.columns.length > columns.length) {
    notes.push(host.trans('The first %1 of %2 columns.', columns.length, preview.columns.length));
  }
  return tableOf(columns, rows, notes, host);
}

function tableOf(columns: ITablePreview['columns'], rows: string[][], notes: string[], host: IHost): HTMLElement {
  const numeric = columns.map(({ type }) => /^(?:u?int|integer|number|float|double|decimal)/.test(type));
  const heads = columns.map(({ name, type }) =>
    h('th', { scope: 'col' }, shown(name), h('small', { class: 'lsn-quiet' }, shown(type)))
  );
  const lines = rows.map(row =>
    h('tr', {}, ...columns.map((_, i) => h('td', { class: numeric[i] ? 'lsn-number' : null }, shown(row[i] ?? ''))))
  );
  const table = h('table', { class: 'lsn-table' }, h('thead', {}, h('tr', {}, ...heads)), h('tbody', {}, ...lines));
  const label = host.trans('Table with %1 rows and %2 columns', rows.length, columns.length);
  const place = h('div', { class: 'lsn-table-place', tabindex: 0, role: 'region', 'aria-label': label }, table);
  return h('div', {}, place, notes.length > 0 && h('p', { class: 'lsn-quiet' }, notes.join(' ')));
}

const shown = (cell: unknown) => plainText(String(cell).slice(0, BOUNDS.cell + 1));
