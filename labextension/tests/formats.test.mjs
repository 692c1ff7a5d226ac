import assert from 'node:assert/strict';
import { test } from 'node:test';
import { load } from './load.mjs';

const { readRecord } = await load('formats');
const { Trajectory } = await load('trajectory/fold');

const note = (id, text = 'x') => JSON.stringify({ id, parent: null, time: 1, kind: 'note', text });
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

for (const [name, text] of Object.entries({
  'nothing at all': '',
  'a list': '[1, 2]',
  'some JSON': '{"a": 1}',
  prose: 'It was a dark and stormy night.\n',
  "another project's trajectory, which the server reads": '{"problem_statement": "x", "steps": [], "metadata": {}}',
  'JSON lines of something else': '{"text": "a"}\n{"text": "b"}\n'
})) {
  test(`${name} is no record`, () => assert.equal(readRecord(text), null));
}

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
