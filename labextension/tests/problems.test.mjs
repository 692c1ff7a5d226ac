// Ways to what a reader looks for: the next problem, when there is one, and the files that have no picture.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { lsn, place, within } from './dom.mjs';
import { bundle, event, started, step } from './runs.mjs';

const next = () => within(place).getByRole('button', { name: 'Next problem' });

test('without a problem there is none to go to', () => {
  lsn.show(bundle([started('x'), ...step(1), ...step(2)]));
  assert.equal(next().disabled, true);
  const failing = step(3);
  Object.assign(failing.at(-1), { exit_code: 1 });
  lsn.show(bundle([started('x'), ...step(1), ...step(2), ...failing]));
  assert.equal(next().disabled, false);
});

test('what has no picture is led to', () => {
  const seen = [];
  Object.assign(window.Element.prototype, {
    scrollIntoView() {
      seen.push(this.textContent);
    }
  });
  const files = Array.from({ length: 14 }, (_, at) =>
    event('artifact', { path: `f${at}.txt`, mime: 'text/plain', size: 1, sha256: String(at), step: 1 })
  );
  lsn.show(bundle([started('x'), ...step(1), ...files]));
  within(place).getByRole('button', { name: 'and 2 more' }).click();
  assert.match(seen.at(-1), /f12\.txt/);
});
