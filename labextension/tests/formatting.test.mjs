import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { load } from './load.mjs';

const { formatCost, formatSize, formatDuration, formatCount, plural, formatShort, formatClock, ...words } =
  await load('formatting');
const table = JSON.parse(readFileSync(new URL('../../tests/data/formatting.json', import.meta.url), 'utf8'));
const rules = {
  cost: cost => formatCost(cost) ?? 'cost unknown',
  spent: given => words.formatSpent(...given),
  size: formatSize,
  duration: formatDuration,
  count: formatCount,
  plural: given => plural(...given),
  short: formatShort,
  clock: formatClock,
  state: given => words.formatState(...given),
  model_failure: kind => words.formatModelFailure(kind),
  call_failure: kind => words.formatCallFailure(kind)
};

test('every rule of the table is tested', () => assert.deepEqual(Object.keys(table).sort(), Object.keys(rules).sort()));

for (const [rule, rows] of Object.entries(table)) {
  test(`${rule}: as in Python`, () => {
    for (const [value, expected] of rows) {
      assert.equal(rules[rule](value), expected, `${rule} of ${value}`);
    }
  });
}
