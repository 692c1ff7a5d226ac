import assert from 'node:assert/strict';
import { test } from 'node:test';
import { cpuTime } from './cpu.mjs';
import { load } from './load.mjs';

const { addUsage, LIVE_LIMIT, messageText, Trajectory } = await load('trajectory/fold');

const base = { id: 'e', parent: null, time: 1 };
const proposed = (step, call_id) => ({
  ...base,
  kind: 'call.proposed',
  step,
  call_id,
  tool: 'execute_bash',
  raw_arguments: '{}',
  arguments: {}
});
const output = (call_id, text) => ({ ...base, kind: 'call.output', call_id, stream: 'stdout', text });

test('an event says which step it changed, and nothing else is looked at', () => {
  const run = new Trajectory();
  run.add({ ...base, kind: 'model.requested', step: 1, attempt: 1, settings: {} });
  const { step } = run.add({ ...base, kind: 'model.delta', step: 2, text: 'a', reasoning: '' });
  assert.equal(step, run.steps[1]);
  assert.deepEqual(run.add({ ...base, kind: 'note', text: 'x' }), { header: true });
});

test('an event costs the same at step 20000 as at step 200', () => {
  const run = new Trajectory();
  const cost = steps => {
    const from = cpuTime();
    for (let step = steps; step < steps + 200; step++) {
      run.add(proposed(step, `c${step}`));
      run.add(output(`c${step}`, 'x'.repeat(100)));
    }
    return cpuTime() - from;
  };
  const costs = Array.from({ length: 100 }, (_, round) => cost(round * 200)).slice(5);
  const median = list => list.sort((a, b) => a - b)[list.length >> 1];
  const [early, late] = [median(costs.slice(0, 40)), median(costs.slice(-40))];
  assert.ok(late < early * 5 + 1, `${early} ms, later ${late} ms`);
});

test('live output keeps its last part, and the result takes its place', () => {
  const run = new Trajectory();
  run.add(proposed(1, 'c'));
  for (let part = 0; part < 5; part++) {
    run.add(output('c', String(part).repeat(LIVE_LIMIT / 2)));
  }
  const [call] = run.steps[0].calls;
  assert.equal(call.liveOutput, '3'.repeat(LIVE_LIMIT / 2) + '4'.repeat(LIVE_LIMIT / 2));
  run.add({ ...base, kind: 'call.finished', step: 1, call_id: 'c', observation: 'x', changes: [] });
  assert.deepEqual([call.liveOutput, call.result.observation], ['', 'x']);
});

test('an event of a call that nobody proposed, or of an unknown kind, changes nothing', () => {
  const run = new Trajectory();
  assert.deepEqual(run.add(output('nobody', 'x')), {});
  assert.deepEqual(run.add({ ...base, kind: 'later.kind' }), {});
  assert.equal(run.steps.length, 0);
});

test('names that objects have of themselves are names like others', () => {
  const run = new Trajectory();
  for (const name of ['__proto__', 'constructor', 'toString']) {
    run.add(proposed(1, name));
    run.add(output(name, name));
    run.add({ ...base, kind: 'artifact', step: null, path: name, mime: '', size: 0, sha256: '' });
  }
  assert.deepEqual(
    run.steps[0].calls.map(call => call.liveOutput),
    ['__proto__', 'constructor', 'toString']
  );
  assert.equal(run.artifacts.size, 3);
});

test('a cost that is not known stays so, and tokens add up', () => {
  const usage = { prompt_tokens: 1, completion_tokens: 2, cached_tokens: 3, reasoning_tokens: 4, cost: 0.5 };
  assert.deepEqual(addUsage(usage, usage), {
    prompt_tokens: 2,
    completion_tokens: 4,
    cached_tokens: 6,
    reasoning_tokens: 8,
    cost: 1
  });
  assert.equal(addUsage(usage, null).cost, null);
});

test('the text of a message is its string, or its text parts', () => {
  assert.equal(messageText({ content: 'a' }), 'a');
  assert.equal(messageText({ content: [{ type: 'text', text: 'a' }, { type: 'image' }, null, { text: 'b' }] }), 'ab');
  assert.equal(messageText({ content: null }), '');
});
