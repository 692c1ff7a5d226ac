import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { load } from './load.mjs';

const { readRecord, isSeed, seedOutcome } = await load('formats');
const { Trajectory } = await load('trajectory/fold');

const note = (id, text = 'x') => JSON.stringify({ id, parent: null, time: 1, kind: 'note', text });
const step = (name, observation, more = {}) => ({
  thought: 'I look.',
  reasoning_content: 'Hm.',
  action: { function: name, parameters: { command: 'ls' } },
  observation,
  metadata: { step: 1, exec_time: 0.5 },
  ...more
});
const seed = steps => JSON.stringify({ problem_statement: 'Count.', steps, metadata: { total_steps: steps.length } });

test('a journal gives its events', () => {
  const { events, problem } = readRecord(`${note('a')}\n${note('b')}\n`);
  assert.deepEqual([events.map(event => event.id), problem], [['a', 'b'], '']);
});

test('a last line that was cut short is left out without a word', () => {
  const { events, problem } = readRecord(`${note('a')}\n${note('b').slice(0, 20)}`);
  assert.deepEqual([events.length, problem], [1, '']);
});

test('other lines that are not events are counted and named', () => {
  const { events, problem } = readRecord(`${note('a')}\nnonsense\n[]\n${note('b')}\n`);
  assert.deepEqual([events.length, problem], [2, '2 lines are not events and are left out (2, 3).']);
});

test('an event of a kind this version does not know is kept', () => {
  const line = JSON.stringify({ id: 'z', parent: null, time: 1, kind: 'later.kind', anything: [1] });
  assert.equal(readRecord(`${note('a')}\n${line}\n`).events[1].kind, 'later.kind');
});

test('an event with fields of the wrong type is left out, so that nothing breaks on it', () => {
  const bad = { id: 'z', parent: null, time: 1, kind: 'call.finished', call_id: 'c', observation: { a: 1 } };
  assert.equal(readRecord(`${note('a')}\n${JSON.stringify(bad)}\n${note('b')}\n`).events.length, 2);
});

test("the paper's form becomes the same story", () => {
  const { events } = readRecord(seed([step('execute_bash', 'a.txt'), step('submit', 'done')]));
  const run = new Trajectory();
  events.forEach(event => run.add(event));
  assert.equal(run.start.task, 'Count.');
  assert.deepEqual(
    run.steps.map(each => [each.thought, each.reasoning, each.calls[0].tool, each.calls[0].result.observation]),
    [
      ['I look.', 'Hm.', 'execute_bash', 'a.txt'],
      ['I look.', 'Hm.', 'submit', 'done']
    ]
  );
  assert.equal(run.finish.stop_reason, 'submitted');
});

test('a step without a call keeps what it was answered with, and such a run has no end', () => {
  const { events } = readRecord(seed([step('', 'Use a tool.')]));
  const run = new Trajectory();
  events.forEach(event => run.add(event));
  assert.deepEqual([run.steps[0].nudge, run.steps[0].calls.length, run.finish], ['Use a tool.', 0, null]);
});

test('ids are unique and each event follows the one before', () => {
  const { events } = readRecord(seed([step('execute_bash', ''), step('submit', '')]));
  assert.equal(new Set(events.map(event => event.id)).size, events.length);
  events.slice(1).forEach((event, index) => assert.equal(event.parent, events[index].id));
});

for (const [name, text] of Object.entries({
  'nothing at all': '',
  'a list': '[1, 2]',
  'some JSON': '{"a": 1}',
  prose: 'It was a dark and stormy night.\n',
  'a trajectory of another tool': '{"trajectory": [], "history": [], "info": {}}',
  'steps that are no steps': '{"problem_statement": "x", "steps": [1, null], "metadata": {}}',
  'JSON lines of something else': '{"text": "a"}\n{"text": "b"}\n'
})) {
  test(`${name} is no record`, () => assert.equal(readRecord(text), null));
}

test('a record of a hostile shape is no seed record', () => {
  for (const value of [null, 1, 'x', [], { problem_statement: 1, steps: [] }, { problem_statement: 'x', steps: {} }]) {
    assert.equal(isSeed(value), false);
  }
});

test('a seed record with odd values inside is shown all the same', () => {
  const odd = step({ a: 1 }, { b: [2] }, { thought: null, reasoning_content: 7, metadata: null });
  const { events } = readRecord(seed([odd]));
  assert.equal(events.find(event => event.kind === 'call.finished').observation, '{"b":[2]}');
});

const told = JSON.parse(readFileSync(new URL('../../tests/data/seed_observations.json', import.meta.url), 'utf8'));

test('how a call ended is read from its observation, as in Python', () => {
  for (const [tool, observation, facts] of told) {
    assert.deepEqual(seedOutcome(tool, observation), facts, observation);
  }
});

test('a failed call of the paper is failed', () => {
  const { events } = readRecord(seed([step('execute_bash', told[2][1])]));
  const finished = events.find(event => event.kind === 'call.finished');
  assert.equal(finished.exit_code, 2);
});

test('a journal of a later version says so, and one whose version is no number is refused with a sentence', () => {
  const start = version => ({
    ...{ id: 's', parent: null, time: 1, kind: 'run.started', schema_version: version, run_id: 'r', task: 't' },
    ...{ model: 'm', scripted: false, settings: {}, tools: [], inputs: [], versions: {}, forked_from: null }
  });
  const read = version => readRecord(`${JSON.stringify(start(version))}\n${note('a')}\n`);
  const later = new Trajectory();
  read(99).events.forEach(event => later.add(event));
  assert.equal(later.notes[0], 'Made by a later version (99): parts may be missing.');
  assert.deepEqual([read(2).events.length, read(2).problem], [2, '']);
  for (const version of ['1', 0, true, [1]]) {
    const { events, problem } = read(version);
    assert.deepEqual([events.length, problem], [0, `${JSON.stringify(version)} is not the number of a version.`]);
  }
});
