/** The head of the view: who works, where, how far it is, what it has cost; the task; and the answer at the end. */

import { h, plainText, setText } from './dom';
import { Trajectory } from './fold';
import { costInWords, countInWords, secondsInWords } from './format';
import { IHost } from './host';

export class Header {
  readonly node: HTMLElement;
  private _state = h('span', { class: 'lsn-badge', role: 'status' });
  private _model = h('strong', {});
  private _figures = h('span', { class: 'lsn-figures' });
  private _protection = h('div', { class: 'lsn-protection' });
  private _task = h('div', { class: 'lsn-task' });
  private _notes = h('div', { class: 'lsn-notes' });

  constructor(
    private _trajectory: Trajectory,
    private _host: IHost
  ) {
    const line = h('div', { class: 'lsn-headline' }, this._state, this._model, this._figures);
    this.node = h('header', { class: 'lsn-header' }, line, this._protection, this._task, this._notes);
  }

  /** What is shown is of another branch now. */
  reset(): void {
    this._notes.replaceChildren();
  }

  /** Show the run as it is now; `live` while more may come, `away` while who tells of it is silent. */
  update(live: boolean, away: 'server' | 'kernel' | null = null): void {
    const { start, sandbox, notes } = this._trajectory;
    const trans = this._host.trans;
    this._updateState(live, away);
    setText(this._model, start ? start.model + (start.scripted ? ` (${trans('scripted')})` : '') : '');
    setText(this._figures, this._figuresText());
    setText(this._protection, sandbox ? protectionText(sandbox.protection) : '');
    setText(this._task, start ? plainText(start.task) : '');
    for (const note of notes.slice(this._notes.childElementCount)) {
      this._notes.append(h('div', { class: 'lsn-note' }, note));
    }
  }

  private _updateState(live: boolean, away: 'server' | 'kernel' | null): void {
    const { finish, held, paused } = this._trajectory;
    const trans = this._host.trans;
    const waiting = away === 'server' ? trans('away: the server does not answer') : trans('away: the kernel is silent');
    const under = held ? trans('stopped') : paused ? trans('paused') : trans('running');
    const open = !live ? trans('broken off') : away ? waiting : under;
    setText(this._state, finish ? finish.stop_reason : open);
    const well = finish && (finish.stop_reason === 'submitted' || finish.stop_reason === 'answered');
    this._state.dataset.state = well ? 'done' : finish || !live ? 'error' : away ? 'away' : 'live';
  }

  private _figuresText(): string {
    const { steps, usage, finish } = this._trajectory;
    const trans = this._host.trans;
    const tokens = usage.prompt_tokens + usage.completion_tokens;
    const parts = [
      trans('%1 steps', steps.length),
      trans('%1 tokens', countInWords(tokens)),
      costInWords(usage.cost) ?? trans('cost unknown')
    ];
    if (finish) {
      parts.push(secondsInWords(finish.wall_time));
    }
    return parts.join(' · ');
  }
}

/** What is in force, as read back, in one line. */
export function protectionText(protection: Record<string, unknown>): string {
  const memory = protection.memory_bytes;
  const parts = [
    protection.isolation,
    protection.profile,
    protection.user && `user ${protection.user}`,
    protection.network && `network ${protection.network}`,
    typeof memory === 'number' && `${(memory / 1e9).toFixed(1)} GB memory`,
    protection.pids && `${protection.pids} processes`,
    protection.cpus && `${protection.cpus} CPUs`
  ];
  return parts.filter(part => part).join(' · ');
}

/** The answer, or why there is none. */
export function renderEnding(trajectory: Trajectory, host: IHost): HTMLElement[] {
  const finish = trajectory.finish;
  if (!finish) {
    return [];
  }
  const nodes: HTMLElement[] = [];
  if (finish.error) {
    nodes.push(h('div', { class: 'lsn-error', role: 'alert' }, plainText(finish.error)));
  }
  if (finish.answer !== null) {
    const text = h('div', { class: 'lsn-answer' });
    if (host.renderMarkdown) {
      host.renderMarkdown(finish.answer, text);
    } else {
      setText(text, plainText(finish.answer));
    }
    nodes.push(h('h3', {}, host.trans('Answer')), text);
  }
  return nodes;
}
