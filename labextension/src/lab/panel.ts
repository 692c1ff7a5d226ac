/** The side panel: every sandbox of this server, and the runs of the notebook in front. */

import type { Message } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';

import { h } from '../view/dom';
import { RunsView } from './runs';
import { Sandboxes } from './sandboxes';
import { ISectionHost, SandboxSection } from './section';

export class SandboxPanel extends Widget {
  private _sections = new Map<string, SandboxSection>();
  private _list = h('div', { class: 'lsn-panel-list' });
  private _note = h('p', { class: 'lsn-panel-note', role: 'status' });
  private _notebook: string | null = null;
  private _used = '';

  constructor(
    private _sandboxes: Sandboxes,
    private _host: ISectionHost,
    private _runs: RunsView
  ) {
    super();
    this.addClass('lsn-panel');
    const { trans } = _host;
    const refresh = h('button', { type: 'button', onclick: () => void this.refresh() }, trans('Refresh'));
    this.node.append(
      h('header', { class: 'lsn-panel-head' }, h('h2', {}, trans('Sandboxes')), refresh),
      this._note,
      this._list,
      _runs.node
    );
    this.node.setAttribute('aria-label', trans('Sandboxes'));
    this.node.setAttribute('role', 'region');
    _sandboxes.changed.connect(this._draw, this);
    this._draw();
  }

  /** The notebook whose runs are listed. */
  set notebook(path: string | null) {
    this._notebook = path;
    if (this.isVisible) {
      void this._runs.show(path);
    }
  }

  async refresh(): Promise<void> {
    await Promise.all([this._sandboxes.refresh(), this._runs.show(this._notebook)]);
  }

  dispose(): void {
    if (!this.isDisposed) {
      this._sandboxes.changed.disconnect(this._draw, this);
      this._sandboxes.watch(this, false);
      this._sections.forEach(section => section.dispose());
      super.dispose();
    }
  }

  protected onAfterShow(_message: Message): void {
    this._look(true);
  }

  protected onAfterAttach(_message: Message): void {
    this._look(this.isVisible);
  }

  protected onAfterHide(_message: Message): void {
    this._look(false);
  }

  protected onBeforeDetach(_message: Message): void {
    this._look(false);
  }

  private _look(looking: boolean): void {
    this._sandboxes.watch(this, looking);
    this._sections.forEach(section => section.setVisible(looking));
    if (looking) {
      void this._runs.show(this._notebook);
    }
  }

  /** A run that begins or ends is a use of its notebook's sandbox. */
  private _followRuns(): void {
    const used = this._sandboxes.of(this._notebook)?.last_activity ?? '';
    if (used !== this._used && this.isVisible) {
      this._used = used;
      void this._runs.show(this._notebook);
    }
  }

  private _draw(): void {
    const { trans } = this._host;
    const { all, problem } = this._sandboxes;
    const ids = new Set(all.map(one => one.id));
    for (const [id, section] of this._sections) {
      if (!ids.has(id)) {
        section.dispose();
        this._sections.delete(id);
      }
    }
    for (const sandbox of all) {
      const section = this._sections.get(sandbox.id);
      if (section) {
        section.update(sandbox);
      } else {
        const made = new SandboxSection(sandbox, this._host);
        this._sections.set(sandbox.id, made);
        this._list.append(made.node);
        made.setVisible(this.isVisible);
      }
    }
    const none = trans('No sandbox runs. The first %%sandbox cell of a notebook starts one.');
    this._note.textContent = problem ? trans('The server does not answer: %1', problem) : all.length ? '' : none;
    this._followRuns();
  }
}
