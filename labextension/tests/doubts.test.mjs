// Doubts in one line under the answer: those so far, those of the end, and a link to each step. No record can break it.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { lsn, place } from './dom.mjs';
import { load } from './load.mjs';
import { bundle, event, started, step } from './runs.mjs';

const { Trajectory } = await load('trajectory/fold');
const { doubtLine } = await load('view/doubts');

const doubt = (number, text, more = {}) => ({
  rule: 'data lost',
  step: number,
  until: null,
  text,
  severity: 'high',
  ...more
});
const found = (doubts, final = false) => event('doubts', { doubts, final });
const finished = () =>
  event('run.finished', {
    ...{ stop_reason: 'submitted', answer: 'x', error: null, steps: 2, wall_time: 1 },
    usage: { prompt_tokens: 0, completion_tokens: 0, cached_tokens: 0, reasoning_tokens: 0, cost: null }
  });

test('a line has its step, or the first and the last', () => {
  assert.equal(doubtLine(doubt(31, 'work.csv lost 161 lines')), '31: work.csv lost 161 lines');
  assert.equal(doubtLine(doubt(2, 'same command', { until: 30 })), '2-30: same command');
  assert.equal(doubtLine(doubt(null, 'of the whole')), 'of the whole');
});

test('those so far count until all are there; what goes on from there keeps them', () => {
  const run = new Trajectory();
  [started('t'), ...step(1), found([doubt(1, 'a')]), ...step(2), found([doubt(1, 'a2'), doubt(2, 'b')])].forEach(one =>
    run.add(one)
  );
  assert.deepEqual(run.doubts.map(doubtLine), ['1: a2', '2: b']);
  const head = run.head;
  run.add(found([doubt(2, 'c')], true));
  run.add(finished());
  assert.deepEqual(run.doubts.map(doubtLine), ['2: c']);
  assert.equal(run.events.filter(one => one.parent === head).length, 0);
  assert.equal(run.branches.length, 1, 'doubts are no branch');
});

test('a click leads to the step; a hostile record is text, and bounded', () => {
  const long = Array.from({ length: 500 }, (_, at) =>
    doubt(at === 0 ? 2 : 7, `<img src=x onerror=1>\u202e${'y'.repeat(9999)}`)
  );
  const { view } = lsn.show(bundle([started('t'), ...step(1), ...step(2), found(long, true), finished()]));
  view.flush();
  const node = place.querySelector('.lsn-doubts');
  assert.equal(node.hidden, false);
  assert.equal(node.querySelectorAll('img').length, 0);
  assert.equal(node.querySelectorAll('.lsn-doubt').length, 20);
  assert.ok(node.textContent.length < 20 * 320);
  assert.ok(!node.textContent.includes('\u202e'));
  const links = node.querySelectorAll('button');
  assert.equal(links.length, 1, 'a step that is not there has no link');
  links[0].click();
  assert.equal(place.querySelector('.lsn-current').dataset.step, '2');
});

test('a run without doubts has no line', () => {
  const { view } = lsn.show(bundle([started('t'), ...step(1), finished()]));
  view.flush();
  assert.equal(place.querySelector('.lsn-doubts').hidden, true);
});
