// Subcommands of %sandbox as they are sent to a kernel.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { load } from './load.mjs';

/** A kernel that answers each request; `sent` has the code. */
function kernel() {
  const sent = [];
  const requestExecute = ({ code }) => {
    sent.push(code);
    return { done: Promise.resolve({ content: { status: 'ok' } }) };
  };
  return { sent, requestExecute };
}

test('a restarted kernel loads the extension before a rewind', async () => {
  const { executeMagic, executeMagicAnew } = await load('lab/kernel');
  const { sent, ...fake } = kernel();
  await executeMagic(fake, 'model');
  await executeMagicAnew(fake, "rewind 3 both --run 'it'");
  assert.deepEqual(sent, [
    `get_ipython().run_line_magic('sandbox', "model")`,
    `get_ipython().extension_manager.load_extension('llm_sandbox_nb')
get_ipython().run_line_magic('sandbox', "rewind 3 both --run 'it'")`
  ]);
});
