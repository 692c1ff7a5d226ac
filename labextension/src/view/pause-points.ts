/** The place for the panel in which a person decides about a paused call. The panel is shown while it can be used. */

import { messagesOf } from '../trajectory/conversation';
import { alwaysButton, Breakpoints } from './breakpoints';
import { PausePanel } from './debugger';
import { h } from './dom';
import { ICall, Trajectory } from '../trajectory/fold';
import { IHost } from './host';
import { placeOf, serverOf } from './mcp-places';
import { addPausedRun } from './paused-runs';

export class PausePoints {
  readonly node = h('div', { class: 'lsn-stops' });
  private _panel: PausePanel | null = null;
  private _breakpoints: Breakpoints;
  /** True if the panel has the keyboard, or, between two pauses, if the last panel had it. */
  private _focused = false;
  private _leave: () => void = () => undefined;

  constructor(
    private _trajectory: Trajectory,
    private _host: IHost
  ) {
    this._breakpoints = new Breakpoints(_trajectory, _host);
    this.node.append(this._breakpoints.node);
  }

  get shown(): boolean {
    return this._panel !== null;
  }

  /** Show or remove the panel. `live` is true while the run can be controlled. */
  update(live: boolean): void {
    const { controls, decisions } = this._host;
    this._breakpoints.update(live);
    const held = live && controls && decisions ? this._trajectory.held : null;
    if (held === (this._panel?.stop.held ?? null)) {
      return;
    }
    const active = document.activeElement;
    this._focused = this._panel
      ? this._panel.node.contains(active)
      : this._focused && active === this.node.closest('.lsn-view');
    this.dispose();
    if (held) {
      const call = this._call(held.step, held.call_id);
      const messages = () => messagesOf(this._trajectory.at(held.id)?.events ?? []);
      const { start, sandbox, files } = this._trajectory;
      const stop = {
        ...{ held, call, messages, model: start?.model ?? '', protection: sandbox?.protection ?? {} },
        thought: this._trajectory.steps.find(one => one.number === held.step)?.thought ?? '',
        kept: files !== null,
        outside: call !== null && serverOf(start?.settings ?? {}, call.tool)?.inside === false,
        place: call ? placeOf(start?.settings ?? {}, call.tool) : '',
        exists: (path: string) => knowsFile(this._trajectory, path),
        always: alwaysButton(call, this._trajectory, decisions!, this._host)
      };
      this._panel = new PausePanel(stop, controls!, decisions!, this._host);
      this.node.append(this._panel.node);
      this._leave = addPausedRun(this._panel);
      if (this._focused) {
        this._panel.node.focus({ preventScroll: true });
      }
    }
  }

  dispose(): void {
    this._leave();
    this._leave = () => undefined;
    this._panel?.node.remove();
    this._panel = null;
  }

  private _call(number: number, id: string): ICall | null {
    const step = this._trajectory.steps.find(one => one.number === number);
    return step?.calls.find(one => one.id === id) ?? null;
  }
}

/** Return true if the run was given a file with this path, or if a call made or changed such a file. */
function knowsFile(trajectory: Trajectory, path: string): boolean {
  const name = `/${path.replace(/^\.\//, '').replace(/^\/+/, '')}`;
  const ends = (known: string) => `/${known}`.endsWith(name);
  const { start, steps, artifacts } = trajectory;
  return (
    (start?.inputs ?? []).some(input => typeof input === 'string' && ends(input)) ||
    [...artifacts.keys()].some(ends) ||
    steps.some(step =>
      step.calls.some(call => call.result?.changes.some(change => change.kind !== 'deleted' && ends(change.path)))
    )
  );
}
