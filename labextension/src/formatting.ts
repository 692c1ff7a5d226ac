/** Prices, sizes, durations and counts as people read them, by the rules of `llm_sandbox_nb/formatting.py`. */

import { CALL_FAILURES, MODEL_FAILURES, STATES } from './generated/words';

/** Return US dollars as text, with four decimals below one dollar. Null means an unknown price. */
export function formatCost(cost: number | null): string | null {
  if (cost === null || !Number.isFinite(cost)) {
    return null;
  }
  if (cost > 0 && cost < 0.0001) {
    return 'under $0.0001';
  }
  return `$${decimal(cost, cost > 0 && cost < 1 ? 4 : 2)}`;
}

/** Return the US dollars spent and the budget, both rounded to cents if cents are precise enough. */
export function formatSpent(cost: number | null, budget: number | null, trans: Trans = asWritten): string {
  const known = formatCost(cost) ?? trans('cost unknown');
  if (budget === null) {
    return known;
  }
  return cost === null || !Number.isFinite(cost)
    ? trans('%1, budget %2', known, cents(budget))
    : trans('%1 of %2', cents(cost), cents(budget));
}

function cents(dollars: number): string {
  return dollars > 0 && dollars < 0.01 ? formatCost(dollars)! : `$${decimal(dollars, 2)}`;
}

/** Return a number of bytes as text; 1 KB is 1024 bytes. */
export function formatSize(size: number): string {
  if (size < 1024) {
    return `${size} B`;
  }
  const units = ['KB', 'MB', 'GB', 'TB'];
  let value = size / 1024;
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit++;
  }
  return `${decimal(value, 1)} ${units[unit]}`;
}

/** Return a duration in at most two units: `3.2 s`, `45 s`, `2 min 5 s`, `1 h 30 min`. */
export function formatDuration(seconds: number): string {
  if (!Number.isFinite(seconds)) {
    return 'unknown time';
  }
  if (seconds < 9.95) {
    return `${decimal(Math.max(0, seconds), 1)} s`;
  }
  const whole = Math.round(seconds);
  if (whole < 60) {
    return `${whole} s`;
  }
  if (whole < 3600) {
    return two(Math.floor(whole / 60), 'min', whole % 60, 's');
  }
  const minutes = Math.round(seconds / 60);
  return two(Math.floor(minutes / 60), 'h', minutes % 60, 'min');
}

/** Made once, because `toLocaleString` makes a formatter for each call. */
const COUNT = new Intl.NumberFormat('en-US');

/** Return a whole number with separators of thousands. */
export function formatCount(count: number): string {
  return COUNT.format(count);
}

/** Return `count` with its noun, `noun` for 1 and `nouns` otherwise. The caller translates both. */
export function plural(count: number, noun: string, nouns: string): string {
  return `${formatCount(count)} ${count === 1 ? noun : nouns}`;
}

/** Return a number of tokens in few characters: thousands as `0.7k`, millions as `2.5M`. */
export function formatShort(count: number): string {
  if (count < 100) {
    return String(count);
  }
  return count < 999_950 ? `${decimal(count / 1000, 1)}k` : `${decimal(count / 1_000_000, 1)}M`;
}

/** Return seconds as a clock shows them: `1:05`, or `2:01:05` with hours. */
export function formatClock(seconds: number): string {
  const whole = Math.max(0, Math.floor(seconds));
  const [minutes, rest] = [Math.floor(whole / 60) % 60, String(whole % 60).padStart(2, '0')];
  return whole < 3600
    ? `${minutes}:${rest}`
    : `${Math.floor(whole / 3600)}:${String(minutes).padStart(2, '0')}:${rest}`;
}

/** Function that translates a text. `%1`, `%2`... stand for the arguments. */
export type Trans = (text: string, ...args: (string | number)[]) => string;

/** Put the arguments into a text without translating it. */
export const asWritten: Trans = (text, ...args) =>
  text.replace(/%(\d)/g, (whole, place) => String(args[Number(place) - 1] ?? whole));

/**
 * Return the state of a run, or the reason of its end, in words. `detail` is the limit that was reached, the failure of
 * the model, or the number of the step.
 */
export function formatState(state: string, detail: string | number = '', trans = asWritten): string {
  const [alone, together] = STATES.get(state) ?? ['', ''];
  if (detail !== '' && together) {
    return trans(together, detail);
  }
  return alone ? trans(alone) : words(state);
}

/** Return the reason of a failed request in a few words; empty for an unknown kind. */
export function formatModelFailure(kind: string, trans = asWritten): string {
  const found = MODEL_FAILURES.get(kind);
  return found ? trans(found) : '';
}

/** Return the reason of a failed tool call in a few words. */
export function formatCallFailure(kind: string, trans = asWritten): string {
  const found = CALL_FAILURES.get(kind);
  return found ? trans(found) : words(kind);
}

function words(name: string): string {
  return (name.slice(0, 1).toUpperCase() + name.slice(1)).replaceAll('_', ' ');
}

function two(large: number, largeUnit: string, small: number, smallUnit: string): string {
  return small ? `${large} ${largeUnit} ${small} ${smallUnit}` : `${large} ${largeUnit}`;
}

const DECIMALS = new Map(
  [1, 2, 4].map(digits => [
    digits,
    new Intl.NumberFormat('en-US', { minimumFractionDigits: digits, maximumFractionDigits: digits })
  ])
);

function decimal(value: number, digits: 1 | 2 | 4): string {
  const scale = 10 ** digits;
  return DECIMALS.get(digits)!.format(Math.round(value * scale) / scale);
}
