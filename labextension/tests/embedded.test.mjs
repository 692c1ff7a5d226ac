import assert from 'node:assert/strict';
import { test } from 'node:test';
import { load } from './load.mjs';
import { step } from './runs.mjs';

import { deflateSync } from 'node:zlib';

const { asBundle, embeddedArtifact } = await load('embedded');
const { EventFeed, MOST_BYTES: MOST } = await load('feed');
const { decodeBase64, TooLargeError, unpack } = await load('packed');
const { isBelow, within } = await load('paths');

const event = number => ({ id: `e${number}`, parent: null, time: number, kind: 'note', text: 'x' });
const list = count => Array.from({ length: count }, (_, number) => event(number));

test('a list that grows gives only what is new', () => {
  const feed = new EventFeed();
  assert.equal(feed.take(list(3)).length, 3);
  assert.deepEqual(
    feed.take(list(5)).map(each => each.id),
    ['e3', 'e4']
  );
  assert.deepEqual(feed.take(list(5)), []);
});

test('work for an update is that of the new events', () => {
  const feed = new EventFeed();
  feed.take(list(10_000));
  let looked = 0;
  const counted = new Proxy([...list(10_000), event(10_000)], {
    get(target, name) {
      looked += /^\d+$/.test(String(name)) ? 1 : 0;
      return Reflect.get(target, name);
    }
  });
  assert.equal(feed.take(counted).length, 1);
  assert.ok(looked < 10, `${looked} looks`);
});

test('events that came one by one are not given again with the list, and the other way round', () => {
  const feed = new EventFeed();
  assert.equal(feed.add([event(0)]).length, 1);
  assert.deepEqual(
    feed.take(list(2)).map(each => each.id),
    ['e1']
  );
  assert.equal(feed.add([event(1)]).length, 0);
});

test('a piece of streamed text that comes again gives only its new part', () => {
  const feed = new EventFeed();
  const piece = (id, at, text) => ({
    id,
    parent: null,
    time: 1,
    kind: 'model.delta',
    step: 1,
    text,
    reasoning: '',
    at
  });
  const given = (...pieces) => feed.add(pieces).map(event => event.text);
  assert.deepEqual(given(piece('a', 0, 'one ')), ['one ']);
  assert.deepEqual(given(piece('b', 0, 'one two'), piece('c', 4, 'two')), ['two']);
});

test('an event that comes again with the list does not let streamed text come twice', () => {
  const feed = new EventFeed();
  const [requested] = step(1);
  const piece = (id, at, text) => ({
    ...{ id, parent: null, time: 1, kind: 'model.delta', step: 1, text, reasoning: '' },
    at
  });
  feed.add([requested, piece('a', 0, 'one ')]);
  feed.take([requested]);
  assert.deepEqual(
    feed.add([piece('b', 0, 'one two')]).map(event => event.text),
    ['two']
  );
});

test('a list that was replaced is gone through again', () => {
  const feed = new EventFeed();
  feed.take(list(3));
  assert.deepEqual(
    feed.take([event(7), event(1)]).map(each => each.id),
    ['e7']
  );
});

test('what is no event is counted and passed over', () => {
  const feed = new EventFeed();
  const taken = feed.take([
    event(0),
    null,
    7,
    'x',
    [],
    {},
    { id: 1, kind: 'note', time: 0 },
    { ...event(1), text: {} }
  ]);
  assert.deepEqual([taken.length, feed.rejected], [1, 7]);
});

test('what the view does not read may be missing, what it reads may not', () => {
  const whole = step(1).find(one => one.kind === 'call.finished');
  const { stdout, stderr, truncated, ...read } = whole;
  const { observation, ...unread } = whole;
  assert.deepEqual([stdout, stderr, truncated, observation], ['out\n', '', false, 'out\n']);
  assert.equal(new EventFeed().take([whole]).length, 1);
  assert.equal(new EventFeed().take([read]).length, 1);
  assert.equal(new EventFeed().take([unread]).length, 0);
});

test('only something with a list of events is a bundle', () => {
  for (const value of [undefined, null, 7, 'x', [], {}, { events: {} }]) {
    assert.equal(asBundle(value), null);
  }
  const bundle = asBundle({ events: [], artifacts: 'x', live: { run_id: 7 }, run_id: {}, text_limit: 'x' });
  assert.deepEqual([bundle.artifacts, bundle.live, bundle.run_id, bundle.text_limit], [{}, undefined, null, null]);
});

test('a bundle whose version is no number is refused with a sentence', () => {
  for (const version of [undefined, 1, 2, 99]) {
    const bundle = asBundle({ schema_version: version, events: list(2) });
    assert.deepEqual([bundle.events.length, bundle.problem], [2, '']);
  }
  for (const version of ['1', '99', 0, -1, 1.5, true, null, [1]]) {
    const bundle = asBundle({ schema_version: version, events: list(2) });
    assert.deepEqual([bundle.events.length, bundle.schema_version], [0, 0]);
    assert.match(bundle.problem, /^The record in this notebook is not shown, because .+\.$/);
  }
});

test('an embedded file gives its bytes, or why it has none', () => {
  const artifacts = {
    a: { mime: 'text/plain', size: 2, data: 'aGk=' },
    b: { mime: 'x/y', size: 9, omitted: 'Large.' }
  };
  const bundle = asBundle({ events: [], artifacts });
  assert.deepEqual([...embeddedArtifact(bundle, 'a').data], [104, 105]);
  assert.equal(embeddedArtifact(bundle, 'b').omitted, 'Large.');
  for (const name of ['c', 'constructor', '__proto__', 'toString']) {
    assert.equal(embeddedArtifact(bundle, name), null);
  }
});

test('a preview of a table is given when it is one', () => {
  const preview = { columns: [{ name: 'a', type: 'int64' }], rows: [['1']], total_rows: 9 };
  const given = value =>
    embeddedArtifact(
      asBundle({ events: [], artifacts: { t: { mime: 'x/y', size: 1, data: '', preview: value } } }),
      't'
    ).preview;
  assert.deepEqual(given(preview), preview);
  for (const bad of [null, 7, {}, { ...preview, rows: [[{}]] }, { ...preview, columns: [{ name: 1, type: 'x' }] }]) {
    assert.equal(given(bad), undefined);
  }
});

const pack = value => deflateSync(typeof value === 'string' ? value : JSON.stringify(value)).toString('base64');

test('a packed bundle is read as one that is not', () => {
  const artifacts = { a: { mime: 'text/plain', size: 3, text: 'é!' } };
  const bundle = asBundle({ run_id: 'r', packed: pack({ events: list(3), artifacts }) });
  assert.deepEqual([bundle.events, bundle.problem], [list(3), '']);
  assert.deepEqual([...embeddedArtifact(bundle, 'a').data], [0xc3, 0xa9, 0x21]);
});

test('a bomb is refused with a sentence, before it has grown', () => {
  const bomb = pack(`{"events":[],"artifacts":{"a":"${'x'.repeat(MOST)}"}}`);
  assert.ok(bomb.length < 200_000);
  const bundle = asBundle({ packed: bomb });
  assert.deepEqual([bundle.events, bundle.artifacts], [[], {}]);
  assert.match(bundle.problem, /far larger than it says/);
  assert.throws(() => unpack(bomb), TooLargeError);
  assert.ok(unpack(bomb, 2 * MOST).length > MOST, 'the canary: with a higher bound it grows');
});

test('what is damaged is told in a sentence', () => {
  for (const packed of ['', '%%%', 'AAAA', pack({ events: list(9) }).slice(0, 40), pack('[1')]) {
    assert.match(asBundle({ packed }).problem, /damaged/);
  }
  for (const other of ['7', 'null', '{}', '{"events":{}}']) {
    assert.ok(!asBundle({ packed: pack(other) })?.events.length, other);
  }
});

test('a file on the page is found in its figure, and only there', () => {
  const figure = (name, body) => `<figure class='lsn-artifact'><figcaption>${name}</figcaption>${body}</figure>`;
  const page =
    'x&lt;figure class=&#x27;lsn-artifact&#x27;&gt;' +
    figure(
      'packed=&quot;AAAA&quot; src=&#x27;data:;base64,AAAA&#x27;',
      "<img alt='a' src='data:image/png;base64,aGk='>"
    ) +
    figure('b', `<iframe srcdoc="&lt;b&gt;packed=&quot;${pack('page')}&quot;"></iframe>`) +
    figure('c', `<iframe srcdoc="packed=&quot;${pack('x'.repeat(1e6))}&quot;"></iframe>`);
  const given = (number, size) =>
    embeddedArtifact(asBundle({ events: [], artifacts: { f: { mime: 'x/y', size, figure: number } } }, page), 'f').data;
  assert.equal(Buffer.from(given(0, 2)).toString(), 'hi');
  assert.equal(Buffer.from(given(1, 4)).toString(), 'page');
  for (const [number, size] of [
    [0, 3],
    [1, 3],
    [2, 10],
    [3, 1],
    [-1, 0],
    [0.5, 2]
  ]) {
    assert.equal(given(number, size), undefined, `${number} ${size}`);
  }
});

test('what is not base64 has no bytes', () => assert.equal(decodeBase64('%%%').length, 0));

test('paths lead only below where they start', () => {
  for (const good of ['a', 'files/a b.png', 'sandbox-runs/x/files/é', 'a..b', '.hidden']) {
    assert.equal(isBelow(good), true, good);
  }
  for (const bad of [
    '',
    '/etc/passwd',
    '../x',
    'a/../../x',
    'a/..',
    'https://x',
    'javascript:x',
    '\\\\host',
    'a\\..',
    'a\nb'
  ]) {
    assert.equal(isBelow(bad), false, bad);
  }
  assert.deepEqual([within('', 'a'), within('x/', 'a'), within('x', 'a')], ['a', 'x/a', 'x/a']);
});
