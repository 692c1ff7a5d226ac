/** The side panel: the notebook in front with its sandbox and its runs, then the sandboxes of other notebooks. */

import { PathExt } from '@jupyterlab/coreutils';
import type { Message } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';

import { visibleName } from '../artifacts/names';
import { errorText, h, makeButton } from '../view/dom';
import { ISandbox } from './api';
import { ModelPicker } from './model-picker';
import { RunsView } from './runs';
import { Sandboxes } from './sandboxes';
import { ISectionHost, SandboxSection } from './section';
import { runWords } from './status';

/** Milliseconds between two readings of a notebook's runs while one is live. */
const READ_MS = 3000;

export class SandboxPanel extends Widget {
  private _sections = new Map<string, SandboxSection>();
  private _front = h('div', { class: 'lsn-panel-front' });
  private _name = h('h3', { dir: 'auto' });
  private _state = h('span', { class: 'lsn-badge' });
  private _none: HTMLElement;
  private _others = h('div', {});
  private _idleText = h('span', {});
  private _idleList = h('div', {});
  private _idle: HTMLElement;
  private _note = h('p', { class: 'lsn-panel-note', role: 'status' });
  private _problem = h('div', { class: 'lsn-panel-problem', role: 'alert' });
  private _notebook: string | null = null;
  private _used = '';
  private _read = 0;

  constructor(
    private _sandboxes: Sandboxes,
    private _host: ISectionHost,
    private _runs: RunsView,
    private _models: ModelPicker
  ) {
    super();
    this.addClass('lsn-panel');
    const { trans } = _host;
    const refresh = makeButton(trans('Refresh'), () => void this.refresh());
    this._none = h('section', { class: 'lsn-panel-section' }, h('header', {}, this._name, this._state));
    const stopAll = makeButton(trans('Stop all'), () => void this.stopIdle());
    this._idle = h(
      'div',
      { class: 'lsn-panel-idle' },
      h('details', {}, h('summary', {}, this._idleText), this._idleList),
      stopAll
    );
    this.node.append(
      h('div', { class: 'lsn-panel-head' }, h('h2', {}, trans('Sandboxes')), refresh),
      this._note,
      this._problem,
      this._none,
      this._front,
      _models.node,
      _runs.node,
      this._others,
      this._idle
    );
    this.node.setAttribute('aria-label', trans('Sandboxes'));
    this.node.setAttribute('role', 'region');
    _sandboxes.changed.connect(this._draw, this);
    this._draw();
  }

  /** The notebook in front. */
  set notebook(path: string | null) {
    if (path !== this._notebook) {
      this._notebook = path;
      this._used = '';
      this._models.clear();
      this._draw();
    }
  }

  async refresh(): Promise<void> {
    this._used = '';
    await this._sandboxes.refresh();
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

  protected onAfterHide(_message: Message): void {
    this._look(false);
  }

  private _look(looking: boolean): void {
    this._sandboxes.watch(this, looking);
    this._draw();
  }

  /** Read the runs of the notebook in front again if they may have changed; else update only the live runs. */
  private _followRuns(): void {
    if (!this.isVisible) {
      return;
    }
    const { runs } = this._sandboxes;
    const activity = this._sandboxes.of(this._notebook)?.last_activity ?? '';
    const ended = runs.filter(run => run.notebook === this._notebook).map(run => run.state);
    const used = JSON.stringify([this._notebook, activity, ended]);
    const live = !!this._sandboxes.liveRun(this._notebook);
    if (used !== this._used && (!live || Date.now() > this._read + READ_MS || !this._used)) {
      this._used = used;
      this._read = Date.now();
      void this._runs.show(this._notebook, runs);
    } else {
      this._runs.update(runs);
    }
  }

  private _draw(): void {
    const { trans } = this._host;
    const { all, problem } = this._sandboxes;
    const own = this._sandboxes.of(this._notebook);
    const idle = new Set(this._sandboxes.idle(this._notebook));
    const ids = new Set(all.map(one => one.id));
    for (const [id, section] of this._sections) {
      if (!ids.has(id)) {
        section.dispose();
        this._sections.delete(id);
      }
    }
    for (const sandbox of all) {
      const place = sandbox === own ? this._front : idle.has(sandbox) ? this._idleList : this._others;
      this._show(sandbox, place, sandbox === own);
    }
    this._showFront(own);
    this._idle.hidden = !idle.size;
    const sandboxes =
      idle.size === 1
        ? trans('1 idle sandbox in another notebook')
        : trans('%1 idle sandboxes in other notebooks', idle.size);
    this._idleText.textContent = sandboxes;
    const none = trans('No sandbox runs. The first %%sandbox cell of a notebook starts one.');
    this._note.textContent = problem
      ? trans('The server does not answer: %1', problem)
      : all.length || this._notebook
        ? ''
        : none;
    this._followRuns();
  }

  private _show(sandbox: ISandbox, place: HTMLElement, front: boolean): void {
    const run = this._sandboxes.liveRun(sandbox.notebook);
    let section = this._sections.get(sandbox.id);
    if (section) {
      section.update(sandbox, run);
    } else {
      section = new SandboxSection(sandbox, this._host, run);
      this._sections.set(sandbox.id, section);
    }
    if (section.node.parentElement !== place) {
      place.append(section.node);
    }
    section.setVisible(this.isVisible && front);
  }

  /** Show the notebook in front while it has no sandbox. */
  private _showFront(own: ISandbox | undefined): void {
    const { trans } = this._host;
    this._none.hidden = !!own || !this._notebook;
    this._models.node.hidden = !this._notebook;
    const run = this._sandboxes.liveRun(this._notebook);
    this._name.textContent = visibleName(PathExt.basename(this._notebook ?? ''));
    this._state.textContent = run ? runWords(run, trans) : trans('no sandbox');
    this._state.dataset.state = run ? (run.paused ? 'wait' : 'live') : '';
  }

  /** Stop the idle sandboxes of other notebooks, if the person agrees. */
  async stopIdle(): Promise<void> {
    const { trans } = this._host;
    const idle = this._sandboxes.idle(this._notebook);
    const names = idle.slice(0, 8).map(one => visibleName(one.notebook ?? trans('A kernel without a notebook')));
    const more = idle.length > names.length ? [trans('… and %1 more', idle.length - names.length)] : [];
    const lost = trans('Their files are lost; records of runs stay.');
    if (
      await this._host.confirm(
        trans('Stop idle sandboxes?'),
        `${[...names, ...more].join(', ')}. ${lost}`,
        trans('Stop')
      )
    ) {
      this._problem.textContent = '';
      try {
        await this._host.api.stopIdle(this._sandboxes.of(this._notebook)?.kernel_id ?? '');
      } catch (error) {
        this._problem.textContent = errorText(error);
      }
      await this._sandboxes.refresh();
    }
  }
}
