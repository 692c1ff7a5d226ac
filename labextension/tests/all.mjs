// Runs the tests of every file in one process, which bundles the view and makes the DOM once.
import { readdirSync } from 'node:fs';
import { test } from 'node:test';

let open;
// The first test holds the others back: without it the runner would end, and close the DOM, between two files.
test('all files are read', () => new Promise(done => (open = done)));
for (const name of readdirSync(new URL('.', import.meta.url)).sort()) {
  if (name.endsWith('.test.mjs')) {
    await import(`./${name}`);
  }
}
open();
