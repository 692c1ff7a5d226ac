// Breakpoints of a live run: set at a step and at a pause, listed, switched off; a hostile one stays text.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { lsn, place, until, within } from './dom.mjs';
import { bundle, chained, event, started, step } from './runs.mjs';

const RULE = "tool == 'execute_bash' and 'rm ' in command";
const EVIL = '<img src=x onerror=hit()>';
const changed = breakpoints => event('settings.changed', { source: 'server', halts: { breakpoints } });

function held(command, more = []) {
  const [asked, replied, proposed] = step(1);
  proposed.arguments = { command };
  const waits = event('call.held', { step: 1, call_id: 'call_1', at: 'call', reason: 'approval', text: '' });
  const ready = event('sandbox.ready', { sandbox_id: 's', protection: {}, start_time: 0, root: '/testbed' });
  const paused = event('control', { action: 'paused', text: null, source: '' });
  return chained([started('x'), ready, asked, replied, proposed, ...more, waits, paused]);
}

function show(events, change) {
  const sends = async () => undefined;
  const decisions = { continue: sends, step: sends, edit: sends, skip: sends, observe: sends, change };
  const controls = { stop: sends, pause: sends, resume: sends, say: sends };
  const { view } = lsn.show(bundle(events), { controls, decisions });
  view.setLive(true);
  view.offersChanged();
  view.flush();
  return view;
}

const listed = () => [...place.querySelectorAll('.lsn-breakpoints li code')].map(node => node.textContent);
const always = scope => within(scope).queryByRole('button', { name: /^Always stop at/ });

test('a breakpoint is set at the pause, listed and switched off', async () => {
  const sent = [];
  const view = show(held('cd /testbed && rm -rf a'), async one => sent.push(one));
  assert.equal(place.querySelector('.lsn-breakpoints').hidden, true);
  const button = always(place.querySelector('.lsn-stop-panel'));
  assert.equal(button.textContent, 'Always stop at “rm”');
  button.click();
  assert.deepEqual(sent, [{ breakpoints: [RULE] }]);
  view.add(changed([RULE, EVIL]));
  view.flush();
  assert.deepEqual(listed(), [RULE, EVIL]);
  place.querySelector('.lsn-breakpoints button').click();
  assert.deepEqual(sent[1], { breakpoints: [EVIL] });
  view.add(changed([]));
  view.flush();
  assert.deepEqual([listed(), place.querySelector('.lsn-breakpoints').hidden], [[], true]);
});

test('it is set at the line of a step, beside those in force', async () => {
  const sent = [];
  show(held('rm a', [changed([EVIL])]), async one => sent.push(one));
  const actions = place.querySelector(".lsn-step[data-step='1'] .lsn-step-head");
  const button = await until(() => always(actions.parentElement));
  button.click();
  assert.deepEqual(sent, [{ breakpoints: [EVIL, RULE] }]);
});

test('why it cannot be set is said where it was asked', async () => {
  show(held('rm a'), async () => {
    throw new Error('The run is over.');
  });
  const panel = place.querySelector('.lsn-stop-panel');
  always(panel).click();
  await until(() => within(panel).getByRole('button', { name: 'The run is over.' }));
});

for (const command of ['ls', "'; x", '$(rm a)', '']) {
  test(`no breakpoint is offered for ${JSON.stringify(command)}`, () => {
    show(held(command), async () => undefined);
    assert.equal(always(place), null);
  });
}
