// The form of the side panel with which a person lets outside agents use a sandbox.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { place, until, within } from './dom.mjs';
import { load } from './load.mjs';

const trans = (text, ...args) => text.replace(/%(\d)/g, (_, number) => args[number - 1]);
const LINES = 'claude mcp add --header "Authorization: Bearer lsnb_secret" <img src=x onerror="fired=true">';

/** A form whose server has a token or not; `asked` has what the form did. */
async function form(server) {
  const { McpAccess } = await load('lab/mcp-access');
  const asked = [];
  const state = { exists: false, run: null, agrees: true, ...server };
  const actions = {
    access: async () => {
      state.read = true;
      return { exists: state.exists, run: state.run };
    },
    make: async () => {
      asked.push('make');
      if (state.refuses) {
        throw new Error(state.refuses);
      }
      state.exists = true;
      return LINES;
    },
    revoke: async () => {
      asked.push('revoke');
      state.exists = false;
    },
    open: async () => {
      asked.push('open');
      state.run = 'run-1';
    },
    confirm: async title => {
      asked.push(title);
      return state.agrees;
    },
    copy: async text => void asked.push(`copy ${text.length}`)
  };
  const made = new McpAccess(actions, trans);
  place.replaceChildren(made.node);
  const found = within(made.node);
  const field = made.node.querySelector('textarea');
  const click = name => found.getByText(name).click();
  made.node.open = true;
  await until(() => !!state.read && !found.getByText('Revoke').disabled);
  return { made, asked, state, found, field, click };
}

test('a token is made, shown as text once, copied, and hidden with its part of the panel', async () => {
  const { made, asked, found, field, click } = await form();
  assert.match(found.getByRole('status').textContent, /^There is no token.*does not accept calls/);
  assert.equal(found.getByText('Revoke').hidden, true);
  click('Make a token');
  await until(() => field.value === LINES && found.getByText('Replace the token…'));
  assert.equal(field.readOnly, true);
  assert.equal(made.node.querySelector('img'), null);
  click('Copy');
  await until(() => asked.includes(`copy ${LINES.length}`));
  assert.equal(field.value, LINES);
  made.node.open = false;
  await until(() => field.value === '');
  made.node.open = true;
  await until(() => !found.getByText('Replace the token…').disabled);
  assert.equal(field.value, '');
  assert.doesNotMatch(made.node.outerHTML, /lsnb_secret/);
  assert.deepEqual(asked, ['make', `copy ${LINES.length}`]);
});

test('a token that exists is replaced only if the person agrees', async () => {
  const { asked, state, found, field, click } = await form({ exists: true, agrees: false });
  click('Replace the token…');
  await until(() => asked.length === 1);
  await new Promise(setImmediate);
  assert.deepEqual([asked, field.value], [['Replace the token?'], '']);
  state.agrees = true;
  await until(() => !found.getByText('Replace the token…').disabled);
  click('Replace the token…');
  await until(() => field.value === LINES);
  assert.deepEqual(asked, ['Replace the token?', 'Replace the token?', 'make']);
});

test('revoking removes the token from the server and from the page', async () => {
  const { asked, found, field, click } = await form();
  click('Make a token');
  await until(() => field.value === LINES && !found.getByText('Revoke').disabled);
  click('Revoke');
  await until(() => found.getByText('Make a token') && field.value === '');
  assert.deepEqual(asked, ['make', 'revoke']);
});

test('calls are accepted with a click, and a refusal of the server is shown as text', async () => {
  const refuses = 'This site does not allow MCP: <b>no</b>.';
  const { made, found, click } = await form({ refuses });
  click('Accept calls');
  await until(() => /accepts calls/.test(found.getByRole('status').textContent));
  assert.equal(found.getByText('Accept calls').hidden, true);
  click('Make a token');
  await until(() => found.getByRole('alert').textContent === refuses);
  assert.equal(made.node.querySelector('b'), null);
});
