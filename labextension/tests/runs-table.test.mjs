// What the view says of a run is what Python says of it: the table of runs, tests/data/runs.json.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { lsn, place } from './dom.mjs';
import { load } from './load.mjs';
import { bundle } from './runs.mjs';

const { Trajectory } = await load('trajectory/fold');
const { calmGroups, calmKind, calmSteps } = await load('view/calm-steps');
const { lineOf } = await load('view/step-line');
const { isEvent } = await load('valid');
const json = path => JSON.parse(readFileSync(new URL(path, import.meta.url), 'utf8'));
const { events: EVENTS, parts: PARTS } = json('../src/generated/fields.json');
const ROWS = json('../../tests/data/runs.json');

const trans = (text, ...args) => text.replace(/%(\d)/g, (_, place) => String(args[Number(place) - 1]));
const host = { trans };

/** The table leaves out what has its default. */
function complete(value, fields) {
  const whole = { ...value };
  for (const [name, type] of Object.entries(fields)) {
    if (!(name in whole)) {
      whole[name] = name === 'protected' ? true : defaultOf(type);
    } else if (type.endsWith('[]') && type.slice(0, -2) in PARTS) {
      whole[name] = whole[name].map(one => complete(one, PARTS[type.slice(0, -2)]));
    } else if (whole[name] !== null && type.replace(' | null', '') in PARTS) {
      whole[name] = complete(whole[name], PARTS[type.replace(' | null', '')]);
    }
  }
  return whole;
}

function defaultOf(type) {
  if (type in PARTS) {
    return complete({}, PARTS[type]);
  }
  if (type.endsWith(' | undefined')) {
    return undefined;
  }
  return type.endsWith(' | null')
    ? null
    : type.endsWith('[]')
      ? []
      : type.startsWith('Record')
        ? {}
        : { number: 0, string: '', Text: '', boolean: false }[type];
}

const DEFAULTS = {
  'rewind.started': { what: 'both' },
  rewound: { what: 'both' },
  'model.requested': { attempt: 1 },
  'run.started': { schema_version: 2 },
  'context.reduced': { how: 'mask' }
};
const eventsOf = row =>
  row.events.map(event => ({ parent: null, ...DEFAULTS[event.kind], ...complete(event, EVENTS[event.kind]) }));

/** A line without what has its default, as Python writes it. */
const short = ({ tool, thought, what, added, removed, chips, figures }) => ({
  ...(tool !== 'none' && { tool }),
  ...(thought && { thought }),
  ...(what && { what }),
  ...(added && { added }),
  ...(removed && { removed }),
  ...(chips.length && { chips: chips.map(shortChip) }),
  ...(figures && { figures })
});
const shortChip = ({ text, kind, added, removed }) => ({
  text,
  ...(kind !== 'plain' && { kind }),
  ...(added && { added }),
  ...(removed && { removed })
});

function factsOf(run, live) {
  const running = step => live && !run.finish && step === run.steps[run.steps.length - 1];
  const root = run.sandbox?.root ?? '';
  return {
    ...run.status.runState(live, trans),
    held: live ? (run.held?.call_id ?? null) : null,
    paused: run.paused,
    ready_at: run.readyAt,
    steps: run.steps.map(step => step.number),
    branches: run.branches.map(({ step, steps, head }) => [step, steps, head]),
    lines: run.steps.map(step => short(lineOf(step, root, host, running(step)))),
    calm: calmOf(run, root, live && !run.finish)
  };
}

function calmOf({ steps, doubts }, root, running) {
  const doubted = new Set(doubts.map(doubt => doubt.step));
  const kind = (step, at) => (doubted.has(step.number) ? '' : calmKind(step, steps[at - 1], root, host));
  const kinds = steps.map(kind);
  return calmGroups(kinds, running).map(([from, to]) => {
    const { words, figures } = calmSteps(kinds[from], steps.slice(from, to), host);
    return [`${steps[from].number}-${steps[to - 1].number}`, words, figures];
  });
}

test('every row of the table: the fold', () => {
  assert.ok(ROWS.length >= 120);
  for (const row of ROWS) {
    const run = new Trajectory();
    const events = eventsOf(row);
    events.forEach(event => assert.ok(isEvent(event), `${row.name}: ${JSON.stringify(event)}`));
    events.forEach(event => run.add(event));
    assert.deepEqual(factsOf(run, row.live), row.facts, row.name);
  }
});

test('every row of the table: lines that were recorded are shown and not made', () => {
  for (const row of ROWS) {
    const run = new Trajectory();
    eventsOf(row).forEach(event => run.add(event));
    run.steps.forEach((step, place) => {
      const line = { ...row.facts.lines[place], thought: `recorded ${place}` };
      run.add({ id: `f${place}`, parent: run.head, time: 0, kind: 'step.facts', step: step.number, line });
      assert.deepEqual(short(lineOf(step, '', host, false)), line, row.name);
    });
    assert.deepEqual(factsOf(run, row.live).branches, row.facts.branches, `${row.name}: facts are no branch`);
  }
});

test('rows of the table: what stands on the page', () => {
  const few = process.env.LLM_SANDBOX_TESTS ? ROWS : ROWS.filter((_, place) => place % 8 === 0);
  for (const row of few) {
    const { view } = lsn.show(bundle(eventsOf(row)));
    view.setLive(row.live);
    view.flush();
    const badge = place.querySelector('.lsn-header .lsn-badge');
    assert.equal(badge.textContent, row.facts.words, row.name);
    assert.equal(badge.dataset.state === 'done', row.facts.check === 'passed', `${row.name}: green only when checked`);
    const calm = [...place.querySelectorAll('.lsn-calm')].map(one => one.textContent);
    const wanted = row.facts.calm.map(([numbers, ...words]) => numbers.replace('-', '–') + words.join(''));
    assert.deepEqual(calm, wanted, row.name);
    const shown = [...place.querySelectorAll('.lsn-step-head .lsn-what')].map(one => one.textContent);
    row.facts.lines.slice(-shown.length).forEach((line, place) => {
      const counts = `${line.added ? ` +${line.added}` : ''}${line.removed ? ` −${line.removed}` : ''}`;
      assert.equal(shown[place], `${line.thought ?? ''}${line.what ?? ''}${counts}`, row.name);
    });
  }
});

test('the line of a call of an MCP server names the server and its place', () => {
  const tools = name => [{ name }];
  const mcp = {
    time: { command: 'uvx', inside: false, tools: tools('time__now') },
    git: { command: 'git-server', inside: true, tools: tools('git__status') },
    web: { url: 'https://tracker.example.org/mcp', tools: tools('web__search') },
    odd: null,
    older: { tools: 'none' }
  };
  const chips = (tool, settings) => {
    const call = { tool, decisions: [], arguments: {}, rawArguments: '{}', result: null };
    const step = {
      calls: [call],
      failures: [],
      artifacts: [],
      thought: '',
      reasoning: '',
      replied: true,
      modelTime: 0
    };
    return lineOf(step, '', host, false, settings).chips.map(chip => chip.text);
  };
  assert.deepEqual(chips('time__now', { mcp }), ['server time on the host']);
  assert.deepEqual(chips('git__status', { mcp }), ['server git in the sandbox']);
  assert.deepEqual(chips('web__search', { mcp }), ['server web at tracker.example.org']);
  for (const settings of [{ mcp, replay_of: 'x' }, { mcp: 'text' }, {}]) {
    assert.deepEqual(chips('time__now', settings), []);
  }
  assert.deepEqual(chips('own_tool', { mcp }), []);
});

test('a line of a hostile record is bounded and is text', () => {
  const run = new Trajectory();
  eventsOf(ROWS.find(row => row.name === 'one step done')).forEach(event => run.add(event));
  const chips = Array.from({ length: 500 }, () => ({ text: 'x'.repeat(1e5), kind: 'evil" onclick="' }));
  const line = { tool: 'constructor', thought: '\u202e' + 'y'.repeat(1e6), chips };
  run.add({ id: 'f', parent: run.head, time: 0, kind: 'step.facts', step: 1, line });
  const shown = lineOf(run.steps[0], '', host, false);
  assert.ok(JSON.stringify(shown).length < 10_000);
  assert.deepEqual([shown.tool, shown.chips[0].kind], ['none', 'plain']);
  assert.ok(shown.thought.startsWith('\\u202e'));
});
