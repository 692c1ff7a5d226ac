// What is shown of files, and what a hostile one costs. Pictures, sound, frames and downloads are tested in Chromium.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { cpuTime } from './cpu.mjs';
import { lsn, place, until } from './dom.mjs';
import { bundle, event } from './runs.mjs';

const bytes = text => new TextEncoder().encode(text);
const all = selector => [...place.querySelectorAll(selector)];
const texts = selector => all(selector).map(one => one.textContent);
const page = () => place.querySelector('.lsn-artifact').textContent;

/** Show one file and wait until it is there. `entry` is added to what the bundle keeps of it. */
async function show(path, data, entry = {}) {
  place.replaceChildren();
  const saved = event('artifact', { step: null, path, mime: '', size: data.length, sha256: '0'.repeat(64) });
  const run = bundle([saved], { [path]: data });
  Object.assign(run.artifacts[path], entry);
  lsn.showFile(run, path);
  await until(() => place.querySelector('.lsn-artifact-body:not([aria-busy])'));
}

const number = (value, size) => Buffer.from(value.toString(16).padStart(size * 2, '0'), 'hex');

function midi(events, { length, division = 480 } = {}) {
  const track = Buffer.concat(events);
  const head = Buffer.concat([Buffer.from('MThd'), number(6, 4), number(0, 2), number(1, 2), number(division, 2)]);
  return new Uint8Array(Buffer.concat([head, Buffer.from('MTrk'), number(length ?? track.length, 4), track]));
}

const raw = (...values) => Buffer.from(values);
const NOTES = [60, 64, 67].map(pitch => raw(0, 0x90, pitch, 90, 0x83, 0x60, 0x80, pitch, 0));
const END = raw(0, 0xff, 0x2f, 0);
const TEMPO = raw(0, 0xff, 0x51, 3, 0x0f, 0x42, 0x40);
const head = (format, tracks, division) =>
  Buffer.concat([Buffer.from('MThd'), number(6, 4), number(format, 2), number(tracks, 2), number(division, 2)]);
const MIDI = {
  whole: [midi([TEMPO, ...NOTES, END]), 3, false],
  'a track longer than the file': [midi([...NOTES, END], { length: 2 ** 32 - 1 }), 3, true],
  'a text longer than the file': [midi([...NOTES, raw(0, 0xff, 1, 0x7f)]), 3, true],
  'an endless message': [midi([...NOTES, raw(0, 0xf0, 0xff, 0xff, 0xff, 0x7f)]), 3, true],
  'an endless number': [midi([...NOTES, raw(0xff, 0xff, 0xff, 0xff, 0xff, 0xff)]), 3, true],
  'no status': [midi([NOTES[0], Buffer.alloc(5)]), 1, true],
  empty: [midi([]), 0, false],
  'no division': [midi([...NOTES, END], { division: 0 }), 3, false],
  'no frames': [midi([...NOTES, END], { division: 0x8000 }), 3, false],
  'too many notes': [midi(Array(30_000).fill(raw(0, 0x90, 0x3c, 0x40, 0, 0x80, 0x3c, 0))), 20_000, true],
  'a head of nothing': [Buffer.concat([Buffer.from('MThd'), Buffer.alloc(40, 0xff)]), 0, false],
  'half a head': [Buffer.from('MThd'), 0, false],
  'too many tracks': [Buffer.concat([head(1, 9, 96), ...Array(50_000).fill(Buffer.from('MTrk\0\0\0\0'))]), 0, false]
};

for (const [name, [data, notes, damaged]] of Object.entries(MIDI)) {
  test(`a MIDI file with ${name}`, () => {
    const from = cpuTime();
    const score = lsn.parseMidi(data);
    assert.ok(cpuTime() - from < 3000);
    assert.deepEqual([score.notes.length, score.damaged], [notes, damaged]);
    assert.ok(Number.isFinite(score.seconds));
  });
}

test('the tempo of a MIDI file is heeded, and another file is none', () => {
  const starts = lsn.parseMidi(midi([TEMPO, ...NOTES, END])).notes.map(note => Math.round(note.start * 1000));
  assert.deepEqual(starts, [0, 1000, 2000]);
  assert.equal(lsn.parseMidi(bytes('RIFF....')), null);
});

test('CSV is a table with types', async () => {
  const rows = Array.from({ length: 500 }, (_, i) => `${i},${i / 2},2026-01-0${(i % 9) + 1},"a ""b"", c",`);
  await show('t.csv', bytes(`n,half,day,text,none\r\n${rows.join('\n')}\n`));
  const heads = all('.lsn-table th').map(one => [one.firstChild.data, one.querySelector('small').textContent]);
  const expected = { n: 'integer', half: 'number', day: 'date', text: 'text', none: 'empty' };
  assert.deepEqual(Object.fromEntries(heads), expected);
  assert.equal(all('.lsn-table tbody tr').length, 100);
  assert.equal(texts('.lsn-table tbody tr:first-child td')[3], 'a "b", c');
  assert.match(page(), /The first 100 rows/);
});

test('other delimiters', async () => {
  await show('t.tsv', bytes('a\tb\n1\tx,y\n'));
  assert.deepEqual(texts('.lsn-table td'), ['1', 'x,y']);
  await show('t.csv', bytes('a;b\n1,5;2\n'));
  assert.deepEqual(texts('.lsn-table td'), ['1,5', '2']);
});

const TABLES = {
  commas: ','.repeat(4e6),
  'an open quote': `"${'a'.repeat(4e6)}`,
  quotes: '"'.repeat(3_999_999),
  'one cell': 'a'.repeat(4e6),
  lines: '\n'.repeat(4e6),
  rows: 'a,b\n'.repeat(1e6),
  'wide rows': `${Array(1000).fill('x'.repeat(1000)).join(',')}\n`.repeat(4)
};

for (const [name, text] of Object.entries(TABLES)) {
  test(`a huge table of ${name} costs little`, async () => {
    const from = cpuTime();
    await show('t.csv', bytes(text));
    assert.ok(cpuTime() - from < 15_000);
    assert.ok(all('*').length < 12_000);
  });
}

test('any bytes as a table cost little', async () => {
  await show(
    't.csv',
    Uint8Array.from({ length: 2_560_000 }, (_, i) => i % 256)
  );
  assert.ok(all('*').length < 12_000);
});

test('a preview of Parquet', async () => {
  const preview = { columns: [{ name: 'a<b', type: 'int64' }], rows: [['1'], ['2']], total_rows: 1234 };
  await show('t.parquet', bytes('PAR1'), { preview });
  assert.match(page(), /first 2 of 1,234 rows/);
  assert.match(page(), /a<b/);
});

/** Unfold what has this label. */
function open(label) {
  const branch = all('details').find(one => one.querySelector('summary').textContent === label);
  branch.open = true;
  branch.dispatchEvent(new Event('toggle'));
}

test('JSON is a tree', async () => {
  const list = JSON.stringify(Array.from({ length: 250 }, (_, i) => i));
  await show('a.json', bytes(`{"list": ${list}, "__proto__": {"x": null}, "s": "te\u202ext"}`));
  for (const part of ['list: [250]', '__proto__: {1}', '"te\\u202ext"']) {
    assert.ok(page().includes(part), part);
  }
  open('list: [250]');
  for (const more of ['150 more', '50 more']) {
    all('button')
      .find(one => one.textContent === more)
      .click();
  }
  assert.match(page(), /249: 249/);
});

const JSONS = {
  'deep lists': '['.repeat(400_000) + ']'.repeat(400_000),
  'deep objects': `${'{"a":'.repeat(100_000)}1${'}'.repeat(100_000)}`,
  'a long list': `[${'1,'.repeat(2e6)}1]`,
  'a long text': `"${'x'.repeat(7e6)}"`,
  'an open list': '['.repeat(1000)
};

for (const [name, text] of Object.entries(JSONS)) {
  test(`JSON with ${name} costs little`, async () => {
    await show('a.json', bytes(text));
    assert.ok(all('*').length < 2000);
    assert.ok(page().length < 210_000);
  });
}

test('Markdown and text', async () => {
  await show('a.md', bytes('# Head\n\n**bold** and `code`\n'));
  assert.equal(texts('.lsn-markdown h1')[0], 'Head');
  await show('a.log', bytes('\x1b[31mred\x1b[0m <b>plain</b>'));
  assert.equal(texts('.lsn-text')[0], 'red <b>plain</b>');
});

test('a long text is cut and that is said', async () => {
  await show('a.txt', bytes('x'.repeat(300_000)));
  assert.equal(texts('.lsn-text')[0].length, 200_000);
  assert.match(page(), /97\.7 KB more are in the file/);
});

test('what was left out is said', async () => {
  await show('a.bin', bytes(''), { data: null, omitted: "Larger than 1 MB; it lies in the run's folder." });
  assert.match(page(), /Larger than 1 MB/);
  assert.equal(all('a[download]').length, 0);
});

const NAMES = [
  ['out/report.pdf', 'report.pdf'],
  ['a/../../etc/passwd', 'passwd'],
  ['..\\..\\x.txt', 'x.txt'],
  ['invoice\u202efdp.exe', 'invoicefdp.exe'],
  ['.bashrc', 'bashrc'],
  ['CON.txt', '_CON.txt'],
  ['a\0b\n.txt', 'ab.txt'],
  ['<a href="x">.html', '_a href=_x__.html'],
  [`${'x'.repeat(400)}.png`, `${'x'.repeat(116)}.png`],
  ['..', 'file']
];

test('names of downloads', () => {
  assert.deepEqual(
    NAMES.map(([path]) => lsn.downloadName(path)),
    NAMES.map(([, name]) => name)
  );
});

test('a name that hides its ending is shown as it is', async () => {
  await show('invoice\u202efdp.exe', bytes('MZ'));
  assert.ok(page().includes('invoice\\u202efdp.exe'));
});

const pages = JSON.parse(readFileSync(new URL('../../tests/data/static_pages.json', import.meta.url), 'utf8'));
for (const { page: source, runs, kept, gone } of pages) {
  test(`without its scripts: ${source.slice(0, 60)}`, () => {
    const found = lsn.staticPage(source);
    assert.ok([found.runs, null].includes(runs), 'null: parsers differ');
    assert.deepEqual(
      kept.filter(text => !found.html.includes(text)),
      []
    );
    assert.deepEqual(
      gone.filter(text => found.html.includes(text)),
      []
    );
  });
}
