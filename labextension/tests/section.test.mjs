// A sandbox in the side panel, and the keys of a run in a tab.
import assert from 'node:assert/strict';
import { mock, test } from 'node:test';
import { place, until } from './dom.mjs';
import { load } from './load.mjs';

globalThis.DragEvent ??= class extends window.MouseEvent {}; // the classes of drag and drop are made when Lab's are read
const trans = (text, ...args) => text.replace(/%(\d)/g, (_, number) => args[number - 1]);
const sandbox = root => ({
  ...{ id: 's', kernel_id: 'k', notebook: 'a.ipynb', state: 'running', last_activity: '', requests: 0, root },
  ...{ protection: null, terminal: null }
});

async function section(api) {
  const { SandboxSection } = await load('lab/section');
  return new SandboxSection(sandbox('/one'), { api: { files: async () => [], ...api }, trans });
}

test('a person who looks again while a measurement is under way has one series of measurements', async () => {
  mock.timers.enable({ apis: ['setTimeout'] });
  try {
    const answers = [];
    const shown = await section({ usage: () => new Promise(done => answers.push(done)) });
    for (const visible of [true, false, true, false, true]) {
      shown.setVisible(visible);
    }
    const usage = { time: 1, processes: 1, cpu_seconds: 1, memory_bytes: 1 };
    answers.splice(0).forEach(answer => answer(usage));
    await new Promise(setImmediate);
    mock.timers.tick(60_000);
    assert.equal(answers.length, 1);
    shown.dispose();
  } finally {
    mock.timers.reset();
  }
});

test('after a reset the files are those of the new folder', async () => {
  const listed = [];
  const shown = await section({ files: async (_id, path) => (listed.push(path), []) });
  place.replaceChildren(shown.node);
  const folder = shown.node.querySelector('.lsn-panel-files');
  folder.open = true;
  await until(() => listed.length === 1);
  shown.update(sandbox('/two'), undefined);
  await until(() => listed.length === 2);
  assert.deepEqual(listed, ['/one', '/two']);
  assert.equal(shown.node.querySelectorAll('.lsn-files').length, 1);
  shown.dispose();
});

test('a file goes into the folder that is listed, and not into one that cannot be', async () => {
  const { FilesView } = await load('lab/files');
  const uploaded = [];
  const view = new FilesView({
    root: '/w',
    trans,
    list: async folder => {
      if (folder !== '/w') {
        throw new Error('No such folder.');
      }
      return [{ path: '/w/gone', kind: 'directory', size: 0 }];
    },
    upload: async path => void uploaded.push(path)
  });
  place.replaceChildren(view.node);
  await view.refresh();
  view.node.querySelector('.lsn-file-name').click();
  await until(() => view.node.querySelector('.lsn-panel-note').textContent === 'No such folder.');
  const picker = view.node.querySelector('input[type=file]');
  Object.defineProperty(picker, 'files', { value: [{ name: 'a.txt' }] });
  picker.dispatchEvent(new window.Event('change'));
  await until(() => uploaded.length === 1);
  assert.deepEqual(uploaded, ['/w/a.txt']);
});

test('arrows scroll a table or a diff that has the keyboard, and elsewhere go from step to step', async () => {
  const { TabTools } = await load('tab-tools');
  const went = [];
  const tools = new TabTools(() => ({ goOn: by => went.push(by) }), place, trans);
  place.innerHTML = '<p></p><div class="lsn-diff"></div><div class="lsn-table-place"><table></table></div>';
  for (const target of place.querySelectorAll('*')) {
    target.dispatchEvent(new window.KeyboardEvent('keydown', { key: 'ArrowDown', bubbles: true, cancelable: true }));
  }
  assert.deepEqual(went, [1]);
  tools.dispose();
});
