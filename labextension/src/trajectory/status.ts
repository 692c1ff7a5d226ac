/**
 * The state of a run, folded event by event: one state, with its words and the meaning of its colour.
 * Twin of `Status` in `trajectory/state.py`; tests/data/runs.json tests both.
 */

import { ICallHeld, IEvent, IForkedFrom, IRunFinished, IVerdict } from '../generated/events';
import { CHECKED, CHECKED_ENDS, ISOLATIONS, Meaning, NOT_CHECKED, STATES } from '../generated/words';
import { formatCost, formatCount, formatDuration, formatModelFailure, formatState, Trans } from '../formatting';

export interface IRunState {
  /** A key of `STATES`, or a reason of a later version. */
  state: string;
  words: string;
  meaning: Meaning;
  /** Outcome of the check of the result; empty without a check. */
  check: string;
}

/** The part that cannot be reached at this moment. */
export type Away = 'server' | 'kernel' | null;

const LIMITS = new Map<string, (value: number) => string>([
  ['steps', formatCount],
  ['tokens', formatCount],
  ['total_tokens', formatCount],
  ['time', formatDuration],
  ['cost', value => formatCost(value) ?? '']
]);

/** Names of stoppers other than a person, by the source of the decision. */
const STOPPERS = new Map([
  ['on_pause', 'the rule for its pauses'],
  ['mcp', 'the outside agent'],
  ['kernel', 'the end of the kernel']
]);

/** Stop reasons that mean the same for a replay as for any run. All others mean only that the record has ended. */
const OF_A_REPLAY = new Set(['interrupted', 'model_error', 'sandbox_lost', 'error']);
const RUN_NAME = /^[0-9A-Za-z-]{1,80}$/;

/** The state of a branch. */
export class Status {
  /** Number of the last step that began; null before the first. */
  step: number | null = null;
  finish: IRunFinished | null = null;
  /** The verdict of the newest check; null when the result was not checked, or the run did more since. */
  check: IVerdict | null = null;
  checking = false;
  /** True if the run has halted and waits for a person. */
  paused = false;
  /** True if a person asked for a pause that has not come yet. */
  pausing = false;
  /** The call before or after which the run has halted; null if it has not halted at a call. */
  held: ICallHeld | null = null;
  /** The step from which a rewound run, or a fork that has not begun, can continue; null for all other runs. */
  readyAt: number | null = null;
  /** Name of the replayed run; empty if this run is no replay, or was continued as a run of its own. */
  private _replays = '';
  private _limits = new Map<string, number>();
  private _failure = '';
  /** The isolation in words, if known before the sandbox is open. */
  private _isolation = '';
  /** True once the sandbox was open; the model is asked before. */
  private _opened = false;
  /** The stopper of the run, such as a person or a rule for its pauses. */
  private _stoppedBy = '';
  /** The parent of a fork, with the last event that both share. */
  private _forkedFrom: IForkedFrom | null = null;

  add(event: IEvent): void {
    this._add(event);
    if (this._forkedFrom !== null && event.id === this._forkedFrom.event) {
      this.rewind(this._forkedFrom.step);
    }
  }

  private _add(event: IEvent): void {
    switch (event.kind) {
      case 'run.started':
        this._replays = typeof event.settings.replay_of === 'string' ? event.settings.replay_of : '';
        this._forkedFrom = event.forked_from ?? null;
        this._isolation = ISOLATIONS.get(String(event.settings.isolation)) ?? '';
        return this._setLimits(event.settings.limits);
      case 'sandbox.ready':
        this._opened = true;
        return;
      case 'settings.changed':
        return this._setLimits(event.limits);
      case 'model.requested':
      case 'model.replied':
      case 'model.failed':
      case 'model.delta':
      case 'call.proposed':
        if (event.step !== this.step) {
          this.step = event.step;
          this._failure = '';
        }
        if (event.kind === 'model.failed') {
          this._failure = event.error;
        } else if (event.kind === 'model.requested') {
          this._runs();
          this.check = null;
          this.checking = false;
        }
        return;
      case 'call.held':
        this.held = event;
        return;
      case 'control':
        this.paused = event.action === 'paused' || (this.paused && event.action === 'say');
        this.pausing = event.action === 'pause' || (this.pausing && event.action === 'say');
        this.held = ['pause', 'paused', 'say'].includes(event.action) ? this.held : null;
        if (event.action === 'stop') {
          this._stoppedBy = STOPPERS.get(event.source) ?? 'you';
        }
        return;
      case 'call.decided':
        this.paused = false;
        this.held = null;
        return;
      case 'call.started':
        return this._runs();
      case 'check.started':
        this.checking = true;
        this.check = null;
        return;
      case 'checked':
        this.checking = false;
        this.check = event.verdict;
        return;
      case 'continued':
        this.finish = null;
        this.check = null;
        this._stoppedBy = this._replays = '';
        return this.rewind(null);
      case 'run.finished':
        this.finish = event;
        this.check = isVerdict(event.check) ? event.check : null;
        return this.rewind(null);
    }
  }

  /** Note that HEAD has moved: by a rewind to the end of `step` or into it, or, if null, without a rewind. */
  rewind(step: number | null): void {
    this.paused = this.pausing = this.checking = false;
    this.held = null;
    this.readyAt = this.finish ? null : step;
    this.check = this.finish ? this.check : null;
  }

  /** Return a limit in force, from the beginning of the run or its newest change; null if there is none. */
  limit(name: string): number | null {
    return this._limits.get(name) ?? null;
  }

  /** Return the state in words. `live` is true while a kernel executes the run. */
  runState(live: boolean, trans: Trans, away: Away = null): IRunState {
    const last = this.step ?? '';
    if (this.finish) {
      return this._ending(this.finish, trans);
    }
    if (!live) {
      return said(this.readyAt === null ? 'cut_off' : 'ready', last, trans);
    }
    if (away) {
      return said(away === 'server' ? 'server_away' : 'kernel_away', '', trans);
    }
    if (this.held) {
      return said('held', '', trans);
    }
    if (this.paused) {
      return said('paused', '', trans);
    }
    if (this.pausing) {
      return said('pausing', '', trans);
    }
    if (this.checking) {
      return said('checking', '', trans);
    }
    return this._opened || this.step !== null ? said('running', last, trans) : said('starting', this._isolation, trans);
  }

  private _ending(finish: IRunFinished, trans: Trans): IRunState {
    // An end with an error means that the model's context was full, not that the run's own limit was reached.
    const limit = finish.stop_reason === 'tokens' && finish.error ? 'context' : finish.stop_reason;
    const isChecked = CHECKED_ENDS.has(limit);
    const reason = finish.without_answer ? 'without_answer' : limit;
    if (this._replays && !OF_A_REPLAY.has(reason)) {
      const name = RUN_NAME.test(this._replays) ? this._replays : '';
      const found = said('replayed', name.slice(name.lastIndexOf('-') + 1), trans);
      return this.check && isChecked ? checked(found, this.check, trans) : found;
    }
    if (isChecked && (this.check || !finish.without_answer)) {
      return checked(said(limit, '', trans), this.check, trans);
    }
    if (reason === 'model_error') {
      return said(reason, formatModelFailure(this._failure, trans), trans);
    }
    if (reason === 'interrupted') {
      return said(reason, trans(this._stoppedBy), trans);
    }
    const value = this.limit(reason);
    return said(reason, value === null ? '' : LIMITS.get(reason)!(value), trans);
  }

  private _runs(): void {
    this.paused = false;
    this.held = null;
    this.readyAt = null;
  }

  private _setLimits(limits: unknown): void {
    if (typeof limits === 'object' && limits !== null && !Array.isArray(limits)) {
      for (const name of LIMITS.keys()) {
        const value = (limits as Record<string, unknown>)[name];
        if (typeof value === 'number') {
          this._limits.set(name, value);
        }
      }
    }
  }
}

function said(state: string, detail: string | number, trans: Trans): IRunState {
  return { state, words: formatState(state, detail, trans), meaning: STATES.get(state)?.[2] ?? 'bad', check: '' };
}

/** Return true for a verdict. Ends of earlier versions have no such field. */
function isVerdict(check: unknown): check is IVerdict {
  const { outcome, summary } = (check ?? {}) as Record<string, unknown>;
  return typeof outcome === 'string' && typeof summary === 'string';
}

/** Return an end with the result of its check. */
function checked(end: IRunState, check: IVerdict | null, trans: Trans): IRunState {
  if (!check) {
    return { ...end, words: trans(NOT_CHECKED, end.words) };
  }
  const known = CHECKED.get(check.outcome);
  if (!known) {
    return { ...end, check: check.outcome };
  }
  const words = trans(check.protected ? known[0] : known[1], end.words, check.summary);
  return { state: end.state, words, meaning: known[2], check: check.outcome };
}
