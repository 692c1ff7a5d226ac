// What Lab is told of the extension before any of it runs: shortcuts, kinds of files, what is shared with others.
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { test } from 'node:test';
import { load } from './load.mjs';

const read = name => readFileSync(new URL(`../${name}`, import.meta.url), 'utf8');
const schema = JSON.parse(read('schema/plugin.json'));
const shortcuts = schema['jupyter.lab.shortcuts'];
const words = keys => keys.flatMap(chord => chord.split(' '));

/** Whether these keys are what AltGr and a letter are on Windows. */
const isAltGr = keys => words(keys).includes('Alt') && words(keys).some(word => word === 'Ctrl' || word === 'Accel');

test('no shortcut is a letter that is typed with AltGr', () => {
  assert.ok(isAltGr(['Accel Alt S']) && isAltGr(['Ctrl Alt B']) && !isAltGr(['Shift F9']));
  assert.ok(shortcuts.length > 0);
  assert.deepEqual(
    shortcuts.flatMap(({ keys, winKeys, linuxKeys, macKeys }) =>
      [keys, winKeys, linuxKeys, macKeys].filter(one => one && isAltGr(one))
    ),
    []
  );
});

test('no plugin binds keys beside the schema, where a person can change them', () => {
  const sources = readdirSync(new URL('../src', import.meta.url), { recursive: true }).filter(name =>
    name.endsWith('.ts')
  );
  assert.ok(sources.includes('lab/plugin.ts'));
  assert.deepEqual(
    sources.filter(name => /addKeyBinding/.test(read(`src/${name}`))),
    []
  );
});

test('a letter is a shortcut only while no text is edited', () => {
  const letters = shortcuts.filter(({ keys }) => /^(Shift )?[A-Z]$/.test(keys[0]));
  assert.deepEqual(
    letters.map(({ command }) => command),
    ['llm-sandbox:insert-cell']
  );
  for (const { selector } of letters) {
    assert.match(selector, /\.jp-mod-commandMode:not\(\.jp-mod-readWrite\) :focus:not\(:read-write\)$/);
  }
});

test('files of other projects open as they did; ours open here by choice', async () => {
  const { recordFileTypes: fileTypes, recordWidget: factory } = await load('record-files');
  const kind = name => fileTypes.find(({ pattern }) => name.match(pattern))?.name;
  assert.equal(kind('journal.jsonl'), 'llm-sandbox-journal');
  assert.equal(kind('trajectory.json'), 'llm-sandbox-trajectory');
  assert.equal(kind('task.traj'), 'llm-sandbox-traj');
  assert.equal(kind('task.traj.json'), 'llm-sandbox-traj');
  for (const other of [
    'my-journal.jsonl',
    'journal.jsonl.gz',
    'old_trajectory.json',
    'trajectory.jsonl',
    'a.traj.gz',
    'traj'
  ]) {
    assert.equal(kind(other), undefined, other);
  }
  assert.deepEqual(
    fileTypes.flatMap(({ extensions }) => extensions),
    []
  );
  assert.equal(factory.defaultFor, undefined);
  assert.equal(factory.defaultRendered, undefined);
  assert.match(read('src/mime.ts'), /fileTypes: recordFileTypes,\n    documentWidgetFactoryOptions: recordWidget\n/);
  assert.deepEqual(
    factory.fileTypes,
    fileTypes.map(({ name }) => name)
  );
});
