/** Follows where a run stops, and shows the panel to decide there for as long as that can be done. */

import { messagesOf } from './conversation';
import { StopPanel } from './debugger';
import { h } from './dom';
import { ICall, Trajectory } from './fold';
import { IHost } from './host';
import { announceStop } from './stopped';

export class Stops {
  readonly node = h('div', { class: 'lsn-stops' });
  private _panel: StopPanel | null = null;
  private _leave: () => void = () => undefined;

  constructor(
    private _trajectory: Trajectory,
    private _host: IHost
  ) {}

  /** Whether there is a panel to decide in. */
  get shown(): boolean {
    return this._panel !== null;
  }

  /** Show the panel, or take it away; `live` while the run can be controlled at all. */
  update(live: boolean): void {
    const { controls, decisions } = this._host;
    const held = live && controls && decisions ? this._trajectory.held : null;
    if (held === (this._panel?.stop.held ?? null)) {
      return;
    }
    const focused = !!this._panel?.node.contains(document.activeElement);
    this.dispose();
    if (held) {
      const call = this._call(held.step, held.call_id);
      const messages = () => messagesOf(this._trajectory.at(held.id)?.events ?? []);
      const model = this._trajectory.start?.model ?? '';
      this._panel = new StopPanel({ held, call, messages, model }, controls!, decisions!, this._host);
      this.node.append(this._panel.node);
      this._leave = announceStop(this._panel);
      if (focused) {
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
