/**
 * The trajectory: the steps of a run, built from its events with constant work for each event except rewinds. Twin of
 * `trajectory/trajectory.py`: events form a tree, and a trajectory shows the branch of HEAD, which new events extend.
 */

import type * as ev from '../generated/events';
import { LIMITS, TRANSIENT } from '../generated/words';
import { upgraded } from './older';
import { Status } from './status';
import { IBranch, Tree } from './tree';

/** Maximum characters kept of the live output of a running call. */
export const LIVE_LIMIT = LIMITS.liveOutput;

export interface ICall {
  id: string;
  tool: string;
  rawArguments: string;
  /** Arguments as executed; before the execution, as proposed. */
  arguments: Record<string, unknown> | null;
  started: number | null;
  liveOutput: string;
  result: ev.ICallFinished | null;
  /** Decisions of a person while the call was held. */
  decisions: ev.ICallDecided[];
}

export interface IStep {
  number: number;
  /** Time of the newest request for its reply, in seconds since the epoch. */
  requested: number | null;
  thought: string;
  reasoning: string;
  calls: ICall[];
  usage: ev.IUsage | null;
  modelTime: number;
  /** Number of tokens that the model of the reply can take in; null if unknown. */
  contextWindow: number | null;
  finishReason: string | null;
  /** The last message to the model that was added during the step, such as a request for a call; empty without one. */
  nudge: string;
  /** Allowed and refused connections of this step, if the network is an allow-list. */
  connections: ev.IConnectionMade[];
  /** The newest event that shortened the conversation for this step; null if the step has no such event. */
  reduced: ev.IContextReduced | null;
  replied: boolean;
  failures: ev.IModelFailed[];
  artifacts: ev.IArtifactSaved[];
  /** The kept files after the step; null if the step changed no file, or if files are not kept. */
  checkpoint: ev.ICheckpointed | null;
  /** The recorded line of the step; null if there is none, or the step has changed since. */
  line: ev.IStepLine | null;
}

/** The parts of the view that an event changed. */
export interface IChange {
  /** True if the run is on another branch, so that all steps have changed, including those with the same number. */
  branch?: boolean;
  step?: IStep;
  header?: boolean;
  artifacts?: boolean;
}

/** Kinds that begin or end an attempt. */
const ATTEMPT = new Set<string>(['rewound', 'continued', 'model.requested', 'run.finished']);

/** Return true for an event of a new attempt. */
export function isOfAttempt(event: ev.IEvent): boolean {
  return ATTEMPT.has(event.kind);
}

/** Return true for an event that is shown live and not written. */
export function isTransient(event: ev.IEvent): boolean {
  return TRANSIENT.has(event.kind);
}

/** Kinds that change what a step's line says. */
const IN_LINE = new Set<string>([
  'model.requested',
  'model.delta',
  'model.failed',
  'model.replied',
  'call.proposed',
  'call.started',
  'call.finished',
  'call.decided',
  'artifact',
  'context.reduced'
]);

/** Return true for an event about other events. In the tree, no event follows such an event. */
function isFacts(event: ev.IEvent): event is ev.IStepFacts | ev.IDoubtsFound {
  return event.kind === 'step.facts' || event.kind === 'doubts';
}

/** Return the known and the found doubts. A found doubt replaces a known one of the same step and rule. */
function withDoubts(known: ev.IDoubt[], found: ev.IDoubt[]): ev.IDoubt[] {
  const isNew = (one: ev.IDoubt) => found.some(other => other.rule === one.rule && other.step === one.step);
  return [...known.filter(one => !isNew(one)), ...found];
}

/** A run up to its newest event. All data except `events`, `spent`, `start` and `sandbox` is of the branch of HEAD. */
export class Trajectory {
  /** All recorded events of all branches, in the order of the record. */
  readonly events: ev.IEvent[] = [];
  start: ev.IRunStarted | null = null;
  sandbox: ev.ISandboxReady | null = null;
  /** Tokens and money of all branches together. */
  spent: ev.IUsage = noUsage();
  /** Runs that began from this one. */
  readonly forks: ev.IForked[] = [];
  readonly rewinds: ev.IRewound[] = [];
  status = new Status();
  /** The reward, if the run is a rollout of a training. */
  reward: ev.IRewarded | null = null;
  /** The checks of its result, the newest last. */
  checks: ev.IChecked[] = [];
  steps: IStep[] = [];
  artifacts = new Map<string, ev.IArtifactSaved>();
  skipped: string[] = [];
  notes: string[] = [];
  connections: ev.IConnectionMade[] = [];
  controls: ev.IControlled[] = [];
  /** The kept files by step number; 0 means before the first call. */
  checkpoints = new Map<number, ev.ICheckpointed>();
  /** Id of the checkpoint with the files at HEAD; null if no files are kept. */
  files: string | null = null;
  changed: ev.ISettingsChanged[] = [];
  /** Reasons to doubt the result, the worst first: those found so far, or, after the end of the run, all. */
  doubts: ev.IDoubt[] = [];
  private _doubtsFinal = false;
  usage: ev.IUsage = noUsage();
  private _calls = new Map<string, { call: ICall; step: IStep }>();
  private _byNumber = new Map<number, IStep>();
  private _reduced: ev.IContextReduced | null = null;
  private _tree = new Tree();
  private _head: string | null = null;

  /** The end of the run; null while it runs, or if it was killed. */
  get finish(): ev.IRunFinished | null {
    return this.status.finish;
  }

  get paused(): boolean {
    return this.status.paused;
  }

  /** The call before or after which the run has halted; null if it has not halted at a call. */
  get held(): Status['held'] {
    return this.status.held;
  }

  /** After a rewind: the step from which the run can continue; null when it runs, has ended or was not rewound. */
  get readyAt(): number | null {
    return this.status.readyAt;
  }

  /** Id of the event that the next one follows: the last one, or the one that a rewind leads to. */
  get head(): string | null {
    return this._head;
  }

  /** All branches, in the order of their last events; one of them is that of HEAD. */
  get branches(): IBranch[] {
    return this._tree.branches(this._head);
  }

  /** Return the trajectory as it was at an event of any branch; null if there is no such event. */
  at(event: string): Trajectory | null {
    if (!this._tree.has(event)) {
      return null;
    }
    const other = new Trajectory();
    for (const one of this._tree.path(event)) {
      if (isFacts(one)) {
        other._addFacts(one);
      } else {
        other._take(one, other._head);
      }
    }
    other.spent = this.spent;
    return other;
  }

  /** Return the number of the step of an event, or of the last step before it; 0 before the first. */
  stepAt(event: string | null): number {
    return this._tree.step(event);
  }

  /** Return the events of the branch before the newest request of a step. */
  beforeRequest(step: number): readonly ev.IEvent[] {
    const events = (this._head !== null && this.at(this._head)?.events) || this.events;
    for (let index = events.length - 1; index >= 0; index--) {
      const event = events[index];
      if (event.kind === 'model.requested' && event.step === step) {
        return events.slice(0, index);
      }
    }
    return [];
  }

  /** Add an event. Return the changed parts. */
  add(given: ev.IEvent): IChange {
    const event = upgraded(given);
    if (isTransient(event)) {
      return this._apply(event);
    }
    if (isFacts(event)) {
      return this._addFacts(event);
    }
    const parent = this._tree.has(event.parent) ? event.parent : this._head;
    const branch = parent !== this._head;
    if (branch) {
      this._goTo(parent);
    }
    const change = this._take(event, parent);
    const moved = this._addToAll(event);
    return branch || moved ? { ...change, branch: true, header: true, artifacts: true } : change;
  }

  /** Add an event to the data of the whole run. Return true if the event moved HEAD. */
  private _addToAll(event: ev.IEvent): boolean {
    if (event.kind === 'model.replied' || (event.kind === 'context.reduced' && event.usage)) {
      this.spent = addUsage(this.spent, event.usage);
    } else if (event.kind === 'forked') {
      this.forks.push(event);
    } else if (event.kind === 'rewound') {
      this.rewinds.push(event);
      if (event.what !== 'files' && this._tree.has(event.to)) {
        const files = event.what === 'both' ? event.target : event.safety || this.files;
        this._goTo(event.to);
        this.files = files || this.files;
        this.status.rewind(this._tree.step(event.to));
        return true;
      }
    }
    return false;
  }

  private _take(event: ev.IEvent, parent: string | null): IChange {
    this.events.push(event);
    this._tree.add(event, parent);
    this._head = event.id;
    return this._apply(event);
  }

  /** Add facts about a step, or doubts. They are not part of the tree: HEAD stays, and every branch with their parent has them. */
  private _addFacts(event: ev.IStepFacts | ev.IDoubtsFound): IChange {
    this.events.push(event);
    const parent = this._tree.has(event.parent) ? event.parent : this._head;
    this._tree.annotate(event, parent);
    return parent === this._head ? this._apply(event) : {};
  }

  /** Move HEAD to `event` and read its branch again from the beginning. */
  private _goTo(event: string | null): void {
    this.status = new Status();
    this.reward = null;
    this.checks = [];
    this.steps = [];
    this.artifacts = new Map();
    this.skipped = [];
    this.notes = [];
    this.connections = [];
    this.controls = [];
    this.checkpoints = new Map();
    this.files = null;
    this.changed = [];
    this.doubts = [];
    this._doubtsFinal = false;
    this.usage = noUsage();
    this._calls = new Map();
    this._byNumber = new Map();
    this._reduced = null;
    this._head = event;
    this._tree.path(event).forEach(one => this._apply(one));
    this.status.rewind(null);
  }

  private _apply(event: ev.IEvent): IChange {
    this.status.add(event);
    if (this._doubtsFinal && (event.kind === 'model.requested' || event.kind === 'continued')) {
      this._doubtsFinal = false;
    }
    const touched = IN_LINE.has(event.kind) && 'step' in event ? this._byNumber.get(event.step as number) : undefined;
    if (touched) {
      touched.line = null;
    }
    switch (event.kind) {
      case 'run.started':
        this.start = event;
        if (event.schema_version > LIMITS.schemaVersion) {
          this.notes.push(`Made by a later version (${event.schema_version}): parts may be missing.`);
        }
        return { header: true };
      case 'sandbox.ready':
        this.sandbox = event;
        return { header: true };
      case 'model.requested':
      case 'model.delta':
      case 'model.failed':
      case 'model.replied':
        return this._addModel(this._step(event.step), event);
      case 'call.proposed':
      case 'call.started':
      case 'call.output':
      case 'call.finished':
      case 'call.decided':
        return this._addCall(event);
      case 'step.facts': {
        const step = this._byNumber.get(event.step);
        if (step) {
          step.line = event.line;
        }
        return step ? { step } : {};
      }
      case 'doubts':
        this.doubts = event.final ? event.doubts : withDoubts(this.doubts, event.doubts);
        this._doubtsFinal = event.final;
        return { header: true };
      case 'artifact':
        return this._addArtifact(event);
      case 'artifact.removed':
        this.artifacts.delete(event.path);
        return { artifacts: true };
      case 'artifact.skipped':
        this.skipped.push(event.reason);
        return { artifacts: true };
      case 'connection': {
        const step = event.step === null ? undefined : this._byNumber.get(event.step);
        this.connections.push(event);
        step?.connections.push(event);
        return step ? { step } : {};
      }
      case 'note':
        this.notes.push(event.text);
        return { header: true };
      case 'control':
        this.controls.push(event);
        return { header: true };
      case 'settings.changed':
        this.changed.push(event);
        return { header: true };
      case 'checkpoint':
      case 'rewind.started':
      case 'rewound':
        return this._addFiles(event);
      case 'call.held':
      case 'forked':
      case 'check.started':
        return { header: true };
      case 'checked':
        this.checks.push(event);
        return { header: true, artifacts: true };
      case 'rewarded':
        this.reward = event;
        return { header: true };
      case 'run.finished':
      case 'continued':
        return { header: true, artifacts: true };
      case 'context.reduced': {
        this.usage = event.usage ? addUsage(this.usage, event.usage) : this.usage;
        this._reduced = event;
        const step = this._byNumber.get(event.step);
        if (step) {
          step.reduced = event;
        }
        return step ? { step, header: true } : { header: true };
      }
      case 'message':
        return this._addMessage(messageText(event.message));
      default:
        return {};
    }
  }

  private _step(number: number): IStep {
    let step = this._byNumber.get(number);
    if (!step) {
      step = {
        number,
        requested: null,
        thought: '',
        reasoning: '',
        calls: [],
        usage: null,
        modelTime: 0,
        contextWindow: null,
        finishReason: null,
        nudge: '',
        connections: [],
        reduced: this._reduced?.step === number ? this._reduced : null,
        replied: false,
        failures: [],
        artifacts: [],
        checkpoint: null,
        line: null
      };
      this._byNumber.set(number, step);
      this.steps.push(step);
    }
    return step;
  }

  private _addFiles(event: ev.ICheckpointed | ev.IRewindStarted | ev.IRewound): IChange {
    if (event.kind === 'rewind.started') {
      this.files = event.safety || this.files;
    } else if (event.kind === 'rewound') {
      this.files = (event.what === 'files' && event.target) || this.files;
    } else {
      this.files = event.checkpoint;
      this.checkpoints.set(event.step ?? 0, event);
      const step = event.step === null ? undefined : this._byNumber.get(event.step);
      if (step) {
        step.checkpoint = event;
        return { step, header: true };
      }
    }
    return { header: true };
  }

  private _addMessage(text: string): IChange {
    const step = this.steps[this.steps.length - 1];
    if (!step) {
      return {};
    }
    step.nudge = text;
    return { step };
  }

  private _addModel(
    step: IStep,
    event: ev.IModelRequested | ev.IModelDelta | ev.IModelFailed | ev.IModelReplied
  ): IChange {
    switch (event.kind) {
      case 'model.requested':
        step.requested = event.time;
        step.thought = step.reasoning = '';
        break;
      case 'model.delta':
        step.thought += event.text;
        step.reasoning += event.reasoning;
        break;
      case 'model.failed':
        step.failures.push(event);
        break;
      case 'model.replied':
        step.thought = messageText(event.message);
        step.reasoning = event.reasoning ?? '';
        step.usage = event.usage;
        step.modelTime = event.model_time;
        step.contextWindow = event.context_window ?? null;
        step.finishReason = event.finish_reason;
        step.replied = true;
        this.usage = addUsage(this.usage, event.usage);
        return { step, header: true };
    }
    return { step };
  }

  private _addCall(
    event: ev.ICallProposed | ev.ICallStarted | ev.ICallOutput | ev.ICallFinished | ev.ICallDecided
  ): IChange {
    if (event.kind === 'call.proposed') {
      const step = this._step(event.step);
      const call: ICall = {
        id: event.call_id,
        tool: event.tool,
        rawArguments: event.raw_arguments,
        arguments: event.arguments,
        started: null,
        liveOutput: '',
        result: null,
        decisions: []
      };
      this._calls.set(event.call_id, { call, step });
      step.calls.push(call);
      return { step };
    }
    const known = this._calls.get(event.call_id);
    if (!known) {
      return {};
    }
    const { call, step } = known;
    switch (event.kind) {
      case 'call.started':
        call.tool = event.tool;
        call.arguments = event.arguments;
        call.started = event.time;
        break;
      case 'call.output':
        call.liveOutput = (call.liveOutput + event.text).slice(-LIVE_LIMIT);
        break;
      case 'call.finished':
        call.result = event;
        call.liveOutput = '';
        break;
      case 'call.decided':
        call.decisions.push(event);
        if (event.action === 'observe' && call.result && event.observation !== null) {
          call.result = { ...call.result, observation: event.observation, before: '', after: event.after };
        }
        return { step, header: true };
    }
    return { step };
  }

  private _addArtifact(event: ev.IArtifactSaved): IChange {
    this.artifacts.set(event.path, event);
    const step = event.step === null ? undefined : this._byNumber.get(event.step);
    if (step === undefined) {
      return { artifacts: true }; // not of a step, or of a step on an abandoned branch
    }
    step.artifacts.push(event);
    return { step, artifacts: true };
  }
}

function noUsage(): ev.IUsage {
  return { prompt_tokens: 0, completion_tokens: 0, cached_tokens: 0, reasoning_tokens: 0, cost: 0 };
}

/** Return the sum of tokens and cost. An unknown cost makes the sum unknown. */
export function addUsage(left: ev.IUsage, right: ev.IUsage | null): ev.IUsage {
  return {
    prompt_tokens: left.prompt_tokens + (right?.prompt_tokens ?? 0),
    completion_tokens: left.completion_tokens + (right?.completion_tokens ?? 0),
    cached_tokens: left.cached_tokens + (right?.cached_tokens ?? 0),
    reasoning_tokens: left.reasoning_tokens + (right?.reasoning_tokens ?? 0),
    cost: left.cost === null || !right || right.cost === null ? null : left.cost + right.cost
  };
}

/** Return the plain text of a message whose content is a string or a list of parts. */
export function messageText(message: Record<string, unknown>): string {
  const content = message.content;
  if (typeof content === 'string') {
    return content;
  }
  if (!Array.isArray(content)) {
    return '';
  }
  return (content as ({ text?: unknown } | null)[])
    .map(part => (typeof part?.text === 'string' ? part.text : ''))
    .join('');
}
