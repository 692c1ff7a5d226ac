/** Numbers as people read them. */

export function sizeInWords(bytes: number): string {
  const units = ['B', 'KB', 'MB', 'GB', 'TB'];
  let value = bytes;
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit++;
  }
  return `${unit ? value.toFixed(1) : value} ${units[unit]}`;
}

export function secondsInWords(seconds: number): string {
  if (seconds < 60) {
    return `${seconds.toFixed(1)} s`;
  }
  const minutes = Math.floor(seconds / 60);
  return minutes < 60
    ? `${minutes} min ${Math.round(seconds % 60)} s`
    : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** Made once: `toLocaleString` makes one for each call. */
const COUNT = new Intl.NumberFormat('en-US');

export function countInWords(count: number): string {
  return COUNT.format(count);
}

/** US dollars; null when the price is not known, which is not zero. */
export function costInWords(cost: number | null): string | null {
  return cost === null ? null : `$${cost.toFixed(cost < 0.1 ? 4 : 2)}`;
}
