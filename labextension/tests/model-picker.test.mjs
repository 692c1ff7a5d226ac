// The form of the side panel in which a person chooses a model.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { place, until, within } from './dom.mjs';
import { load } from './load.mjs';

const trans = (text, ...args) => text.replace(/%(\d)/g, (_, number) => args[number - 1]);
const BAIT = '<img src=x onerror="fired=true">\u202egnp.exe';
const LOCAL = 'http://127.0.0.1:8000/v1';
const MODELS = {
  model: BAIT,
  providers: { openai: ['openai/gpt-5', 'openai/same'] },
  on_this_machine: ['local/qwen2.5-coder-1.5b'],
  scripted: ['scripted/strawberry'],
  local: [{ program: BAIT, api_base: LOCAL, models: ['openai/qwen3', 'openai/same'] }]
};

/** A picker whose kernel answers; `asked` has the lines it was sent. */
async function picker(answer) {
  const { ModelPicker } = await load('lab/model-picker');
  const asked = [];
  const made = new ModelPicker(async line => {
    asked.push(line);
    return answer(line);
  }, trans);
  place.replaceChildren(made.node);
  return { made, asked, form: within(made.node) };
}

async function submit(made, name) {
  made.node.querySelector('input').value = name;
  made.node.querySelector('form').dispatchEvent(new Event('submit', { cancelable: true }));
}

test('nobody asks for local servers before the click, and names are text', async () => {
  const { made, asked, form } = await picker(line =>
    JSON.stringify({ ...MODELS, local: line.includes('--local') ? MODELS.local : null })
  );
  assert.deepEqual(asked, []);
  made.node.open = true;
  await until(() => made.node.querySelectorAll('option').length === 4);
  assert.deepEqual(asked, ['model --json']);
  form.getByText('Look for local servers').click();
  await until(() => made.node.querySelectorAll('option').length === 6);
  assert.deepEqual(asked, ['model --json', 'model --local --json']);
  assert.equal(made.node.querySelector('img'), null);
  assert.doesNotMatch(made.node.outerHTML, /\u202e/);
});

test('a model of a local server is chosen with its address, one of the same name without', async () => {
  const { made, asked, form } = await picker(line => (line.includes('--json') ? JSON.stringify(MODELS) : 'done'));
  form.getByText('Look for local servers').click();
  await until(() => made.node.querySelectorAll('option').length === 6);
  await submit(made, 'openai/qwen3');
  await until(() => form.getByText('done'));
  await submit(made, 'openai/gpt-5');
  await until(() => asked.length === 3);
  await submit(made, "it's; rm");
  await until(() => asked.length === 4);
  assert.deepEqual(asked.slice(1), [
    `model 'openai/qwen3' --api-base '${LOCAL}'`,
    "model 'openai/gpt-5'",
    `model 'it'"'"'s; rm'`
  ]);
});

test('what the kernel refuses is said, and an answer for the notebook before is not shown', async () => {
  let finish = () => undefined;
  const { made, form } = await picker(line => {
    if (line === "model 'busy'") {
      throw new Error(`The kernel is busy. ${BAIT}`);
    }
    return new Promise(done => (finish = done));
  });
  await submit(made, 'busy');
  await until(() => form.getByText(/^The kernel is busy\. <img.*\\u202egnp\.exe$/));
  await submit(made, 'openai/gpt-5');
  made.clear();
  finish('done');
  await new Promise(setImmediate);
  assert.equal(made.node.querySelector('summary').textContent, 'Model');
  assert.equal(form.queryByText('done'), null);
});
