// What the view says of steps under a filter, and while nobody tells it anything.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { fill, lsn, place } from './dom.mjs';
import { bundle, event, started, step } from './runs.mjs';

const target = number => step(number, `I build **target ${number}**: done`);
const ready = event('sandbox.ready', { sandbox_id: 's', protection: {}, start_time: 0, root: '/testbed' });
const badge = () => place.querySelector('.lsn-header .lsn-badge');

function show(count) {
  const events = Array.from({ length: count }, (_, index) => target(index + 1)).flat();
  const { view } = lsn.show(bundle([started('Build everything.'), ready, ...events]));
  view.setLive(true);
  view.flush();
  return view;
}

test('the count follows steps that come under a filter', () => {
  const view = show(8);
  const search = place.querySelector('.lsn-search');
  const count = () => place.querySelector('.lsn-bar .lsn-count').textContent;
  const add = number => {
    view.add(...target(number));
    view.flush();
  };
  fill(search, 'target 9*');
  assert.equal(count(), '0 of 8 steps');
  add(9);
  assert.equal(count(), '1 of 9 steps');
  add(10);
  assert.equal(count(), '1 of 10 steps');
  fill(search, '');
  assert.equal(count(), '');
  assert.equal(place.querySelectorAll('.lsn-step:not([hidden])').length, 10);
});

test('the protection of a resumed run is that of its new sandbox', () => {
  const view = show(1);
  const where = () => place.querySelector('.lsn-sandbox summary').textContent;
  for (const [isolation, network, words, kind, isolates] of [
    ['docker', 'none', 'Docker, no network', 'plain'],
    ['process', 'open', 'No isolation, network: open', 'bad'],
    ['other', 'open', 'No isolation, network: open', 'bad', false],
    ['stronger', 'none', 'stronger, no network', 'plain', true]
  ]) {
    const protection = { isolation, isolates, network, protects: isolation };
    view.add(event('sandbox.ready', { sandbox_id: isolation, protection, start_time: 0, root: '/testbed' }));
    view.flush();
    assert.equal(where(), words);
    assert.equal(place.querySelector('.lsn-sandbox summary').dataset.kind, kind);
    assert.match(place.querySelector('.lsn-protection').textContent, new RegExp(`${isolation}$`));
  }
});

test('who is away is said until it is back', () => {
  const view = show(2);
  for (const [away, words] of [
    ['server', 'The server does not answer'],
    ['kernel', 'The kernel is silent']
  ]) {
    view.setAway(away);
    view.flush();
    assert.deepEqual([badge().textContent, badge().dataset.state], [words, 'away']);
    view.setAway(null);
    view.flush();
    assert.deepEqual([badge().textContent, badge().dataset.state], ['Running · step 2', 'live']);
  }
  view.setAway('server');
  view.setLive(false);
  view.flush();
  assert.equal(badge().textContent, 'Cut off at step 2');
});
