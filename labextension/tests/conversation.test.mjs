import assert from 'node:assert/strict';
import { test } from 'node:test';
import { load } from './load.mjs';

const { messagesOf } = await load('trajectory/conversation');
const { filesAt } = await load('view/history');
const { Trajectory } = await load('trajectory/fold');

const message = (role, content, more = {}) => ({ kind: 'message', message: { role, content, ...more } });
const finished = (call_id, observation) => ({ kind: 'call.finished', call_id, observation });

test('messages are those of the events, with results and calls', () => {
  const calls = [{ id: 'c', type: 'function', function: { name: 'execute_bash', arguments: '{"command": "ls"}' } }];
  const found = messagesOf([
    message('system', 'Be good.'),
    message('user', [{ type: 'text', text: 'Go' }, { type: 'image' }, { text: ' on.' }]),
    { kind: 'model.replied', message: { role: 'assistant', content: null, tool_calls: calls } },
    { kind: 'note', text: 'not said' },
    finished('c', 'out')
  ]);
  assert.deepEqual(
    found.map(one => [one.role, one.text]),
    [
      ['system', 'Be good.'],
      ['user', 'Go on.'],
      ['assistant', ''],
      ['tool', 'out']
    ]
  );
  assert.deepEqual(found[2].calls, [{ name: 'execute_bash', arguments: '{"command": "ls"}' }]);
});

test('an observation that a person changed is what the model saw, and of that call alone', () => {
  const observe = { kind: 'call.decided', action: 'observe', call_id: 'b', observation: 'changed', original: 'two' };
  const found = messagesOf([finished('a', 'one'), finished('b', 'two'), observe, finished('c', 'three')]);
  assert.deepEqual(
    found.map(one => one.text),
    ['one', 'changed', 'three']
  );
  assert.equal(messagesOf([{ ...observe, call_id: 'nobody' }]).length, 0);
});

test('messages of no known shape are shown without what cannot be read', () => {
  for (const broken of [{}, { role: 3, content: 4 }, { tool_calls: 'x' }, { tool_calls: [null, 3, { function: 1 }] }]) {
    const [one] = messagesOf([{ kind: 'model.replied', message: broken }]);
    assert.equal(one.text, '');
    assert.ok(one.calls.every(call => call.name === '' && call.arguments === ''));
  }
});

test('the files of a step are of the newest checkpoint up to it', () => {
  const run = new Trajectory();
  const kept = (step, checkpoint) => ({ kind: 'checkpoint', id: checkpoint, parent: null, time: 0, step, checkpoint });
  assert.equal(filesAt(run, 3), null);
  [kept(null, 'before'), kept(2, 'two'), kept(5, 'five')].forEach(event => run.add(event));
  assert.deepEqual(
    [0, 1, 2, 4, 5, 9].map(step => filesAt(run, step)),
    ['before', 'before', 'two', 'two', 'five', 'five']
  );
});

test('after a reduction the messages are those that are sent: new contents first, then what is removed', () => {
  const reduced = {
    kind: 'context.reduced',
    shown: [
      { at: 0, content: 'task\n\n[steps removed]' },
      { at: 4, content: '[output of step 2 removed]' },
      { at: 99, content: 'nowhere' }
    ],
    removed_from: 1,
    removed_to: 3
  };
  const replied = content => ({ kind: 'model.replied', message: { role: 'assistant', content } });
  const events = [message('user', 'task'), replied('a'), finished('a', 'one'), replied('b'), finished('b', 'two')];
  const texts = found => messagesOf(found).map(one => one.text);
  assert.deepEqual(texts([...events, reduced]), ['task\n\n[steps removed]', 'b', '[output of step 2 removed]']);
  assert.deepEqual(texts(events), ['task', 'a', 'one', 'b', 'two']);
  const nothing = { ...reduced, shown: [], removed_from: -1, removed_to: 3 };
  assert.deepEqual(texts([...events, nothing]), texts(events));
});

test('results of calls that were written as text are one message, which what is said joins, also after a reduction', () => {
  const written = (content, more = {}) => ({
    kind: 'model.replied',
    message: { role: 'assistant', content, ...more },
    calls_from: 'text'
  });
  const native = { tool_calls: [{ id: 'c', type: 'function', function: { name: 'submit', arguments: '{}' } }] };
  const observe = { kind: 'call.decided', action: 'observe', call_id: 'b', observation: 'changed' };
  const events = [message('user', 'task'), written('two blocks'), finished('a', 'one'), finished('b', 'two')];
  const shown = found => messagesOf(found).map(one => [one.role, one.text]);
  const start = [
    ['user', 'task'],
    ['assistant', 'two blocks']
  ];
  assert.deepEqual(shown(events), [...start, ['user', 'one\n\ntwo']]);
  const said = [...events, observe, message('user', 'hurry')];
  assert.deepEqual(shown(said), [...start, ['user', 'one\n\nchanged\n\nhurry']]);
  const masked = { kind: 'context.reduced', shown: [{ at: 2, content: 'masked' }], removed_from: 0, removed_to: 0 };
  const after = [...said, masked, message('user', 'go on'), written('native', native), finished('c', 'three')];
  assert.deepEqual(shown(after), [...start, ['user', 'masked\n\ngo on'], ['assistant', 'native'], ['tool', 'three']]);
});
