/** Causes of a step's result: lost data, the files that the step used, the model's request, the earlier attempt. */

import { answerChain, renderChain } from './answer-chain';
import { h } from './dom';
import { EarlierAttempt, renderEarlierAttempt } from './earlier-attempt';
import { FileFacts, IFileFactsActions } from './file-facts';
import { FileHistory } from './file-history';
import { IStep, Trajectory } from '../trajectory/fold';
import { IHost } from './host';
import { renderMadeWith } from './made-with-line';
import { renderRequestSeen } from './request-seen';
import { IChip } from './step-line';
import { warningText } from './warning-text';

/** Maximum number of warnings in a step's line. */
const CHIPS = 2;
/** Maximum number of given files whose names are searched for in commands. */
const GIVEN_MOST = 1000;

export class Cause {
  /** Chips below the answer, and the list that one of them opens. */
  readonly facts: FileFacts;
  private _history = new FileHistory();
  private _earlier: EarlierAttempt;

  constructor(
    private _trajectory: Trajectory,
    private _host: IHost,
    private _actions: IFileFactsActions
  ) {
    this.facts = new FileFacts(_trajectory, _host, _actions);
    this._earlier = new EarlierAttempt(_trajectory);
  }

  /** Take a changed step into account. */
  take(step: IStep): void {
    const { sandbox, start } = this._trajectory;
    if (!this._history.root && sandbox?.root) {
      this._history.root = sandbox.root;
      start?.inputs.slice(0, GIVEN_MOST).forEach(name => this._history.name(`input/${name}`));
    }
    this._history.take(step);
  }

  /** Show the present chips. */
  update(): void {
    this.facts.update(this._history);
  }

  /** Forget all steps, because the run is on another branch. */
  reset(): void {
    this._history = new FileHistory();
    this.facts.reset();
  }

  /** Return true for a step that succeeded and still lost data or printed an error. */
  warns(step: IStep): boolean {
    return this._history.warnings.has(step.number);
  }

  /** Return true for a step that touched the file `path`, or, if `path` is empty, that changed any file. */
  touches(step: IStep, path: string): boolean {
    if (path) {
      return !!this._history.files.get(path)?.some(event => event.step === step.number);
    }
    return step.calls.some(call => call.result?.changes.length);
  }

  /** Render the origin of the answer; null if not known. */
  answerChain(): HTMLElement | null {
    const chain = answerChain(this._trajectory.steps, this._history);
    return chain.length ? renderChain(chain, this._host, step => this._actions.goTo(step)) : null;
  }

  /** Return the last step that changed a file of the output folder after another step; null if there is none. */
  replacedIn(path: string): number | null {
    const events = this._history.files.get(`output/${path}`)?.filter(event => event.change) ?? [];
    const [first, last] = [events[0], events[events.length - 1]];
    return events.length > 1 && first.step !== last.step ? last.step : null;
  }

  /** Return the chips of a step's line: its warnings, then `chips` without those that only name the same files. */
  chips(step: IStep, chips: IChip[]): IChip[] {
    const warnings = this._history.warnings.get(step.number);
    if (!warnings) {
      return chips;
    }
    const named = new Set(warnings.flatMap(one => [one.path, this._host.trans('%1 deleted', one.path)]));
    const shown = warnings.slice(0, CHIPS).map(one => warningText(one, this._host));
    if (warnings.length > CHIPS) {
      shown.push(this._host.trans('and %1 more', warnings.length - CHIPS));
    }
    const others = chips.filter(chip => chip.kind !== 'plain' || !named.has(chip.text));
    return [...shown.map(text => ({ kind: 'warn' as const, text })), ...others];
  }

  /** Render the causes of an open step. */
  render(step: IStep): HTMLElement {
    const { _host: host, _trajectory: trajectory } = this;
    const earlier = this._earlier.of(step);
    const goTo = (number: number) => this._actions.goTo(number);
    return h(
      'div',
      { class: 'lsn-cause' },
      renderMadeWith(step, this._history, host, goTo),
      earlier && renderEarlierAttempt(step, earlier, host),
      renderRequestSeen(step, trajectory, host)
    );
  }
}
