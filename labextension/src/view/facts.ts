/**
 * Facts about a run in a line: steps, tokens, time, reward, model, cost, sandbox, first error, changed files, notes.
 * `card/facts.py` shows them on a card without scripts, except the reward and the notes, and lists other places.
 */

import { h, makeButton, plainText, setText } from './dom';
import { IStep, Trajectory } from '../trajectory/fold';
import { ISandboxReady } from '../generated/events';
import { ISOLATIONS, WORDS } from '../generated/words';
import { formatDuration, formatShort, formatSize, formatSpent, plural } from '../formatting';
import { IHost } from './host';
import { stepErred } from './step-line';

export class Facts {
  readonly node: HTMLElement;
  private _counts = h('span', { class: 'lsn-figures' });
  private _model = h('span', { class: 'lsn-model' });
  private _meter = h('span', { class: 'lsn-meter', 'aria-hidden': 'true' }, h('i', {}));
  private _where = h('summary', { class: 'lsn-chip' });
  private _protection = h('div', { class: 'lsn-protection' });
  private _sandbox = h('details', { class: 'lsn-sandbox' }, this._where, this._protection);
  private _error: HTMLButtonElement;
  private _notes = h('div', { class: 'lsn-notes' });
  private _firstError: number | null = null;
  /** The sandbox that is shown. A resumed run may have another one. */
  private _shownSandbox: ISandboxReady | null = null;

  constructor(
    private _trajectory: Trajectory,
    private _host: IHost,
    showStep: (step: number) => void,
    files: HTMLElement
  ) {
    const show = () => this._firstError !== null && showStep(this._firstError);
    this._error = makeButton('', show, { class: 'lsn-chip', 'data-kind': 'bad' });
    this.node = h(
      'div',
      { class: 'lsn-facts' },
      this._counts,
      this._meter,
      this._model,
      this._sandbox,
      this._error,
      files,
      this._notes
    );
    this.update();
  }

  /** The number of the first step that failed, interruptions left out; null if no step failed. */
  get firstError(): number | null {
    return this._firstError;
  }

  reset(): void {
    this._notes.replaceChildren();
    this._firstError = null;
  }

  /** Take changed steps into account. */
  touch(steps: Iterable<IStep>): void {
    for (const step of steps) {
      if (stepErred(step) && (this._firstError === null || step.number < this._firstError)) {
        this._firstError = step.number;
      } else if (step.number === this._firstError && !stepErred(step)) {
        this._firstError = this._trajectory.steps.find(stepErred)?.number ?? null;
      }
    }
  }

  /** Show the run as it is now. */
  update(): void {
    const { start, sandbox, notes } = this._trajectory;
    const { trans } = this._host;
    setText(this._counts, this._figures());
    this._updateModel();
    this._sandbox.hidden = !sandbox;
    if (sandbox && sandbox !== this._shownSandbox) {
      this._shownSandbox = sandbox;
      setText(this._where, protectionLine(sandbox.protection, this._host));
      this._where.dataset.kind = isIsolated(sandbox.protection) ? 'plain' : 'bad';
      this._protection.replaceChildren(...protectionRows(sandbox.protection));
    }
    const first = this._firstError;
    this._error.hidden = first === null;
    setText(this._error, first === null ? '' : trans('First error: step %1 →', first));
    for (const note of notes.slice(this._notes.childElementCount)) {
      this._notes.append(h('div', { class: 'lsn-note' }, note));
    }
    this._notes.hidden = !notes.length;
    this.node.hidden = !start && !sandbox && !notes.length;
  }

  private _figures(): string {
    const { steps, usage, finish, reward } = this._trajectory;
    const { trans } = this._host;
    const tokens = usage.prompt_tokens + usage.completion_tokens;
    const open = steps.length && !steps[steps.length - 1].replied ? 1 : 0;
    const parts = [plural(steps.length - open, trans('step'), trans('steps'))];
    if (tokens) {
      parts.push(tokens === 1 ? trans('1 token in all') : trans('%1 tokens in all', formatShort(tokens)));
    }
    if (finish?.wall_time) {
      parts.push(formatDuration(finish.wall_time));
    }
    if (reward) {
      const worth = reward.reward === null ? trans('not scored') : trans('reward %1', reward.reward.toFixed(2));
      parts.push(`${worth} · ${trans('training step %1', reward.training_step)}`);
    }
    return parts.join(' · ');
  }

  private _updateModel(): void {
    const { start, usage, steps, changed } = this._trajectory;
    const { trans } = this._host;
    const model = changed.filter(one => one.model).pop()?.model ?? start?.model ?? '';
    const scripted = model === start?.model ? start.scripted : model.startsWith('scripted/');
    const limit = this._trajectory.status.limit('cost');
    // A budget is for all branches together, so that a rewind gives no money back.
    const spent = limit === null ? usage.cost : this._trajectory.spent.cost;
    const paid = formatSpent(spent, limit, trans);
    const counted = steps.some(step => step.usage);
    const name = plainText(model);
    setText(
      this._model,
      scripted ? `${name} · ${trans('scripted: free')}` : [name, counted && paid].filter(Boolean).join(' · ')
    );
    this._model.title = scripted
      ? trans('The replies are read from a file: no model is asked and no request is sent.')
      : '';
    this._meter.hidden = limit === null || spent === null || scripted;
    if (!this._meter.hidden) {
      (this._meter.firstElementChild as HTMLElement).style.width = `${Math.min(100, (100 * spent!) / limit!)}%`;
    }
  }
}

/** Return true if the isolation isolates. Older records do not say this: there, every isolation but `process` does. */
export function isIsolated({ isolates, isolation }: { isolates?: unknown; isolation?: unknown }): boolean {
  return typeof isolates === 'boolean' ? isolates : isolation !== 'process';
}

/** Return the isolation and the network in a few words. */
export function protectionLine(protection: Record<string, unknown>, host: IHost): string {
  const { trans } = host;
  const isolation = plainText(String(protection.isolation ?? ''));
  const known = isIsolated(protection) ? ISOLATIONS.get(isolation) : WORDS.notIsolated;
  const name = known ? trans(known) : isolation;
  const network = protection.network;
  const reach =
    network === 'none' || network === 'off'
      ? trans('no network')
      : network
        ? trans('network: %1', plainText(String(network)))
        : '';
  return [name, reach].filter(part => part).join(', ');
}

/** Return a line for each part of the protection, as the engine reported it. */
function protectionRows(protection: Record<string, unknown>): HTMLElement[] {
  const { protects, does_not_protect: gaps, details } = protection;
  const memory = protection.memory_bytes;
  const disk = protection.disk_bytes;
  const parts = [
    protection.isolation,
    protection.profile,
    protection.user && `user ${protection.user}`,
    protection.network && `network ${protection.network}`,
    typeof memory === 'number' && `${formatSize(memory)} memory`,
    typeof disk === 'number' && `${formatSize(disk)} of files`,
    protection.pids && `${protection.pids} processes`,
    protection.cpus && `${protection.cpus} CPUs`
  ];
  const more =
    typeof details === 'object' && details ? Object.entries(details).map(([name, value]) => `${name}: ${value}`) : [];
  const lines = [parts.filter(part => part).join(' · '), protects, gaps, ...more];
  return lines
    .filter((line): line is string => typeof line === 'string' && !!line)
    .map(line => h('div', {}, plainText(line.slice(0, 500))));
}
