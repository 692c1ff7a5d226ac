/**
 * The events a run is made of: the same names and fields as `llm_sandbox_nb/trajectory/events.py`, where each is explained.
 * Sizes are bytes, times are seconds, `time` is seconds since the epoch.
 */

interface IEventBase {
  id: string;
  parent: string | null;
  time: number;
}

export interface IUsage {
  prompt_tokens: number;
  completion_tokens: number;
  cached_tokens: number;
  reasoning_tokens: number;
  cost: number | null;
}

/** Text kept outside the journal because it is large. */
export interface IBlob {
  sha256: string;
  size: number;
  preview: string;
}

export type Text = string | IBlob;

export interface IFileDiff {
  path: string;
  kind: 'added' | 'modified' | 'deleted';
  size: number;
  diff: string | null;
  note: string;
}

export interface IRunStarted extends IEventBase {
  kind: 'run.started';
  schema_version: number;
  run_id: string;
  task: string;
  model: string;
  scripted: boolean;
  settings: Record<string, unknown>;
  tools: Record<string, unknown>[];
  inputs: string[];
  versions: Record<string, string>;
}

export interface ISandboxReady extends IEventBase {
  kind: 'sandbox.ready';
  sandbox_id: string;
  protection: Record<string, unknown>;
  start_time: number;
}

export interface IMessageAdded extends IEventBase {
  kind: 'message';
  message: Record<string, unknown>;
}

export interface IModelRequested extends IEventBase {
  kind: 'model.requested';
  step: number;
  attempt: number;
  settings: Record<string, unknown>;
}

export interface IModelDelta extends IEventBase {
  kind: 'model.delta';
  step: number;
  text: string;
  reasoning: string;
}

export interface IModelFailed extends IEventBase {
  kind: 'model.failed';
  step: number;
  attempt: number;
  error: string;
  message: string;
  retry_in: number | null;
}

export interface IModelReplied extends IEventBase {
  kind: 'model.replied';
  step: number;
  message: Record<string, unknown>;
  reasoning: string | null;
  usage: IUsage | null;
  finish_reason: string | null;
  model_time: number;
  response_id: string | null;
  response_model: string | null;
}

export interface ICallProposed extends IEventBase {
  kind: 'call.proposed';
  step: number;
  call_id: string;
  tool: string;
  raw_arguments: string;
  arguments: Record<string, unknown> | null;
}

export interface ICallStarted extends IEventBase {
  kind: 'call.started';
  step: number;
  call_id: string;
  tool: string;
  arguments: Record<string, unknown>;
}

export interface ICallOutput extends IEventBase {
  kind: 'call.output';
  call_id: string;
  stream: 'stdout' | 'stderr';
  text: string;
}

export interface ICallFinished extends IEventBase {
  kind: 'call.finished';
  step: number;
  call_id: string;
  observation: string;
  error: string | null;
  exit_code: number | null;
  timed_out: boolean;
  stdout: Text;
  stderr: Text;
  truncated: boolean;
  duration: number;
  notice: string;
  changes: IFileDiff[];
  changes_incomplete: string;
}

export interface IArtifactSaved extends IEventBase {
  kind: 'artifact';
  step: number | null;
  path: string;
  mime: string;
  size: number;
  sha256: string;
}

export interface IArtifactSkipped extends IEventBase {
  kind: 'artifact.skipped';
  reason: string;
}

export interface IArtifactRemoved extends IEventBase {
  kind: 'artifact.removed';
  step: number | null;
  path: string;
}

export interface INoted extends IEventBase {
  kind: 'note';
  text: string;
}

/** What a person decided; `paused` is the run's own word that it has come to a halt. */
export interface IControlled extends IEventBase {
  kind: 'control';
  action: 'pause' | 'paused' | 'resume' | 'say' | 'stop';
  text: string | null;
  source: string;
}

export interface IRunFinished extends IEventBase {
  kind: 'run.finished';
  stop_reason: string;
  answer: string | null;
  error: string | null;
  usage: IUsage;
  steps: number;
  wall_time: number;
}

/** All kinds this version knows. Others are kept and passed over. */
export type IEvent =
  | IRunStarted
  | ISandboxReady
  | IMessageAdded
  | IModelRequested
  | IModelDelta
  | IModelFailed
  | IModelReplied
  | ICallProposed
  | ICallStarted
  | ICallOutput
  | ICallFinished
  | IArtifactSaved
  | IArtifactSkipped
  | IArtifactRemoved
  | INoted
  | IControlled
  | IRunFinished;
