// Names that a model or a sandbox chose, in the lists of the side panel.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { place } from './dom.mjs';
import { load } from './load.mjs';

const BAIT = '<img src=x onerror="fired=true">\u202egnp.\u2066exe\u200b';
const SHOWN = '<img src=x onerror="fired=true">\\u202egnp.\\u2066exe\\u200b';
const HIDDEN = /[\u200b\u202e\u2066]/;
const trans = (text, ...args) => text.replace(/%(\d)/g, (_, number) => args[number - 1]);

/** Neither an element nor a hidden letter came of a name, in text or in attributes. */
function assertHarmless(node) {
  assert.equal(node.querySelector('img'), null);
  assert.doesNotMatch(node.textContent, HIDDEN);
  for (const element of [node, ...node.querySelectorAll('*')]) {
    for (const { name, value } of element.attributes) {
      assert.ok(!name.startsWith('on'), name);
      assert.ok(name === 'data-run' || !HIDDEN.test(value), `${name}=${value}`);
    }
  }
}

test('the task of a run and the task of its fork are text', async () => {
  const { RunsView } = await load('lab/runs');
  const run = { id: 'r1', task: BAIT, started: 0, state: 'submitted', steps: 1, forked_from: null, journal: null };
  const runs = [run, { ...run, id: 'r2', forked_from: 'r1' }];
  const view = new RunsView({ ofNotebook: async () => ({ runs, total: 2 }) }, () => undefined, trans);
  place.replaceChildren(view.node);
  await view.show('a.ipynb', []);
  const tasks = [...view.node.querySelectorAll('.lsn-run-task')].map(one => one.textContent);
  assert.deepEqual(tasks, [SHOWN, SHOWN]);
  assertHarmless(view.node);
});

test('the answer of a run is one line of text; a run that is live has no answer yet', async () => {
  const { RunsView } = await load('lab/runs');
  const answer = `${BAIT} is longer than a few letters\nmore`;
  const words = { words: 'Submitted', meaning: 'ok', steps: 1, forked_from: null, journal: null };
  const run = { id: 'r1', task: 'Count', started: 0, state: 'submitted', answer, ...words };
  const runs = [run, { ...run, id: 'r2', live: true }, { ...run, id: 'r3', answer: null }];
  const view = new RunsView({ ofNotebook: async () => ({ runs, total: 3 }) }, () => undefined, trans);
  place.replaceChildren(view.node);
  await view.show('a.ipynb', []);
  const answers = [...view.node.querySelectorAll('.lsn-run')].map(one => one.querySelector('.lsn-run-answer'));
  assert.deepEqual(
    answers.map(one => one?.textContent),
    [`→ ${SHOWN} is longer than a few letters …`, undefined, undefined]
  );
  assert.match(view.node.querySelector('[data-run=r1]').getAttribute('aria-label'), /Answer: .* few letters/);
  assertHarmless(view.node);
});

test('runs that cannot be read are not said to be none', async () => {
  const { RunsView } = await load('lab/runs');
  const answers = [Promise.reject(new Error(`Denied ${BAIT}`)), Promise.resolve({ runs: [], total: 0 })];
  const view = new RunsView({ ofNotebook: () => answers.shift() }, () => undefined, trans);
  const note = view.node.querySelector('.lsn-panel-note');
  await view.show('a.ipynb', []);
  view.update([]);
  assert.match(note.textContent, /^The runs cannot be read: Denied </);
  await view.show('a.ipynb', []);
  assert.equal(note.textContent, 'No run yet.');
});

test('names of files and folders are text, and so is what an error says of them', async () => {
  const { FilesView } = await load('lab/files');
  const kinds = ['file', 'directory', 'link'];
  const source = {
    root: '/testbed',
    trans,
    list: async folder => kinds.map(kind => ({ path: `${folder}/${kind}${BAIT}`, kind, size: 1 })),
    open: async file => {
      throw new Error(`No file ${file.path}`);
    }
  };
  const view = new FilesView(source);
  place.replaceChildren(view.node);
  await view.refresh();
  const names = [...view.node.querySelectorAll('.lsn-file-name')];
  assert.deepEqual(
    names.map(one => one.textContent),
    [`directory${SHOWN}/`, `file${SHOWN}`, `link${SHOWN}`]
  );
  assertHarmless(view.node);
  names[1].click();
  await new Promise(setImmediate);
  assert.equal(view.node.querySelector('.lsn-panel-note').textContent, `No file /testbed/file${SHOWN}`);
  names[0].click();
  await new Promise(setImmediate);
  assert.equal(view.node.querySelector('.lsn-files-place').textContent, `testbed/directory${SHOWN}`);
  assertHarmless(view.node);
});

test('the words of a server that refuses are shown with their hidden letters', async () => {
  const { Sandboxes } = await load('lab/sandboxes');
  const refuses = async () => {
    throw new Error('No \u202egnp.\u2066exe');
  };
  const sandboxes = new Sandboxes({ list: refuses }, { list: refuses });
  await sandboxes.refresh();
  assert.equal(sandboxes.problem, 'No \\u202egnp.\\u2066exe');
  sandboxes.dispose();
});
