// Reads lists of events from standard input, as JSON, and writes what the view's fold makes of each: used by pytest.
import { readFileSync } from 'node:fs';
import { load } from './load.mjs';

const { Trajectory } = await load('view/fold');

const ids = events => events.map(event => event.id);
const idOf = event => event?.id ?? null;

function folded(events) {
  const run = new Trajectory();
  events.forEach(event => run.add(event));
  const { notes, skipped, paused, usage } = run;
  const [start, sandbox, finish] = [run.start, run.sandbox, run.finish].map(idOf);
  const artifacts = [...run.artifacts].map(([path, artifact]) => [path, artifact.id]);
  const controls = ids(run.controls);
  return { start, sandbox, finish, notes, skipped, paused, usage, artifacts, controls, steps: run.steps.map(stepOf) };
}

function stepOf(step) {
  const { number, thought, reasoning, usage, nudge, replied } = step;
  const { modelTime: model_time, finishReason: finish_reason } = step;
  const [failures, artifacts] = [ids(step.failures), ids(step.artifacts)];
  const calls = step.calls.map(callOf);
  return { number, thought, reasoning, usage, model_time, finish_reason, nudge, replied, failures, artifacts, calls };
}

function callOf({ id, tool, rawArguments: raw_arguments, arguments: values, started, liveOutput, result }) {
  return { id, tool, raw_arguments, arguments: values, started, live_output: liveOutput, result: idOf(result) };
}

process.stdout.write(JSON.stringify(JSON.parse(readFileSync(0, 'utf8')).map(folded)));
