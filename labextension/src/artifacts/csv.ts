/** Parser of CSV and TSV (RFC 4180), which stops after the visible part. */

export interface ITable {
  rows: string[][];
  /** Number of characters of the text that were read. */
  read: number;
  /** True if a row has more cells than `columns`. */
  cut: boolean;
}

export interface IBounds {
  rows: number;
  columns: number;
  cell: number;
}

/** Return the first rows of `text`. Cells beyond the limits are skipped and not stored. */
export function parseDelimited(text: string, delimiter: string, bounds: IBounds): ITable {
  const table: ITable = { rows: [], read: 0, cut: false };
  while (table.read < text.length && table.rows.length < bounds.rows) {
    const row = readRow(text, delimiter, bounds, table);
    if (row.length > 1 || row[0] !== '') {
      table.rows.push(row);
    }
  }
  return table;
}

function readRow(text: string, delimiter: string, bounds: IBounds, table: ITable): string[] {
  const row: string[] = [];
  for (;;) {
    const { value, end } = readCell(text, table.read, delimiter, bounds.cell);
    if (row.length < bounds.columns) {
      row.push(value);
    } else {
      table.cut = true;
    }
    table.read = end + 1;
    if (text[end] !== delimiter) {
      if (text[end] === '\r' && text[end + 1] === '\n') {
        table.read++;
      }
      return row;
    }
  }
}

/** Read a cell from `start`; `end` is the place of its delimiter or line end. */
function readCell(text: string, start: number, delimiter: string, limit: number): { value: string; end: number } {
  let end = start;
  let value = '';
  if (text[start] === '"') {
    [value, end] = readQuoted(text, start + 1, limit);
  }
  const rest = end;
  while (end < text.length && text[end] !== delimiter && text[end] !== '\n' && text[end] !== '\r') {
    end++;
  }
  value += text.slice(rest, Math.min(end, rest + limit + 1));
  return { value: value.length > limit ? `${value.slice(0, limit)}…` : value, end };
}

function readQuoted(text: string, start: number, limit: number): [string, number] {
  let value = '';
  for (let from = start; ;) {
    const quote = text.indexOf('"', from);
    const end = quote < 0 ? text.length : quote;
    if (value.length <= limit) {
      value += text.slice(from, Math.min(end, from + limit + 1));
    }
    if (text[end + 1] !== '"' || quote < 0) {
      return [value, Math.min(end + 1, text.length)];
    }
    value += value.length <= limit ? '"' : '';
    from = end + 2;
  }
}

/** Guess the delimiter from the name and the first line. */
export function delimiterOf(path: string, text: string): string {
  if (/\.tsv$/i.test(path)) {
    return '\t';
  }
  const line = text.slice(0, 10_000).split('\n', 1)[0];
  const count = (letter: string) => line.split(letter).length;
  return [',', ';', '\t'].reduce((best, other) => (count(other) > count(best) ? other : best));
}

const NUMBER = /^[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?$/i;
const TYPES: [string, (cell: string) => boolean][] = [
  ['integer', cell => /^[-+]?\d{1,20}$/.test(cell)],
  ['number', cell => cell.length < 60 && NUMBER.test(cell)],
  ['boolean', cell => /^(?:true|false|yes|no)$/i.test(cell)],
  ['date', cell => /^\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d{1,9})?)?(?:Z|[-+]\d{2}:?\d{2})?)?$/.test(cell)]
];

/** Return the common type of a column's cells: integer, number, boolean, date, text or empty. */
export function typeOf(cells: string[]): string {
  const filled = cells.map(cell => cell.trim()).filter(cell => cell && !/^(?:nan|na|null|none)$/i.test(cell));
  if (!filled.length) {
    return 'empty';
  }
  return TYPES.find(([, fits]) => filled.every(fits))?.[0] ?? 'text';
}
