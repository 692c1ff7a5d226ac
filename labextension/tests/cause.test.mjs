import assert from 'node:assert/strict';
import { test } from 'node:test';
import { cpuTime } from './cpu.mjs';
import { load } from './load.mjs';

const { FileHistory } = await load('view/file-history');
const { madeWith } = await load('view/made-with');
const { warningText } = await load('view/warning-text');
const { messagesSeen, contextFill } = await load('view/request-seen');
const { Trajectory } = await load('trajectory/fold');

const host = { trans: (text, ...args) => text.replace(/%(\d)/g, (whole, place) => String(args[place - 1] ?? whole)) };

const change = (path, kind, more = {}) => ({ path: `/w/${path}`, kind, size: 100, diff: null, note: '', ...more });
const call = (values, more = {}) => ({
  rawArguments: '',
  arguments: values,
  result: { observation: '', error: null, timed_out: false, exit_code: 0, changes: [], ...more }
});
const bash = (command, more) => call({ command }, more);
const edit = (path, more) => call({ command: 'str_replace', path }, more);
const step = (number, ...calls) => ({ number, calls });

function historyOf(...steps) {
  const history = new FileHistory('/w');
  steps.forEach(one => history.take(one));
  return history;
}

const told = history =>
  Object.fromEntries([...history.files].map(([path, events]) => [path, events.map(one => `${one.what} ${one.step}`)]));
const warned = history =>
  [...history.warnings].map(([number, list]) => [number, ...list.map(one => warningText(one, host))]);
const used = list => list.map(one => `${one.path} ${one.event?.step ?? 'given'} ${one.mark}`.trim());

test('the history of a file says what was done to it, once for each call, and which edits were refused', () => {
  const steps = [
    step(1, bash('make', { changes: [change('a.csv', 'added')] })),
    step(4, edit('/w/a.csv', { error: 'editor', exit_code: null })),
    step(5, edit('a.csv', { exit_code: null, changes: [change('a.csv', 'modified')] })),
    step(6, bash('rm a.csv', { changes: [change('a.csv', 'deleted')] }))
  ];
  const history = historyOf(...steps, ...steps);
  assert.deepEqual(told(history), { 'a.csv': ['made 1', 'refused 4', 'changed 5', 'removed 6'] });
  assert.equal(history.changed, 1);
  assert.deepEqual(warned(history), [], 'a file that the run made may be removed again');
});

test('a step that succeeds and loses something has a warning', () => {
  const lines = (before, after) => ({ lines_before: before, lines: after });
  const history = historyOf(
    step(1, bash('filter', { changes: [change('prices.csv', 'modified', lines(1000, 88))] })),
    step(2, bash('rm', { changes: [change('input/x.csv', 'deleted')] })),
    step(3, bash('make', { changes: ['a', 'b', 'c', 'output/n.txt'].map(one => change(one, 'added')) })),
    step(4, bash('rm a b c', { changes: ['a', 'b', 'c'].map(one => change(one, 'deleted')) })),
    step(5, bash('sed -i', { changes: [change('given.txt', 'modified', lines(50, 48))] })),
    step(6, bash('cp', { changes: [change('big', 'modified', { size: 10, size_before: 3 * 1024 * 1024 })] })),
    step(7, bash('run | tee log', { observation: 'x\nTraceback (most recent call last):\n  File "a"' })),
    step(8, bash('echo > results/n.txt', { changes: [change('results/n.txt', 'added')] })),
    step(9, bash('run > empty', { changes: [change('empty', 'added', { size: 0 })] }))
  );
  assert.deepEqual(warned(history), [
    [1, 'prices.csv lost 912 lines'],
    [2, 'x.csv removed'],
    [4, '3 files removed'],
    [5, 'given.txt changed'],
    [6, 'big lost 3.0 MB'],
    [7, 'error printed, exit 0'],
    [8, 'n.txt is not output/n.txt'],
    [9, 'empty is empty']
  ]);
  assert.equal(history.firstWarning, 1);
});

test('what is usual has no warning', () => {
  const history = historyOf(
    step(1, bash('fails', { exit_code: 1, observation: 'Traceback (most recent call last):\n' })),
    step(2, bash('touch x', { changes: [change('x', 'added', { size: 0 })] })),
    step(
      3,
      edit('/w/main.py', { exit_code: null, changes: [change('main.py', 'modified', { lines: 3, lines_before: 90 })] })
    ),
    step(4, bash('make', { changes: [change('t', 'added', { lines: 99, lines_before: 0 })] })),
    step(5, bash('make', { changes: [change('t', 'modified', { lines: 95, lines_before: 99 })] })),
    step(6, bash('cat notes', { observation: 'an error: in the middle, and Traceback' }))
  );
  assert.deepEqual(warned(history), []);
});

test('a step was made with the files that its command, and the programs that it runs, name', () => {
  const program = (name, text) =>
    change(name, 'added', { diff: `--- /dev/null\n+++ b/${name}\n+${text.join('\n+')}\n` });
  const steps = [
    step(
      1,
      edit('/w/clean.py', { changes: [program('clean.py', ['open("input/raw.csv")', 'open("clean.csv", "w")'])] })
    ),
    step(2, bash('python3 clean.py', { changes: [change('clean.csv', 'added')] })),
    step(3, edit('/w/tools.py', { changes: [program('tools.py', ['x = 1'])] })),
    step(4, edit('/w/sum.py', { changes: [program('sum.py', ['import tools', 'open("clean.csv")'])] })),
    step(5, edit('/w/sum.py', { error: 'editor', exit_code: null })),
    step(6, bash('for p in 1 2; do cat part$p.csv; done', { changes: [change('part1.csv', 'added')] })),
    step(7, bash('python3 sum.py > output/sum.txt', { changes: [change('output/sum.txt', 'added')] })),
    step(8, bash('cat part*.csv >> clean.csv', { changes: [change('clean.csv', 'modified')] }))
  ];
  const history = historyOf(...steps);
  history.name('input/raw.csv');
  const of = number => used(madeWith(steps[number - 1], history));
  assert.deepEqual(of(1), [], 'what an edit writes is not run');
  assert.deepEqual(of(2), ['clean.py 1', 'input/raw.csv given']);
  assert.deepEqual(of(7), ['sum.py 5 bad', 'clean.csv 2', 'sum.py 4', 'tools.py 3']);
  assert.deepEqual(of(8), ['part1.csv 6', 'clean.csv 2']);
});

test('a pattern names the files whose last parts fit it', () => {
  const files = ['part1.csv', 'old/part2.csv', 'part.csv.bak', 'x/part/3.csv', 'a1b2.txt'];
  const history = historyOf(step(1, bash('make', { changes: files.map(name => change(name, 'added')) })));
  const of = command => madeWith(step(2, bash(command)), history).map(one => one.path);
  assert.deepEqual(of('cat part*.csv'), ['part1.csv', 'old/part2.csv']);
  assert.deepEqual(of('cat old/*.csv'), ['old/part2.csv']);
  assert.deepEqual(of('cat *t*.bak'), ['part.csv.bak']);
  assert.deepEqual(of('cat a*b*.txt'), ['a1b2.txt']);
  assert.deepEqual(of('cat b*a*.txt'), []);
});

test('hostile names and commands take no time', () => {
  const name = 'a'.repeat(300);
  const names = Array.from({ length: 1000 }, (_, at) => change(`${name}.${at}`, 'added'));
  const history = historyOf(step(1, bash('make', { changes: names })));
  const globs = Array.from({ length: 40 }, (_, at) => `a*a*a*a.${at}x`).join(' ');
  const command = `${'*a'.repeat(3)}! ${'a*'.repeat(20_000)} ${'('.repeat(9999)} ${'{'.repeat(9999)}`;
  const started = cpuTime();
  madeWith(step(2, bash(command)), history);
  madeWith(step(2, bash(globs)), history);
  assert.ok(cpuTime() - started < 2000);
});

test('what the model saw is what came before the newest request of the step, with calls that a card keeps elsewhere', () => {
  let id = 0;
  const trajectory = new Trajectory();
  const add = (kind, values) =>
    trajectory.add({ id: String(++id), parent: id > 1 ? String(id - 1) : null, time: 0, kind, ...values });
  const usage = { prompt_tokens: 50, completion_tokens: 5, cached_tokens: 0, reasoning_tokens: 0, cost: null };
  add('run.started', { task: 't', settings: { limits: { tokens: 200 } } });
  add('message', { message: { role: 'user', content: 'Go.' } });
  add('model.requested', { step: 1 });
  add('model.replied', { step: 1, message: { role: 'assistant', content: 'I look.' }, usage, context_window: 100 });
  add('call.proposed', { step: 1, call_id: 'a', tool: 'execute_bash', raw_arguments: '', arguments: null });
  add('call.started', { step: 1, call_id: 'a', tool: 'execute_bash', arguments: { command: 'ls' } });
  add('call.finished', { step: 1, call_id: 'a', observation: 'out', changes: [] });
  add('model.requested', { step: 2 });
  add('model.replied', { step: 2, message: { role: 'assistant', content: 'Done.' }, usage: null });
  const seen = number =>
    messagesSeen(number, trajectory).map(one => [one.role, one.text, ...one.calls.map(c => c.arguments)]);
  assert.deepEqual(seen(1), [['user', 'Go.']]);
  assert.deepEqual(seen(2), [
    ['user', 'Go.'],
    ['assistant', 'I look.', '{"command":"ls"}'],
    ['tool', 'out']
  ]);
  assert.deepEqual(contextFill(trajectory.steps[0], trajectory), { tokens: 50, limit: 100, own: false });
  assert.equal(contextFill(trajectory.steps[1], trajectory), null);
});
