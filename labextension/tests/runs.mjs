// Runs made of events, for tests that need one to show.
let count = 0;

/** An event with what every event has. */
export const event = (kind, fields) => ({ id: `e${++count}`, parent: null, time: count, kind, ...fields });

/** What a notebook keeps of a run; `files` are bytes by path. */
export function bundle(events, files = {}) {
  const artifacts = {};
  for (const [path, data] of Object.entries(files)) {
    artifacts[path] = { mime: '', size: data.length, data: Buffer.from(data).toString('base64') };
  }
  return { schema_version: 1, run_id: 'r1', events, text_limit: null, artifacts };
}

/** Events that follow each other, as a recorder makes them. */
export function chained(events) {
  events.slice(1).forEach((one, place) => (one.parent ??= events[place].id));
  return events;
}

export const started = task =>
  event('run.started', {
    ...{ schema_version: 1, run_id: 'r1', task, model: 'scripted/x', scripted: true, settings: {}, tools: [] },
    ...{ inputs: [], versions: {}, forked_from: null }
  });

/** One step with one command. */
export function step(number, text = 'I look.', output = 'out\n') {
  const call = { step: number, call_id: `call_${number}`, tool: 'execute_bash' };
  const given = { command: `echo ${number}` };
  const usage = { prompt_tokens: 10, completion_tokens: 5, cached_tokens: 0, reasoning_tokens: 0, cost: null };
  return [
    event('model.requested', { step: number, attempt: 1, settings: {} }),
    event('model.replied', {
      ...{ step: number, message: { role: 'assistant', content: text }, reasoning: text, usage, model_time: 0.5 },
      ...{ finish_reason: null, response_id: null, response_model: null }
    }),
    event('call.proposed', { ...call, raw_arguments: '{}', arguments: { ...given } }),
    event('call.started', { ...call, arguments: { ...given } }),
    event('call.finished', {
      ...{ step: number, call_id: call.call_id, observation: output, error: null, exit_code: 0, timed_out: false },
      ...{ stdout: output, stderr: '', truncated: false, duration: 0, notice: '', changes: [], changes_incomplete: '' }
    })
  ];
}
