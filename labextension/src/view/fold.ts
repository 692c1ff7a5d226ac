/** The fold: events in, a trajectory of steps out; constant work for each event. Twin of `trajectory/trajectory.py`. */

import {
  IControlled,
  IArtifactSaved,
  ICallDecided,
  ICallFinished,
  ICallHeld,
  ICallOutput,
  ICallProposed,
  ICallStarted,
  IEvent,
  IModelDelta,
  IModelFailed,
  IModelReplied,
  IModelRequested,
  IRunFinished,
  IRunStarted,
  ISandboxReady,
  IUsage
} from './events';

/** Characters of live output kept of a call that is under way. */
export const LIVE_LIMIT = 64 * 1024;

export interface ICall {
  id: string;
  tool: string;
  rawArguments: string;
  /** As executed; as proposed until then. */
  arguments: Record<string, unknown> | null;
  started: number | null;
  liveOutput: string;
  result: ICallFinished | null;
  /** What a person decided when it was held. */
  decided: ICallDecided[];
}

export interface IStep {
  number: number;
  thought: string;
  reasoning: string;
  calls: ICall[];
  usage: IUsage | null;
  modelTime: number;
  finishReason: string | null;
  /** What a reply without any call was answered with. */
  nudge: string;
  replied: boolean;
  failures: IModelFailed[];
  artifacts: IArtifactSaved[];
}

/** What an event changed: one step, the frame around the steps, or nothing that is shown. */
export interface IChange {
  step?: IStep;
  header?: boolean;
  artifacts?: boolean;
}

export class Trajectory {
  start: IRunStarted | null = null;
  sandbox: ISandboxReady | null = null;
  finish: IRunFinished | null = null;
  readonly steps: IStep[] = [];
  readonly artifacts = new Map<string, IArtifactSaved>();
  readonly skipped: string[] = [];
  readonly notes: string[] = [];
  readonly controls: IControlled[] = [];
  /** Whether the run has halted and waits for a person. */
  paused = false;
  /** The call before or after which it has halted, if it is at one. */
  held: ICallHeld | null = null;
  usage: IUsage = { prompt_tokens: 0, completion_tokens: 0, cached_tokens: 0, reasoning_tokens: 0, cost: 0 };
  private _calls = new Map<string, { call: ICall; step: IStep }>();
  private _byNumber = new Map<number, IStep>();

  /** Take one more event into account; says what it changed. */
  add(event: IEvent): IChange {
    switch (event.kind) {
      case 'run.started':
        this.start = event;
        return { header: true };
      case 'sandbox.ready':
        this.sandbox = event;
        return { header: true };
      case 'run.finished':
        this.finish = event;
        this.paused = false;
        this.held = null;
        return { header: true, artifacts: true };
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
      case 'call.held':
        this.held = event;
        return { header: true };
      case 'artifact':
        return this._addArtifact(event);
      case 'artifact.removed':
        this.artifacts.delete(event.path);
        return { artifacts: true };
      case 'artifact.skipped':
        this.skipped.push(event.reason);
        return { artifacts: true };
      case 'note':
        this.notes.push(event.text);
        return { header: true };
      case 'control':
        this.controls.push(event);
        this.paused = event.action === 'paused' || (this.paused && event.action === 'say');
        return { header: true };
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
        thought: '',
        reasoning: '',
        calls: [],
        usage: null,
        modelTime: 0,
        finishReason: null,
        nudge: '',
        replied: false,
        failures: [],
        artifacts: []
      };
      this._byNumber.set(number, step);
      this.steps.push(step);
    }
    return step;
  }

  private _addMessage(text: string): IChange {
    const step = this.steps[this.steps.length - 1];
    if (!step) {
      return {};
    }
    step.nudge = text;
    return { step };
  }

  private _addModel(step: IStep, event: IModelRequested | IModelDelta | IModelFailed | IModelReplied): IChange {
    switch (event.kind) {
      case 'model.requested':
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
        step.finishReason = event.finish_reason;
        step.replied = true;
        this.usage = addUsage(this.usage, event.usage);
        return { step, header: true };
    }
    return { step };
  }

  private _addCall(event: ICallProposed | ICallStarted | ICallOutput | ICallFinished | ICallDecided): IChange {
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
        decided: []
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
        call.decided.push(event);
        this.paused = false;
        this.held = null;
        if (event.action === 'observe' && call.result && event.observation !== null) {
          call.result = { ...call.result, observation: event.observation };
        }
        return { step, header: true };
    }
    return { step };
  }

  private _addArtifact(event: IArtifactSaved): IChange {
    this.artifacts.set(event.path, event);
    if (event.step === null) {
      return { artifacts: true };
    }
    const step = this._step(event.step);
    step.artifacts.push(event);
    return { step, artifacts: true };
  }
}

/** Tokens and cost added up; an unknown cost makes the sum unknown. */
export function addUsage(left: IUsage, right: IUsage | null): IUsage {
  return {
    prompt_tokens: left.prompt_tokens + (right?.prompt_tokens ?? 0),
    completion_tokens: left.completion_tokens + (right?.completion_tokens ?? 0),
    cached_tokens: left.cached_tokens + (right?.cached_tokens ?? 0),
    reasoning_tokens: left.reasoning_tokens + (right?.reasoning_tokens ?? 0),
    cost: left.cost === null || !right || right.cost === null ? null : left.cost + right.cost
  };
}

/** The plain text of a message whose content is a string or a list of parts. */
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
