// What files decode to, by their headers: what is above a bound waits for a click. What they then take: tests/browser/test_bombs.py.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { cpuTime } from './cpu.mjs';
import { lsn, place, until } from './dom.mjs';
import { bundle, event } from './runs.mjs';

const table = JSON.parse(readFileSync(new URL('../../tests/data/media_sizes.json', import.meta.url), 'utf8'));
const read = {
  picture: bytes => {
    const size = lsn.pictureSize(bytes);
    return size && [size.width, size.height, size.frames, size.depth];
  },
  sound: bytes => lsn.soundSize(bytes)?.samples ?? null,
  film: bytes => {
    const size = lsn.videoSize(bytes);
    return size && [size.width, size.height];
  }
};

for (const { name, kind, data, is } of table) {
  test(`the size of a ${kind}: ${name}`, () => {
    const bytes = new Uint8Array(Buffer.from(data, 'base64'));
    assert.deepEqual(read[kind](bytes), is);
    for (const other of Object.values(read)) {
      for (let end = 0; end < bytes.length; end += Math.ceil(bytes.length / 50)) {
        other(bytes.subarray(0, end)); // half a file throws nothing
      }
    }
  });
}

const element = (id, content) =>
  Buffer.concat([Buffer.from(id, 'hex'), Buffer.from([0x40 | (content.length >> 8), content.length & 255]), content]);
const bits = (...parts) => {
  const text = parts.map(([value, count]) => value.toString(2).padStart(count, '0')).join('');
  return Buffer.from(
    text
      .padEnd(8 * 40, '0')
      .match(/.{8}/g)
      .map(byte => parseInt(byte, 2))
  );
};
const vp9Key = bits(
  [2, 2],
  [0, 2],
  [0, 1],
  [0, 1],
  [1, 1],
  [0, 1],
  [0x498342, 24],
  [1, 3],
  [0, 1],
  [15999, 16],
  [8999, 16]
);
const vp9Inter = bits([2, 2], [0, 2], [0, 1], [1, 1], [1, 1], [1, 1], [0, 20], [0, 3], [15999, 16], [8999, 16]);
const vp8Key = Buffer.concat([
  Buffer.from('1000009d012a', 'hex'),
  Buffer.from(Uint16Array.of(15999 + 1, 8999 + 1).buffer),
  Buffer.alloc(20)
]);
const small = bits([2, 2], [0, 2], [0, 1], [0, 1], [1, 1], [0, 1], [0x498342, 24], [1, 3], [0, 1], [15, 16], [15, 16]);
const several = Buffer.concat([small, vp9Key, Buffer.from([0xc1, small.length, vp9Key.length, 0xc1])]);
for (const [name, frame, is] of [
  ['VP8', vp8Key, [16000, 9000]],
  ['VP9', vp9Key, [16000, 9000]],
  ['VP9, not a key frame', vp9Inter, [16000, 9000]],
  ['VP9, two frames in a block', several, [16000, 9000]],
  ['as its header says', small, [64, 64]]
]) {
  test(`a film whose frames are larger than its header says: ${name}`, () => {
    const video = element(
      'ae',
      element('e0', Buffer.concat([element('b0', Buffer.of(64)), element('ba', Buffer.of(64))]))
    );
    const block = element('a3', Buffer.concat([Buffer.of(0x81, 0, 0, 0x80), frame]));
    const parts = Buffer.concat([element('1654ae6b', video), element('1f43b675', block)]);
    const bytes = Buffer.concat([
      element('1a45dfa3', element('4282', Buffer.from('webm'))),
      element('18538067', parts)
    ]);
    assert.deepEqual(read.film(new Uint8Array(bytes)), is);
  });
}

test('bytes after a film do not hide its size', () => {
  for (const { name, data, is } of table.filter(row => row.kind === 'film' && row.is)) {
    for (const rest of ['0000', '01', 'a3', 'ffffffff', '000000106d646174120a', '000000306d646174120a0b0000']) {
      const bytes = new Uint8Array(Buffer.concat([Buffer.from(data, 'base64'), Buffer.from(rest, 'hex')]));
      assert.deepEqual(read.film(bytes), is, `${name} ${rest}`);
    }
  }
});

test('a film or a sound with more tracks than any has is not searched, and waits for a click', () => {
  const from = cpuTime();
  const bytes = new Uint8Array(Buffer.from(`1a45dfa380${'ae80'.repeat(100_000)}${'a380'.repeat(100_000)}`, 'hex'));
  assert.deepEqual(read.film(bytes), [65536, 65536]);
  assert.equal(read.sound(bytes), Infinity);
  assert.ok(cpuTime() - from < 1000);
});

test('a picture that names its content a hundred million times is not searched, and waits for a click', () => {
  const from = cpuTime();
  const items = '0000001c696c6f6300000000000000020000' + '0000ffff' + '00000000ffff';
  const bytes = new Uint8Array(Buffer.from(`000000106674797061766966${'00'.repeat(4)}${items.repeat(1000)}`, 'hex'));
  assert.deepEqual(read.picture(bytes).slice(0, 2), [65536, 65536]);
  assert.ok(cpuTime() - from < 1000);
});

test('any bytes cost little', () => {
  const from = cpuTime();
  for (const step of [1, 7, 255]) {
    const bytes = Uint8Array.from({ length: 2_000_000 }, (_, i) => (i * step) % 256);
    for (const start of [
      '',
      'RIFF0000WEBP',
      'GIF89a',
      'OggS',
      'fLaC',
      '0000ftypavif',
      '\x1a\x45\xdf\xa3',
      '\xff\xd8\xff'
    ]) {
      bytes.set(Buffer.from(start, 'latin1'));
      Object.values(read).forEach(one => one(bytes));
    }
  }
  assert.ok(cpuTime() - from < 15_000);
});

const copies = levels =>
  `<svg><rect id="g0"/>${Array.from({ length: levels }, (_, i) => `<g id="g${i + 1}">${`<use href="#g${i}"/>`.repeat(10)}</g>`).join('')}</svg>`;
const large = `data:image/png;base64,${table.find(row => row.name === 'cut png').data}`;
const PAGES = {
  'a plain page': ['<h1>a</h1>'.repeat(100), 300, 0],
  'a circle': ['<svg><g id="a"><use href="#a"/></g></svg>', 10, 0],
  copies: [copies(6), 1e6, 0],
  'formatting that nobody ends': [
    `${Array.from({ length: 500 }, (_, i) => `<b a=${i}>`).join('')}${'<p>'.repeat(500)}`,
    200_000,
    0
  ],
  'a picture': [`<img src="${large}">`, 1, 7.2e9],
  'a picture in a style': [`<style>p { background: url("\\64 ata${large.slice(4)}") }</style>`, 1, 7.2e9],
  'more attributes than any element has': [
    `<img ${Array.from({ length: 2000 }, (_, i) => `a${i}`).join(' ')} src="${large}">`,
    1e6,
    0
  ],
  'a drawing in a page': [`<img src="data:image/svg+xml,${encodeURIComponent(copies(6))}">`, 1e6, 0],
  cells: ['<td colspan=1000>'.repeat(2) + '<table><tr>' + '<td colspan=1000>'.repeat(100), 100_000, 0]
};

for (const [name, [text, elements, bytes]] of Object.entries(PAGES)) {
  test(`what a page takes: ${name}`, () => {
    const cost = lsn.pageCost(text);
    assert.equal(cost.bytes, bytes);
    assert.ok(
      name.startsWith('a ') && !bytes && !/in a page/.test(name) ? cost.elements < elements : cost.elements >= elements
    );
  });
}

const MARKDOWN = [
  ['# a\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n- x\n  - y\n    > z\n', false],
  [`${'|a'.repeat(2000)}\n${'|-'.repeat(2000)}\n${'|b\n'.repeat(500)}`, true],
  ['>'.repeat(1000), true],
  ['- '.repeat(1000), true],
  ['_a '.repeat(3000), true],
  ['**a'.repeat(3000), true],
  [`a${'*'.repeat(3000)}x`, true],
  ['- **a** and _b_\n'.repeat(3000), false],
  ['The **first** of _these_ words.\n\n'.repeat(3000), false],
  [`\`\`\`\n${'the_name_of_it = one_other\n'.repeat(3000)}\`\`\`\n`, false]
];
test('Markdown that costs too much is text', () =>
  MARKDOWN.forEach(([text, heavy]) => assert.equal(lsn.isHeavyMarkdown(text), heavy, text.slice(0, 20))));

test('a line made to keep the search for tables busy is looked at in a moment', () => {
  const from = cpuTime();
  for (const line of [`|-${'|  '.repeat(100)}x`, `-|${' '.repeat(200_000)}x`, `${' '.repeat(200_000)}x`]) {
    assert.equal(lsn.isHeavyMarkdown(line), false);
  }
  assert.ok(cpuTime() - from < 1000);
});

test('what a PDF says of itself', () => {
  const text = '<</Type /Pages /Count 900>> <</Subtype /Image /Width 20 /Height 10>> trailer <</Size 77>>';
  assert.deepEqual(lsn.pdfSize(text), { pages: 900, objects: 77, pictures: 800 });
  const from = cpuTime();
  lsn.pdfSize('/Subtype/Image/Width 9/Height 9 '.repeat(1_000_000));
  assert.ok(cpuTime() - from < 4000);
});

test('a file above a bound is made only after a click, by its content and whatever its name', async () => {
  const picture = Buffer.from(table.find(row => row.name === 'cut png').data, 'base64');
  const saved = event('artifact', {
    step: null,
    path: 'a.jpg',
    mime: '',
    size: picture.length,
    sha256: '0'.repeat(64)
  });
  place.replaceChildren();
  lsn.showFile(bundle([saved], { 'a.jpg': picture }), 'a.jpg');
  await until(() => place.querySelector('.lsn-artifact-body:not([aria-busy])'));
  assert.match(place.textContent, /This picture decodes to 6\.7 GB \(30000 × 30000 pixels\)/);
  assert.equal(place.querySelector('img'), null);
  [...place.querySelectorAll('button')].find(one => one.textContent === 'Show it anyway').click();
  assert.ok(place.querySelector('img'));
  lsn.show(bundle([saved], { 'a.jpg': picture }));
  await until(() => place.querySelector('.lsn-artifact-body:not([aria-busy])'));
  assert.equal(place.querySelector('.lsn-out img'), null, 'nor is it shown small');
});
