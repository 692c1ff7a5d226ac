// How a person goes through a run: filters, keys, bars of the timeline, earlier attempts, what the model saw.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { fill, lsn, place, until, within } from './dom.mjs';
import { bundle, chained, event, started, step } from './runs.mjs';

const all = selector => [...place.querySelectorAll(selector)];
const texts = selector => all(selector).map(one => one.textContent);
const shown = () => all('.lsn-step:not([hidden])').map(one => Number(one.dataset.step));
const open = () => all('.lsn-step-head[aria-expanded="true"]').length;
const current = () => place.querySelector('.lsn-step.lsn-current')?.dataset.step;
const at = number => place.querySelector(`.lsn-step[data-step='${number}']`);
const ready = event('sandbox.ready', { sandbox_id: 's', protection: {}, start_time: 0, root: '/testbed' });

/** A key that a person presses where the focus is, or in this element. */
const key = (name, target = place.querySelector('.lsn-view')) =>
  target.dispatchEvent(new window.KeyboardEvent('keydown', { key: name, bubbles: true, cancelable: true }));

function show(events) {
  lsn.show(bundle(chained([started('Find the mean.'), ready, ...events])));
}

/** A step that changed files, or ended in another way. */
function changing(number, changes, result = {}) {
  const events = step(number);
  Object.assign(events.at(-1), result, {
    changes: Object.entries(changes).map(([path, change]) => ({
      ...{ path: `/testbed/${path}`, kind: 'modified', size: 10, diff: null, note: '' },
      ...change
    }))
  });
  return events;
}

const run = () => [
  ...step(1),
  ...changing(2, { 'notes.md': { kind: 'added' } }),
  ...changing(3, { 'input/prices.csv': { lines_before: 1000, lines: 114 } }),
  ...step(4),
  ...changing(5, { 'notes.md': {}, 'output/mean.txt': { kind: 'added' } })
];

test('steps are filtered by a file and by changed files', () => {
  show(run());
  const view = within(place);
  view.getByRole('button', { name: '3 files changed' }).click();
  assert.deepEqual(texts('.lsn-file-list .lsn-file'), [
    'notes.md: made 2, changed 5',
    'input/prices.csv: changed 3',
    'output/mean.txt: made 5'
  ]);
  const row = all('.lsn-file-row').find(one => one.textContent.includes('notes.md'));
  within(row).getByRole('button', { name: 'Only these steps' }).click();
  assert.deepEqual(shown(), [2, 5]);
  view.getByRole('button', { name: 'Show all steps again, not only those of notes.md' }).click();
  assert.deepEqual(shown(), [1, 2, 3, 4, 5]);
  view.getByLabelText('changed files').click();
  assert.deepEqual(shown(), [2, 3, 5]);
});

test('a step that loses data is amber, names the file once, and the key e leads to it', () => {
  show(run());
  assert.deepEqual(texts('.lsn-step[data-step="3"] .lsn-chip[data-kind="warn"]'), ['prices.csv lost 886 lines']);
  assert.doesNotMatch(texts('.lsn-step[data-step="3"] .lsn-chip[data-kind="plain"]').join(), /prices/);
  key('e');
  assert.equal(current(), '3');
});

test('the whole is read by the keyboard', () => {
  const failing = { observation: 'Exit code: 1\n', exit_code: 1 };
  show([...Array(20).keys()].flatMap(index => changing(index + 1, {}, [4, 8].includes(index) ? failing : {})));
  key('f');
  assert.equal(open(), 0);
  key('e');
  assert.deepEqual([open(), current()], [1, '5']);
  key('/');
  const search = place.querySelector('.lsn-search');
  assert.equal(document.activeElement, search);
  fill(search, 'echo 17');
  key('Enter', search);
  assert.equal(current(), '17');
  assert.deepEqual(shown(), [17]);
  assert.equal(document.activeElement, search, 'who searches may go on');
});

test('a step shows what the model saw and how full its context was', async () => {
  const system = event('message', { message: { role: 'system', content: 'You have a computer.' } });
  const task = event('message', { message: { role: 'user', content: 'Find the mean.' } });
  const events = [system, task, ...[1, 2, 3].flatMap(number => step(number, `<b>I look at ${number}</b>`))];
  events.findLast(one => one.kind === 'model.replied').context_window = 1000;
  show(events);
  key('f');
  at(3).querySelector('.lsn-step-head').click();
  const box = within(at(3))
    .getByText(/^What the model saw/)
    .closest('details');
  assert.equal(box.querySelector('li'), null, 'they are made when the list is opened');
  box.open = true;
  box.dispatchEvent(new Event('toggle'));
  await until(() => box.querySelectorAll('.lsn-messages > li').length === 6);
  within(box).getByText('What the model saw (6)');
  const seen = [...box.querySelectorAll('.lsn-messages > li')];
  assert.deepEqual(
    seen.map(one => one.dataset.role),
    ['system', 'user', 'assistant', 'tool', 'assistant', 'tool']
  );
  assert.match(seen[4].textContent, /<b>I look at 2<\/b>/);
  assert.match(at(3).querySelector('.lsn-context-fill').textContent, /^Context: 10 of 1,000 tokens \(1 %\)$/);
});

test('the height of the bars is that of new tokens, or of time', () => {
  const events = [1, 2, 3].flatMap(number => step(number));
  events
    .filter(one => one.kind === 'model.replied')
    .forEach((one, index) => {
      one.usage = { ...one.usage, prompt_tokens: 100 * 3 ** index };
      one.model_time = 8 / 2 ** index;
    });
  show(events);
  const heights = () => all('.lsn-bars rect').map(bar => Number(bar.getAttribute('height')));
  const rises = ([one, two, three]) => one < two && two < three;
  assert.ok(rises(heights()), `${heights()}`);
  fill(within(place).getByLabelText('Height of the bars'), 'time');
  assert.ok(rises(heights().reverse()), `${heights()}`);
});

/** A command of a step, as one attempt has it. */
function commanded(number, command, attempt) {
  const events = step(number);
  for (const one of events) {
    if (one.call_id) {
      one.call_id = `${attempt}_${number}`;
    }
    if (one.arguments) {
      one.arguments = { command };
    }
  }
  return events;
}

/** Two steps, back to the first, and another second one. */
function rewound() {
  const first = commanded(1, 'ls', 'a');
  const left = commanded(2, "awk '$5 < 25' cities.csv", 'a');
  const back = event('rewound', {
    ...{ to: first.at(-1).id, step: 1, what: 'conversation', target: null, safety: null, undo_of: null }
  });
  const again = commanded(2, "awk '$5 > 25' cities.csv", 'b');
  again[0].parent = first.at(-1).id;
  return [...first, ...left, back, ...again];
}

test('after a rewind the budget still counts what the earlier attempt cost', () => {
  const events = rewound();
  events.filter(one => one.kind === 'model.replied').forEach(one => (one.usage = { ...one.usage, cost: 0.1 }));
  const first = Object.assign(started('x'), { model: 'openai/x', scripted: false });
  for (const [limits, words] of [
    [{}, 'openai/x · $0.2000'],
    [{ cost: 1 }, 'openai/x · $0.30 of $1.00']
  ]) {
    first.settings = { limits };
    lsn.show(bundle(chained([first, ...events])));
    assert.equal(place.querySelector('.lsn-model').textContent, words);
  }
});

test('after a rewind a step shows what the earlier attempt did', () => {
  show(rewound());
  key('f');
  at(2).querySelector('.lsn-step-head').click();
  const earlier = at(2).querySelector('.lsn-earlier');
  assert.match(earlier.textContent, /^Earlier attempt, step 2:\s*awk '\$5 < 25' cities\.csv$/);
  assert.equal(earlier.querySelector('mark').textContent, '<');
  assert.equal(at(1).querySelector('.lsn-earlier'), null);
});

test('attempts that were left have lanes, and keys lead to their steps', async () => {
  show(rewound());
  const lane = within(place).getByRole('group', { name: 'Earlier attempt after step 1' });
  const [bar] = within(lane).getAllByRole('option');
  const picture = within(place).getByRole('listbox');
  picture.focus();
  for (const name of ['End', 'ArrowDown', 'Enter']) {
    key(name, picture);
  }
  await until(() => bar.getAttribute('aria-selected') === 'true');
  await until(() => /Step 2 of an earlier attempt/.test(place.querySelector('.lsn-history h3').textContent));
});

const long = (...failing) => [
  ...Array.from({ length: 29 }, (_, at) =>
    changing(at + 1, {}, failing.includes(at + 1) ? { exit_code: 1 } : {})
  ).flat(),
  event('run.finished', {
    ...{
      stop_reason: 'submitted',
      answer: '42',
      error: null,
      usage: null,
      steps: 29,
      wall_time: 1,
      without_answer: false
    }
  })
];
const lines = () => all('.lsn-step:not([hidden], .lsn-folded)').map(one => Number(one.dataset.step));

test('calm steps are one row, until a reader opens it, goes to one of them, or filters', () => {
  show(long(12));
  const rows = () => all('.lsn-calm').map(one => one.textContent);
  assert.deepEqual(rows(), ['1–1111 reads, nothing changed0.2k · 5.5 s', '13–2816 reads, nothing changed0.2k · 8.0 s']);
  assert.deepEqual(lines(), [12, 29]);
  key('e');
  assert.equal(current(), '12', 'a problem is in no fold');
  const [first] = all('.lsn-calm-head');
  first.click();
  assert.equal(first.getAttribute('aria-expanded'), 'true');
  assert.deepEqual(lines().length, 13);
  first.click();
  assert.deepEqual(lines(), [12, 29]);
  within(place)
    .getByRole('option', { name: /^Step 20/ })
    .dispatchEvent(new window.MouseEvent('click', { bubbles: true }));
  assert.equal(current(), '20');
  assert.ok(lines().includes(20), 'its fold opens');
  fill(within(place).getByRole('searchbox'), 'echo 5');
  assert.deepEqual(shown(), [5]);
  assert.ok(place.querySelector('.lsn-steps').classList.contains('lsn-filtered'), 'and no fold hides it');
});

test('a row of calm steps keeps the keyboard while more steps come', () => {
  const events = chained([started('Look.'), ready, ...Array.from({ length: 30 }, (_, at) => step(at + 1)).flat()]);
  const { view } = lsn.show(bundle(events));
  const [head] = all('.lsn-calm-head');
  head.focus();
  view.add(...step(31));
  view.flush();
  assert.equal(document.activeElement, head);
});

test('the same failure again and again is one row below the first', () => {
  show(
    long(...Array.from({ length: 27 }, (_, at) => at + 2)).map(one => ({
      ...one,
      arguments: one.arguments && { command: 'make' }
    }))
  );
  assert.deepEqual(lines(), [1, 2, 29]);
  assert.match(all('.lsn-calm')[0].textContent, /^3–28the same again, 26 times: exit 1/);
});

test('an open step says nothing twice', () => {
  show([...step(1, 'I look.'), ...step(2, 'I look at it. Then I go on.')]);
  const body = number => at(number).querySelector('.lsn-step-body');
  const hidden = (number, part) => body(number).querySelector(part).hidden;
  assert.deepEqual([hidden(1, '.lsn-thought'), hidden(2, '.lsn-thought')], [true, false]);
  assert.equal(hidden(1, '.lsn-code'), true, 'the command is in the line');
  assert.match(body(1).textContent, /out/);
  const said = number => [...at(number).querySelectorAll('.lsn-what > :not([hidden])')].map(one => one.textContent);
  assert.deepEqual(
    [said(1), said(2)],
    [
      ['I look.', 'echo 1', ''],
      ['echo 2', '']
    ],
    'a longer thought is below alone'
  );
});

test('the answer has its chain, and an output that a later step replaced says so', () => {
  show([
    ...changing(1, { 'wind.csv': { kind: 'added' } }).map(one =>
      withCommand(one, 'python3 - < input/weather.csv > wind.csv')
    ),
    ...changing(2, { 'output/answer.txt': { kind: 'added' } }).map(one =>
      withCommand(one, 'sort wind.csv > output/answer.txt')
    ),
    ...changing(3, { 'output/answer.txt': {} }).map(one => withCommand(one, 'head -n 1 wind.csv > output/answer.txt')),
    event('artifact', { step: 3, path: 'answer.txt', mime: 'text/plain', size: 3, sha256: '0' }),
    ...long().slice(-1)
  ]);
  assert.equal(place.querySelector('.lsn-answer-head').textContent, 'Answeranswer.txt (3)← wind.csv (1)');
  assert.equal(place.querySelector('.lsn-was-replaced .lsn-replaced').textContent, 'replaced in step 3');
  within(place).getByRole('button', { name: 'wind.csv in step 1' }).click();
  assert.equal(current(), '1');
});

function withCommand(one, command) {
  return one.arguments ? { ...one, arguments: { command } } : one;
}
