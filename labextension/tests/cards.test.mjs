// The card in an output of JupyterLab: a run that is followed, and what a terminal wrote.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { place, until, within } from './dom.mjs';
import { loadFile } from './load.mjs';
import { bundle, chained, started, step } from './runs.mjs';

globalThis.DragEvent ??= class extends window.MouseEvent {}; // the classes of drag and drop are made when Lab's are read
const cards = new URL('cards.ts', import.meta.url).pathname;
const { extensions, liveOffer, MimeHost, pastOffer } = await loadFile(cards);
const MIME = 'application/vnd.llm-sandbox.trajectory+json';

test('a run whose kernel was given up can be controlled again once the kernel is back', async () => {
  let sink = null;
  const nothing = async () => undefined;
  const controls = { stop: nothing, pause: nothing, resume: nothing, say: nothing };
  liveOffer.resolve((_run, given) => {
    sink = given;
    return { controls, artifact: async () => null, dispose: () => undefined };
  });
  pastOffer.resolve(async () => null);
  const card = extensions[0].rendererFactory.createRenderer({});
  const live = { run_id: 'r1', server: true, folder: null };
  const data = { [MIME]: { ...bundle(chained([started('Count.'), ...step(1)])), live } };
  place.replaceChildren(card.node);
  await card.renderModel({ data, trusted: true, metadata: {} });
  await until(() => sink !== null);
  const stop = () => within(card.node).queryByRole('button', { name: 'Stop' });
  sink.known();
  await until(() => stop() !== null);
  sink.ended();
  await until(() => stop() === null);
  sink.known();
  await until(() => stop() !== null);
  assert.match(card.node.querySelector('.lsn-badge').textContent, /^Running/);
  card.dispose();
});

test('an address that a terminal wrote in colours is no link', async () => {
  const host = new MimeHost({ sanitizer: { sanitize: html => html } });
  const node = document.createElement('pre');
  place.replaceChildren(node);
  host.renderAnsi('\u001b[31mhttp://view.test/logout\u001b[0m', node);
  await until(() => node.textContent.includes('logout'));
  assert.equal(node.querySelector('a'), null);
});
