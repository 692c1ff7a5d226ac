/** Breakpoints of a live run: those in force, each with its switch, and the one that fits a command. */

import { toolOf } from './call-summary';
import { errorText, h, makeButton, plainText } from './dom';
import { ICall, Trajectory } from '../trajectory/fold';
import { IDecisions, IHost } from './host';

/** Maximum number of listed breakpoints, and of characters of a command that are searched for its name. */
const MOST_BREAKPOINTS = 50;
const NAME_CHARACTERS = 1000;

/** Return the breakpoints in force, from the beginning of the run or the newest change. */
export function breakpointsOf({ start, changed }: Trajectory): string[] {
  const all = [start?.settings.halts, ...changed.map(one => one.halts)] as ({ breakpoints?: unknown } | undefined)[];
  const newest = all.map(one => one?.breakpoints).filter(one => Array.isArray(one));
  const listed: unknown[] = newest[newest.length - 1] ?? [];
  return listed.filter((one): one is string => typeof one === 'string').slice(0, MOST_BREAKPOINTS);
}

/** Return the breakpoint that stops before each command with the same name; null if no breakpoint fits. */
export function breakpointFor(call: ICall | null | undefined): { name: string; expression: string } | null {
  const command = call && toolOf(call) === 'bash' ? call.arguments?.command : null;
  if (typeof command !== 'string') {
    return null;
  }
  const text = command.slice(0, NAME_CHARACTERS).replace(/^\s*cd\s+[^\s;&|]+\s*&&/, '');
  const name = /^\s*([\w.+-]{1,40})\s/.exec(text)?.[1];
  return name ? { name, expression: `tool == 'execute_bash' and '${name} ' in command` } : null;
}

/** Return a button that adds the breakpoint for a call to those in force; null if none fits, or if it is set. */
export function alwaysButton(
  call: ICall | null | undefined,
  trajectory: Trajectory,
  decisions: IDecisions,
  { trans }: IHost
): HTMLButtonElement | null {
  const wanted = breakpointFor(call);
  if (!wanted || breakpointsOf(trajectory).includes(wanted.expression)) {
    return null;
  }
  const set = () => {
    button.disabled = true;
    decisions.change({ breakpoints: [...breakpointsOf(trajectory), wanted.expression] }).catch(error => {
      button.disabled = false;
      button.textContent = errorText(error);
    });
  };
  const title = trans('The run waits for you before each such command');
  const button = makeButton('', set, { class: 'lsn-always', title });
  button.textContent = trans('Always stop at “%1”', wanted.name);
  return button;
}

/** The list of the breakpoints in force; hidden if there are none. */
export class Breakpoints {
  readonly node = h('details', { class: 'lsn-settings lsn-breakpoints' });
  private _count = h('summary', {});
  private _list = h('ul', {});
  private _status = h('span', { class: 'lsn-count', role: 'status' });
  private _shown = '';

  constructor(
    private _trajectory: Trajectory,
    private _host: IHost
  ) {
    this.node.append(this._count, this._list, this._status);
    this.node.hidden = true;
  }

  /** Show the present breakpoints. `live` is true while the run can be controlled. */
  update(live: boolean): void {
    const { trans, decisions } = this._host;
    const now = live && decisions ? breakpointsOf(this._trajectory) : [];
    this.node.hidden = !now.length;
    if (this._shown === JSON.stringify(now)) {
      return;
    }
    this._shown = JSON.stringify(now);
    this._status.textContent = '';
    this._count.textContent = trans('Breakpoints (%1)', now.length);
    this._list.replaceChildren(
      ...now.map(one => {
        const off = () => {
          decisions!.change({ breakpoints: now.filter(other => other !== one) }).catch(error => {
            this._status.textContent = errorText(error);
          });
        };
        const name = trans('Switch off the breakpoint %1', plainText(one));
        const button = makeButton(trans('Switch off'), off, { 'aria-label': name });
        return h('li', {}, h('code', {}, plainText(one)), ' ', button);
      })
    );
  }
}
