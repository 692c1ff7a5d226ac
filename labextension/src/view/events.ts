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
  forked_from: IForkedFrom | null;
}

/** Where a run began that goes on from a step of another one; `folder` is relative to this run's. */
export interface IForkedFrom {
  run_id: string;
  folder: string;
  step: number;
  event: string;
}

export interface ISandboxReady extends IEventBase {
  kind: 'sandbox.ready';
  sandbox_id: string;
  protection: Record<string, unknown>;
  start_time: number;
  root: string | null;
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
  action: 'pause' | 'paused' | 'resume' | 'step' | 'say' | 'stop';
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

/** The files as they are after a step; before the first call when `step` is none. */
export interface ICheckpointed extends IEventBase {
  kind: 'checkpoint';
  step: number | null;
  checkpoint: string;
  files: number;
  size: number;
  duration: number;
  incomplete: string;
}

/** The run waits for a person: before a call, or with its observation in hand. */
export interface ICallHeld extends IEventBase {
  kind: 'call.held';
  step: number;
  call_id: string;
  at: 'call' | 'observation';
  reason: 'step' | 'breakpoint' | 'approval' | 'pause';
  text: string;
}

/** What a person decided about a call that was held. */
export interface ICallDecided extends IEventBase {
  kind: 'call.decided';
  step: number;
  call_id: string;
  action: 'run' | 'edit' | 'skip' | 'observe';
  tool: string | null;
  arguments: Record<string, unknown> | null;
  observation: string | null;
  original: Text | null;
  source: string;
}

export interface ISettingsChanged extends IEventBase {
  kind: 'settings.changed';
  model: string | null;
  settings: Record<string, unknown>;
  limits: Record<string, unknown>;
  /** `breakpoints`: list of expressions; `approve`: ask, edits or auto. */
  halts: Record<string, unknown>;
  source: string;
}

export interface IRewindStarted extends IEventBase {
  kind: 'rewind.started';
  /** Id of the event after which the conversation goes on. */
  to: string;
  step: number;
  what: 'both' | 'files' | 'conversation';
  target: string | null;
  safety: string | null;
}

export interface IRewound extends IEventBase {
  kind: 'rewound';
  to: string;
  step: number;
  what: 'both' | 'files' | 'conversation';
  target: string | null;
  safety: string | null;
  undo_of: string | null;
}

/** Another run goes on from a step of this one. */
export interface IForked extends IEventBase {
  kind: 'forked';
  run_id: string;
  folder: string;
  step: number;
  checkpoint: string | null;
}

export interface IContinued extends IEventBase {
  kind: 'continued';
  source: string;
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
  | ICheckpointed
  | ICallHeld
  | ICallDecided
  | ISettingsChanged
  | IRewindStarted
  | IRewound
  | IForked
  | IContinued
  | IRunFinished;
