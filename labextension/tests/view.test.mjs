// What a reader of a run is shown, and what is left out: outcome, lines, output with its end, search.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { cpuTime } from './cpu.mjs';
import { fill, lsn, place, until, within } from './dom.mjs';
import { load } from './load.mjs';
import { bundle, chained, event, started, step } from './runs.mjs';

const { cut } = await load('view/output');
const { streamsOf } = await load('view/observation');
const { firstSentence, oneLine } = await load('view/one-line');
const { languageOf } = await load('view/highlight');

const all = selector => [...place.querySelectorAll(selector)];
const texts = selector => all(selector).map(one => one.textContent);
const lines = (from, to, word = 'line') =>
  Array.from({ length: to - from + 1 }, (_, index) => `${word} ${from + index}`).join('\n');
const NO_USAGE = { prompt_tokens: 0, completion_tokens: 0, cached_tokens: 0, reasoning_tokens: 0, cost: null };
const done = (reason, more = {}) =>
  event('run.finished', {
    ...{ stop_reason: reason, answer: null, error: null, usage: NO_USAGE, steps: 1, wall_time: 3 },
    ...more
  });

/** A step whose call ended in another way than `step` has it. */
function ending(number, result, call = {}) {
  const events = step(number);
  for (const one of events) {
    if (one.kind === 'call.finished') {
      Object.assign(one, result);
    } else if (one.kind.startsWith('call.')) {
      Object.assign(one, call);
    }
  }
  return events;
}

function show(events, options = {}) {
  const { live, ...host } = options;
  const { view } = lsn.show(bundle(chained([started('Count.\nThen stop.'), ...events])), host);
  view.setLive(!!live);
  view.flush();
  return view;
}

const failing = {
  observation: `Exit code: 2\n[stdout]\n${lines(1, 60)}\n[stderr]\nFATAL: no such column\n\n[Steps remaining: 99]`,
  exit_code: 2,
  stdout: `${lines(1, 60)}\n`,
  stderr: 'FATAL: no such column\n'
};

test('a step that succeeded and printed an error is marked as a warning in line and timeline', () => {
  show([...step(1), ...ending(2, { observation: 'Traceback (most recent call last):\nValueError: no\n' }), ...step(3)]);
  assert.deepEqual(
    all('.lsn-bars [data-kind="warn"]').map(bar => bar.getAttribute('aria-label')),
    ['Step 2, warning']
  );
  assert.deepEqual(texts('.lsn-legend span:not([hidden])'), ['command', 'warning'], 'only what there is');
  assert.deepEqual(texts('.lsn-step[data-step="2"] .lsn-chip[data-kind="warn"]'), ['error printed, exit 0']);
});

test('the end of a long output is visible, with its errors and its exit code', () => {
  show(ending(1, failing));
  assert.equal(texts('.lsn-box .lsn-output')[0], lines(56, 60), 'before errors its last lines');
  assert.equal(place.querySelector('.lsn-cut').textContent, '55 lines above · show all');
  assert.equal(place.querySelector('.lsn-stderr .lsn-output').textContent, 'FATAL: no such column');
  assert.match(place.querySelector('.lsn-exit').textContent, /^exit 2 · /);
  assert.deepEqual(texts('.lsn-step .lsn-chip'), ['exit 2 · FATAL: no such column']);
  place.querySelector('.lsn-cut').click();
  assert.equal(place.querySelector('.lsn-output').textContent, lines(1, 60));
  assert.equal(place.querySelector('.lsn-cut'), null);
  show(ending(1, { ...failing, exit_code: 0, stderr: '' }));
  const [first, shown] = texts('.lsn-box .lsn-output');
  assert.deepEqual([first, shown], [lines(1, 5), lines(41, 60)]);
  assert.equal(place.querySelector('.lsn-cut').textContent, '35 lines hidden · show all');
});

test('an older card, which holds nothing but the observation, shows it without the steps that remained', () => {
  show(ending(1, { ...failing, stdout: undefined, stderr: undefined, before: undefined, after: undefined }));
  const shown = place.querySelector('.lsn-stream').textContent;
  assert.match(shown, /^Exit code: 2[^]*FATAL: no such column/);
  assert.doesNotMatch(shown, /Steps remaining/);
});

test('cuts are at line ends, and few lines are not hidden', () => {
  const { head, hidden, tail } = cut(lines(1, 100), 5, 20);
  assert.deepEqual([head, hidden, tail], [lines(1, 5), 75, lines(81, 100)]);
  for (const text of ['', 'one', 'one\n', lines(1, 25), `${lines(1, 29)}\n`, '\n\n']) {
    assert.deepEqual(cut(text, 5, 20), { head: '', hidden: 0, tail: text.replace(/\n$/, '') });
  }
  assert.equal(cut(lines(1, 31), 5, 20).hidden, 6);
  assert.deepEqual(cut(lines(1, 100), 0, 20), { head: '', hidden: 80, tail: lines(81, 100) });
});

test('a line without end is cut in its middle', () => {
  show(ending(1, { observation: '', stdout: `${'x'.repeat(100_000)}\nlast` }));
  const shown = place.querySelector('.lsn-stream').textContent;
  assert.ok(shown.length < 3000);
  assert.match(shown, /x … 96\.7 KB … x+\nlast$/);
});

test('what is said around an output for the model is not shown', () => {
  const after = `\n\n[Steps remaining: 99]\nThis is your last step.`;
  const observation = `Exit code: 0\n[stdout]\nall is well${after}`;
  show(ending(1, { observation, after, stdout: 'all is well\n', stderr: '' }));
  const shown = place.querySelector('.lsn-call').textContent;
  assert.match(shown, /all is well/);
  assert.doesNotMatch(shown, /Exit code|\[stdout\]|Steps remaining|last step/);
  assert.deepEqual(texts('.lsn-step .lsn-chip'), [], 'nothing is said of an exit code of zero');
});

test('a result is never cut by what it looks like', () => {
  const read = (result, decisions = []) =>
    streamsOf({ result: { error: null, exit_code: null, stdout: '', stderr: '', ...result }, decisions }).stdout;
  const said = '[Steps remaining: 5]\nthe answer is 42';
  const after = '\n\n[Steps remaining: 7]';
  assert.equal(read({ observation: said + after, before: '', after }), said);
  assert.equal(read({ observation: said, before: '', after: '' }), said);
  const before = '[A person changed this call.]\n\n';
  assert.equal(read({ observation: before + said + after, before, after }), said);
  assert.equal(read({ observation: 'said instead', before, after }, [{ action: 'skip' }]), 'said instead');
  assert.equal(read({ observation: '[stderr]\nx', stdout: 'x', exit_code: 0 }), 'x');
});

test('a file that was made is shown once, and without the heads of its diff', async () => {
  const diff = '--- /dev/null\n+++ b/testbed/a.py\n@@ -0,0 +1,2 @@\n+import os\n+print(os)\n';
  const values = { command: 'create', path: '/testbed/a.py', file_text: 'import os\nprint(os)\n' };
  const change = { path: '/testbed/a.py', kind: 'added', size: 20, diff, note: '' };
  const result = {
    observation: '/testbed/a.py was created.\n\n[Steps remaining: 9]',
    changes: [change],
    exit_code: null
  };
  const ready = event('sandbox.ready', { sandbox_id: 's', protection: {}, start_time: 0, root: '/testbed' });
  show([ready, ...ending(1, result, { tool: 'str_replace_editor', arguments: values })]);
  await until(() => place.querySelector('.lsn-diff'));
  assert.equal(place.textContent.split('import os').length, 2);
  assert.doesNotMatch(place.textContent, /---|\+\+\+|@@|was created/);
  assert.equal(place.querySelector('.lsn-what').textContent, 'I look.a.py +2');
  assert.deepEqual(texts('.lsn-diff-number'), ['1', '2']);
  assert.ok(place.querySelector('.lsn-diff .hljs-keyword'), 'Python has colours');
});

test('an edit that was refused says why', () => {
  const values = { command: 'str_replace', path: '/testbed/a.py', old_str: 'x', new_str: 'y' };
  const said = 'Error: old_str is not in /testbed/a.py. Nothing was changed.';
  const result = { observation: said, stdout: '', error: 'editor' };
  show(ending(1, { ...result, exit_code: null }, { tool: 'str_replace_editor', arguments: values }));
  assert.equal(texts('.lsn-step .lsn-chip')[0], 'Edit refused · old_str is not in /testbed/a.py. Nothing was changed.');
});

test('the state and the reason of a failure in words', () => {
  const badge = () => place.querySelector('.lsn-header .lsn-badge').textContent;
  const limited = started('x');
  limited.settings = { limits: { steps: 5, tokens: 65536, cost: 0.5, time: 600 } };
  for (const [reason, words] of [
    ['submitted', 'Submitted, not checked'],
    ['answered', 'Answered, not checked'],
    ['steps', 'Step limit reached (5)'],
    ['tokens', 'Conversation limit reached (65,536 tokens)'],
    ['cost', 'Budget reached ($0.5000)'],
    ['time', 'Time limit reached (10 min)'],
    ['interrupted', 'Interrupted']
  ]) {
    lsn.show(bundle(chained([limited, ...step(1), done(reason)])));
    assert.equal(badge(), words);
  }
  const refused = {
    step: 2,
    attempt: 1,
    error: 'authentication',
    message: 'openai/x refused the key: set X.',
    retry_in: null
  };
  show([
    ...step(1),
    event('model.requested', { step: 2, attempt: 1, settings: {} }),
    event('model.failed', refused),
    done('model_error', { error: refused.message })
  ]);
  assert.equal(badge(), 'Model error: key refused');
  assert.equal(place.querySelector('.lsn-outcome').textContent, refused.message);
});

test('answer, files, facts and the first error come before the steps', async () => {
  const saved = event('artifact', { step: 2, path: 'output/poster.png', mime: '', size: 2048, sha256: '0'.repeat(64) });
  const view = show([
    ...step(1),
    ...ending(2, failing),
    saved,
    ...step(3),
    done('submitted', { answer: 'It is **3**.' })
  ]);
  const order = [...view.node.children].map(node => node.className.split(' ')[0]).filter(name => name);
  const wanted = ['lsn-header', 'lsn-outcome', 'lsn-facts', 'lsn-sticky', 'lsn-steps', 'lsn-artifacts'];
  assert.deepEqual(
    order.filter(name => wanted.includes(name)),
    wanted
  );
  assert.equal(place.querySelector('.lsn-answer').textContent.trim(), 'It is 3.');
  assert.equal(place.querySelector('.lsn-task-line').textContent, 'Count. …');
  assert.match(place.querySelector('.lsn-figures').textContent, /^3 steps · 45 tokens in all · 3\.0 s$/);
  assert.match(place.querySelector('.lsn-model').textContent, /scripted: free/);
  assert.match(place.querySelector('.lsn-out').textContent, /poster\.png/);
  let gone = null;
  Object.assign(window.Element.prototype, {
    scrollIntoView() {
      gone = this;
    }
  });
  place.querySelector('.lsn-out').click();
  assert.ok(gone.classList.contains('lsn-artifact'));
  const chip = within(place).getByRole('button', { name: 'First error: step 2 →' });
  within(place).getByRole('button', { name: 'Close all' }).click();
  chip.click();
  assert.equal(gone.dataset.step, '2');
  assert.equal(gone.querySelector('.lsn-step-head').getAttribute('aria-expanded'), 'true');
});

test('a call that a person interrupted is no error of the run, and its step is marked', () => {
  const half = { error: 'interrupted', exit_code: null };
  const errors = () => texts('.lsn-facts button[data-kind="bad"]:not([hidden])');
  show([...ending(1, half), done('interrupted')]);
  assert.deepEqual(errors(), []);
  assert.ok(place.querySelector('[data-step="1"] [data-tool="failed"]'));
  show([...ending(1, half), ...ending(2, failing), done('interrupted')]);
  assert.deepEqual(errors(), ['First error: step 2 →']);
});

const open = () => all('.lsn-step').filter(one => one.querySelector('.lsn-step-head[aria-expanded="true"]'));
const openNumbers = () => open().map(one => Number(one.dataset.step));

test('of a long run only the first that failed and the decided steps are open', () => {
  const events = Array.from({ length: 12 }, (_, at) => (at === 4 ? ending(5, failing) : step(at + 1))).flat();
  const decided = event('call.decided', {
    ...{ step: 7, call_id: 'call_7', action: 'edit', tool: null, arguments: { command: 'ls' } },
    ...{ observation: null, original: null, source: 'browser' }
  });
  const place7 = events.findIndex(one => one.kind === 'call.started' && one.step === 7);
  events.splice(place7, 0, decided);
  show([...events, done('submitted')]);
  assert.deepEqual(openNumbers(), [5, 7]);
  assert.deepEqual(texts('.lsn-step[data-step="7"] .lsn-chip'), ['edited by you']);
  show([...Array.from({ length: 8 }, (_, at) => step(at + 1)).flat(), done('submitted')]);
  assert.equal(open().length, 8);
});

test('a step stays open that was just done, until the next but one', () => {
  const view = show(Array.from({ length: 9 }, (_, at) => step(at + 1)).flat(), { live: true });
  assert.deepEqual(openNumbers(), [8, 9]);
  place.querySelector('.lsn-step[data-step="3"] .lsn-step-head').click();
  view.add(...step(10));
  view.flush();
  assert.deepEqual(openNumbers(), [3, 9, 10], 'what a person opened stays open');
});

test('all steps are closed, and opened again', () => {
  show([...step(1), ...step(2), ...step(3), done('submitted')]);
  const button = name => within(place).getByRole('button', { name });
  button('Close all').click();
  assert.equal(open().length, 0);
  button('Open all').click();
  assert.equal(open().length, 3);
  button('Close all').click();
  assert.equal(open().length, 0);
});

test('the next error and what a search finds are opened', () => {
  Object.assign(window.Element.prototype, { scrollIntoView() {} });
  const events = Array.from({ length: 12 }, (_, at) => (at % 5 === 1 ? ending(at + 1, failing) : step(at + 1))).flat();
  show([...events, done('submitted')]);
  within(place).getByRole('button', { name: 'Close all' }).click();
  const next = within(place).getByRole('button', { name: 'Next problem' });
  next.click();
  assert.deepEqual(openNumbers(), [2]);
  next.click();
  assert.deepEqual(openNumbers(), [2, 7]);
  show([...events, done('submitted')]);
  const search = place.querySelector('.lsn-search');
  fill(search, 'echo 4');
  assert.deepEqual(openNumbers(), [2, 4], 'of a long run the first error');
  assert.equal(all('.lsn-step:not([hidden])').length, 1);
  search.dispatchEvent(new window.KeyboardEvent('keydown', { key: 'Enter', bubbles: true }));
  assert.equal(place.querySelector('.lsn-current').dataset.step, '4');
  fill(search, '');
  assert.deepEqual(openNumbers(), [2, 4], 'where a person went stays open');
});

test('between the calls of an outside agent, the step waits and nobody thinks', () => {
  const [asked, ...call] = step(1);
  const view = show([{ ...started('Calls'), model: 'outside agent (MCP)' }, asked], { live: true });
  assert.equal(place.querySelector('.lsn-what').textContent, 'Waiting for a call');
  assert.equal(place.querySelector('.lsn-chip[data-kind="run"]'), null);
  view.add(...call.slice(0, 3));
  view.flush();
  assert.match(place.querySelector('.lsn-chip[data-kind="run"]').textContent, /^running /);
});

test('while the model thinks and a command runs, the step says how long', () => {
  const now = Date.now() / 1000;
  const asked = event('model.requested', { step: 1, attempt: 1, settings: {} });
  const view = show([{ ...asked, time: now - 38 }], { live: true });
  assert.match(place.querySelector('.lsn-what').textContent, /^The model is thinking/);
  assert.match(place.querySelector('.lsn-chip[data-kind="run"]').textContent, /^thinking 0:(3[89]|[45]\d)$/);
  const [, replied, proposed, begun] = step(1);
  view.add(replied, proposed, { ...begun, time: now - 65 });
  view.add(event('call.output', { call_id: 'call_1', stream: 'stdout', text: `${lines(1, 332)}\n` }));
  view.flush();
  assert.match(place.querySelector('.lsn-chip[data-kind="run"]').textContent, /^running 1:(0[5-9]|[1-5]\d)$/);
  assert.equal(place.querySelector('.lsn-cut').textContent, '312 lines above · show all');
  assert.equal(place.querySelector('.lsn-output').textContent, lines(313, 332));
  view.add(event('call.output', { call_id: 'call_1', stream: 'stdout', text: 'line 333\n' }));
  view.flush();
  assert.equal(place.querySelector('.lsn-cut').textContent, '313 lines above · show all');
  view.add(...step(1).slice(-1));
  view.flush();
  assert.equal(place.querySelector('.lsn-step .lsn-chip[data-kind="run"]'), null);
});

test('a run that was cut off has no clock', () => {
  show([{ ...event('model.requested', { step: 1, attempt: 1, settings: {} }), time: Date.now() / 1000 }]);
  assert.equal(place.querySelector('.lsn-chip[data-kind="run"]'), null);
  assert.equal(place.querySelector('.lsn-header .lsn-badge').textContent, 'Cut off at step 1');
});

test('one line of a text, and the first sentence of a thought', () => {
  assert.equal(oneLine('\n  a   b\n\n', 9), 'a b');
  assert.equal(oneLine('a\nb', 9), 'a …');
  assert.equal(oneLine('abcdefghij', 9), 'abcdefgh…');
  assert.equal(oneLine('', 9, 'instead'), 'instead');
  assert.equal(firstSentence('# Plan\n', 40), 'Plan');
  assert.equal(firstSentence('**Now** I draw the `poster`. Then more.', 40), 'Now I draw the poster');
  assert.equal(firstSentence('Version 1.2 is there! Good.', 40), 'Version 1.2 is there!');
  assert.equal(firstSentence('', 40), '');
});

test('languages by name, and no more work than a hostile file is worth', () => {
  assert.deepEqual(['a.py', 'b/c.SH', 'x.unknown', ''].map(languageOf), ['python', 'bash', null, null]);
  const from = cpuTime();
  const text = `${'('.repeat(50_000)}"'\``;
  show(ending(1, {}, { arguments: { command: text } }));
  assert.equal(place.querySelector('.lsn-code').textContent, text);
  assert.ok(cpuTime() - from < 6000);
});

test('every stop reason has words', () => {
  const source = readFileSync(new URL('../../llm_sandbox_nb/trajectory/events.py', import.meta.url), 'utf8');
  const reasons = /StopReason = Literal\[([^\]]*)\]/.exec(source)[1].match(/\w+/g);
  const table = JSON.parse(readFileSync(new URL('../../tests/data/formatting.json', import.meta.url), 'utf8'));
  const known = new Set(table.state.map(([[name]]) => name));
  assert.deepEqual(
    reasons.filter(reason => !known.has(reason)),
    []
  );
});

test('drawings have frames of their size', async () => {
  const { drawingSize } = await load('artifacts/document');
  const size = attributes => drawingSize(`<?xml version="1.0"?>\n<svg ${attributes}><g width="9"/></svg>`);
  assert.deepEqual(size('width="200" height="100"'), { width: 200, height: 100, fixed: true });
  assert.deepEqual(size("height='50px' width=80 "), { width: 80, height: 50, fixed: true });
  assert.deepEqual(size('viewBox="0 0 300 150"'), { width: 300, height: 150, fixed: false });
  assert.deepEqual(size('width="100%" viewBox="0,0,2,1"'), { width: 2, height: 1, fixed: false });
  for (const none of ['', 'viewBox="0 0 0 1"', 'width="1e9e" height="x"', 'stroke-width="3" height="4"']) {
    assert.equal(size(none), null, none);
  }
});

test('a step that a reader went to stays, whatever the browser saw before and tells now', () => {
  const observers = [];
  class Late {
    waiting = [];
    constructor(callback) {
      this.callback = callback;
      observers.push(this);
    }
    observe(target) {
      this.first ??= target;
      this.waiting.push({ target, isIntersecting: true });
    }
    unobserve(target) {
      this.waiting = this.waiting.filter(one => one.target !== target);
    }
    disconnect() {}
    takeRecords() {
      return this.waiting.splice(0);
    }
    tell() {
      this.callback(this.takeRecords());
    }
  }
  const usual = globalThis.IntersectionObserver;
  globalThis.IntersectionObserver = Late;
  try {
    const steps = Array.from({ length: 20 }, (_, index) => (index === 17 ? ending(18, failing) : step(index + 1)));
    const view = show(steps.flat());
    observers.forEach(one => one.tell());
    const line = () => place.querySelector(".lsn-step[data-step='18'] .lsn-step-head");
    assert.ok(line(), 'it is near at first');
    const groups = observers.find(one => one.first?.className === 'lsn-step-group');
    const group = place.querySelector(".lsn-step[data-step='18']").parentElement;
    groups.waiting.push({ target: group, isIntersecting: false });
    view.nextProblem();
    observers.forEach(one => one.tell());
    assert.ok(line(), 'it is still there');
  } finally {
    globalThis.IntersectionObserver = usual;
  }
});
