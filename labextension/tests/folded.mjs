// Reads lists of events from standard input, as JSON, and writes what the view's fold makes of each: used by pytest.
import { readFileSync } from 'node:fs';
import { load } from './load.mjs';

const { Trajectory } = await load('trajectory/fold');

const ids = events => events.map(event => event.id);
const idOf = event => event?.id ?? null;

function folded(events) {
  const run = new Trajectory();
  events.forEach(event => run.add(event));
  const { branches, head } = run;
  const others = branches.map(branch => stateOf(run.at(branch.tip)));
  const whole = { forks: ids(run.forks), rewinds: ids(run.rewinds), events: ids(run.events) };
  return { ...stateOf(run), ...whole, head, branches, others };
}

function stateOf(run) {
  const { notes, skipped, paused, usage, spent, files } = run;
  const [start, sandbox, finish, held] = [run.start, run.sandbox, run.finish, run.held].map(idOf);
  const artifacts = [...run.artifacts].map(([path, artifact]) => [path, artifact.id]);
  const checkpoints = [...run.checkpoints].map(([step, checkpoint]) => [step, checkpoint.id]);
  const [controls, changed] = [ids(run.controls), ids(run.changed)];
  const plain = { start, sandbox, finish, held, notes, skipped, paused, usage, spent, files };
  return { ...plain, artifacts, checkpoints, controls, changed, steps: run.steps.map(stepOf) };
}

function stepOf(step) {
  const { number, thought, reasoning, usage, nudge, replied } = step;
  const { modelTime: model_time, finishReason: finish_reason } = step;
  const [failures, artifacts] = [ids(step.failures), ids(step.artifacts)];
  const calls = step.calls.map(callOf);
  const plain = { number, thought, reasoning, usage, model_time, finish_reason, nudge, replied };
  return { ...plain, failures, artifacts, calls, reduced: idOf(step.reduced), checkpoint: idOf(step.checkpoint) };
}

function callOf({ id, tool, rawArguments: raw_arguments, arguments: values, started, liveOutput, result, decisions }) {
  const [live_output, observation] = [liveOutput, result?.observation ?? null];
  const plain = { id, tool, raw_arguments, arguments: values, started, live_output };
  return { ...plain, result: idOf(result), observation, decisions: ids(decisions) };
}

process.stdout.write(JSON.stringify(JSON.parse(readFileSync(0, 'utf8')).map(folded)));
