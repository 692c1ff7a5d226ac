/** Shows runs in outputs of notebooks, and journals and trajectories that are opened with it as files. */

import { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { Widget } from '@lumino/widgets';

import { asBundle, TRAJECTORY_MIME } from './embedded';
import { EventFeed } from './feed';
import { readRecord } from './formats';
import { ILiveRun, ILiveSink, IPast, IShell, liveOffer, pastOffer, shellOffer, TAB } from './live';
import { MimeHost } from './mime-host';
import { RECORD_MIME, recordFileTypes, recordWidget } from './record-files';
import { TabTools } from './tab-tools';
import { isOfAttempt } from './trajectory/fold';
import { errorText, h, makeButton } from './view/dom';
import { IEvent } from './generated/events';
import { IResumeOptions, ITimeTravel } from './view/host';
import { TrajectoryView } from './view/view';

/** Milliseconds for the server's answer about a run. Without an answer, the run is not shown as live. */
const ANSWER_MS = 2000;
/** Milliseconds in which the kernel can put the final card of a run into the notebook itself. */
const SETTLE_MS = 3000;
/** Milliseconds between two questions to the server whether a resumed run has begun. */
const RESUMED_MS = 500;

/** Base of the renderers of outputs and files. It adds new events to the view, and makes a new view for another run. */
abstract class RunRenderer extends Widget implements IRenderMime.IRenderer {
  protected host: MimeHost;
  protected feed = new EventFeed();
  protected view: TrajectoryView | null = null;
  /** Id of the shown run if it is over; null while a run is followed. */
  protected runId: string | null = null;
  protected model: IRenderMime.IMimeModel | null = null;
  private _tools: TabTools | null = null;
  private _notes = h('div', { class: 'lsn-notes' });
  protected newer = h('div', { class: 'lsn-newer', role: 'status' });

  constructor(options: IRenderMime.IRendererOptions) {
    super();
    this.host = new MimeHost(options);
    this.addClass('lsn-host');
    this.node.append(this.newer, this._notes);
  }

  abstract renderModel(model: IRenderMime.IMimeModel): Promise<void>;

  dispose(): void {
    if (!this.isDisposed) {
      this.clear();
      this._tools?.dispose();
      super.dispose();
    }
  }

  protected clear(): void {
    this.view?.dispose();
    this.view = null;
    this.newer.replaceChildren();
    this.feed = new EventFeed();
  }

  protected opened(_view: TrajectoryView): void {
    if (this.inTab) {
      this.host.keys = { tab: true, lab: true };
      this._tools ??= new TabTools(() => this.view, this.node, this.host.trans);
      this.node.prepend(this._tools.node);
    }
  }

  /** True if the run has a tab of its own. */
  protected get inTab(): boolean {
    return typeof this.model?.metadata[TAB] === 'object';
  }

  /** Open the view, or keep the open one; `live` if more events will come. */
  protected open(live: boolean): TrajectoryView {
    if (!this.view) {
      this.view = new TrajectoryView(this.host, { live, capped: !this.inTab });
      this.host.trajectory = this.view.trajectory;
      this.node.insertBefore(this.view.node, this._notes);
      this.opened(this.view);
    }
    this.view.setLive(live);
    return this.view;
  }

  protected draw(events: IEvent[]): void {
    events.forEach(event => this.view!.add(event));
    this.view!.flush();
  }

  /** Show a text with a button above the run. */
  protected notice(text: string, label: string, action: () => void): void {
    this.newer.replaceChildren(text, ' ', makeButton(label, action));
  }

  /** Offer earlier files and rewinds of a run that is over and known to the server. `saved`: number of shown events. */
  protected lookBack(runId: string, saved: number): void {
    void pastOffer.promise
      .then(lookBack => lookBack(runId))
      .then(past => {
        if (past && this.runId === runId && !this.isDisposed) {
          const { history, timeTravel } = past;
          this.host.history = history;
          this.host.timeTravel = timeTravel && this._fromHere(timeTravel, past);
          this.host.refresh = async () => void (await this._offerNewer(past));
          this.view?.offersChanged();
          if (past.events > saved) {
            void this._offerNewer(past);
          }
        }
      });
  }

  /** If the card shows an older attempt than the newest, offer the newest and return true. */
  private async _offerNewer(past: IPast): Promise<boolean> {
    const { trans } = this.host;
    const view = this.view;
    const journal = await past.journal();
    const unseen = this.feed.unseen((journal === null ? null : readRecord(journal))?.events ?? []);
    if (view !== this.view || !unseen.some(isOfAttempt)) {
      return false;
    }
    const showSaved = () => {
      this.clear();
      void this.renderModel(this.model!);
    };
    this.notice(trans('This run has a newer attempt.'), trans('Show it'), () => {
      this.bring(journal);
      const text = trans('This is the newest attempt, not the saved one.');
      this.notice(text, trans('Show the saved attempt'), showSaved);
    });
    return true;
  }

  /** Return time travel whose result this card shows at once. It is refused while the card lacks the newest attempt. */
  private _fromHere(travel: ITimeTravel, past: IPast): ITimeTravel {
    const here =
      <A extends unknown[], R>(act: (...given: A) => Promise<R>) =>
      async (...given: A): Promise<R> => {
        if (await this._offerNewer(past)) {
          throw new Error(this.host.trans('This run has a newer attempt: show it first.'));
        }
        const result = await act(...given);
        this.bring(await past.journal());
        return result;
      };
    return {
      preview: travel.preview && ((step, what) => travel.preview!(step, what)),
      rewind: here((step, what, others) => travel.rewind(step, what, others)),
      undo: here(others => travel.undo(others)),
      fork: here(step => travel.fork(step)),
      resume: travel.resume && here(options => this.resume(travel, options))
    };
  }

  protected resume(travel: ITimeTravel, options: IResumeOptions): Promise<void> {
    return travel.resume!(options);
  }

  /** Add the events of a journal that are not shown yet. */
  protected bring(journal: string | null): void {
    const record = journal === null ? null : readRecord(journal);
    if (record && this.view) {
      this.draw(this.feed.take(record.events));
      this.tell(record.problem);
    }
  }

  protected tell(...notes: (string | false)[]): void {
    const lines = notes.filter(note => note).map(note => h('div', { class: 'lsn-note' }, note));
    this._notes.replaceChildren(...lines);
  }
}

/** Renderer of the run in an output. When a newer output of the run replaces it, only the new events are drawn. */
class OutputRenderer extends RunRenderer {
  private _runId: string | null = null;
  private _following: ILiveRun | null = null;
  /** The followed run, once its controls are offered. */
  private _offered: ILiveRun | null = null;
  private _wanted: string | null = null;
  /** Id of the run that a kernel of this server executes, as the server said. */
  private _known: string | null = null;
  /** Id of the run that is over, as the server said. */
  private _over: string | null = null;
  private _room = h('div', { class: 'lsn-room' });

  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    const bundle = asBundle(model.data[TRAJECTORY_MIME], model.data['text/html']);
    const { trans } = this.host;
    if (!bundle) {
      this.clear();
      this.tell(trans('This output does not contain a run.'));
      return;
    }
    const brings = this.host.missed && Object.keys(bundle.artifacts).length > 0;
    if (this.view && (bundle.run_id !== this._runId || model.trusted !== this.host.trusted || brings)) {
      this.clear();
    }
    this.host.missed = false;
    this._runId = bundle.run_id;
    this.node.append(this._room);
    this.model = model;
    this.host.trusted = model.trusted;
    this.host.inNotebook = true;
    this.host.bundle = bundle;
    const tab = model.metadata[TAB] as { folder?: unknown } | undefined;
    const folder = tab?.folder ?? bundle.live?.folder;
    if (typeof folder === 'string') {
      this.host.folder = folder;
    }
    // An untrusted notebook sends no request before a click. After the click, only a run of this server is followed.
    const live = bundle.live?.run_id ?? null;
    const goesOn = live !== null && live !== this._over;
    const followed = goesOn && (model.trusted || live === this._known) ? live : null;
    this.open(goesOn);
    this.draw(this.feed.take(bundle.events));
    const limit = bundle.text_limit;
    this.tell(
      bundle.problem && trans(bundle.problem),
      limit !== null &&
        trans('Texts in this record are clipped to %1 characters; the journal has the complete texts.', limit),
      this.feed.rejected > 0 && trans('%1 entries of this record are not events and are left out.', this.feed.rejected)
    );
    this._follow(followed);
    this._offerRoom();
    this.runId = null;
    if (followed === null && model.trusted && bundle.run_id !== null) {
      this.runId = bundle.run_id;
      this.lookBack(bundle.run_id, bundle.events.length);
    }
    if (live !== null && followed === null) {
      if (model.trusted) {
        this._askFor(live);
      } else {
        this._offerToAsk(live);
      }
    }
  }

  /** Let the person decide whether to ask the server, because an untrusted notebook sends no request without this decision. */
  private _offerToAsk(runId: string): void {
    const { trans } = this.host;
    this.view?.setLive(false);
    const text = trans('This notebook is not trusted, and its run was not over when it was saved.');
    this.notice(text, trans('Ask the server'), () => {
      this.newer.replaceChildren();
      this._askFor(runId);
    });
  }

  /** Follow a run if the server executes it. */
  private _askFor(runId: string): void {
    const answer = (executes: boolean | null) => {
      if (this.isDisposed || this._runId !== runId || this._known === runId) {
        return;
      }
      if (executes) {
        this._known = runId;
        this._over = null;
        void this.renderModel(this.model!);
        return;
      }
      this.view?.setLive(false);
      void this._recover();
      if (executes === false) {
        this._over = runId;
        this._settle();
      }
    };
    window.setTimeout(() => answer(null), ANSWER_MS);
    void pastOffer.promise.then(lookBack => lookBack(runId)).then(found => answer(found?.live ?? false));
  }

  /** Put the final card of a run that is over into the notebook, unless the kernel does that. */
  private _settle(): void {
    const [runId, place] = [this._runId, this.node];
    window.setTimeout(() => {
      const still = (this.model?.data[TRAJECTORY_MIME] as { live?: unknown } | undefined)?.live;
      if (still && runId !== null && runId === this._runId && !this.isDisposed && !this.inTab) {
        void shellOffer.promise.then(shell => shell.settle(place, runId)).catch(() => undefined); // no record is found: the card shows what it has
      }
    }, SETTLE_MS);
  }

  protected clear(): void {
    this._follow(null);
    super.clear();
  }

  /**
   * Resume the run and follow it in this output. The kernel shows the run in the output that the kernel knows. After a
   * reload of the page or a restart of the kernel, that is another output: a call that waits would be seen nowhere.
   */
  protected async resume(travel: ITimeTravel, options: IResumeOptions): Promise<void> {
    const runId = this.runId;
    if (runId === null || options.run !== undefined) {
      return super.resume(travel, options);
    }
    let timer = 0;
    const look = async () => {
      const found = await (await pastOffer.promise)(runId);
      if (found?.live && timer && this.runId === runId && !this.isDisposed) {
        this._follow(runId);
      } else if (timer) {
        timer = window.setTimeout(() => void look(), RESUMED_MS);
      }
    };
    timer = window.setTimeout(() => void look(), RESUMED_MS);
    try {
      await super.resume(travel, options);
    } finally {
      window.clearTimeout(timer);
      timer = 0;
      // This is still true only if the kernel's final card was not put here.
      if (this._wanted === runId && this.runId === runId && !this.isDisposed) {
        this._follow(null);
        this.view?.setLive(false);
        this.lookBack(runId, Infinity);
        const place = this.node;
        void shellOffer.promise.then(shell => shell.settle(place, runId, true)).catch(() => undefined); // the card shows the run all the same
      }
    }
  }

  protected opened(view: TrajectoryView): void {
    super.opened(view);
    if (this.inTab) {
      return;
    }
    void shellOffer.promise.then(shell => {
      const { trans } = this.host;
      if (view === this.view && shell.openRun) {
        const label = trans('Open in tab');
        const open = makeButton(label, () => this._openTab(shell), { class: 'lsn-open-tab' });
        view.actions.append(open);
      }
    });
  }

  private _openTab(shell: IShell): void {
    const { data, trusted } = this.model!;
    const task = this.view?.trajectory.start?.task ?? '';
    shell.openRun?.({ id: this._runId ?? '', task, data, trusted }, this.node);
  }

  /** Offer to stop another sandbox if the run could not start because there are too many. */
  private _offerRoom(): void {
    const { error } = this.view?.trajectory.finish ?? {};
    this._room.replaceChildren();
    if (!this.model?.trusted || this.inTab || !error?.includes('%sandbox stop --idle')) {
      return;
    }
    void shellOffer.promise.then(shell => {
      const { trans } = this.host;
      const problem = h('span', { role: 'alert' });
      const make = () => {
        problem.textContent = '';
        shell.makeRoom(this.node).catch(error => (problem.textContent = errorText(error)));
      };
      const label = trans('Stop the longest idle sandbox and run again…');
      this._room.replaceChildren(makeButton(label, make), ' ', problem);
    });
  }

  private _follow(runId: string | null): void {
    if (runId === this._wanted) {
      return;
    }
    this._wanted = runId;
    this._following?.dispose();
    this._following = null;
    this._known = runId === this._known ? runId : null;
    this._offer(null);
    this.host.live = null;
    if (runId !== null) {
      const sink: ILiveSink = {
        add: events => this.feed.add(events).forEach(event => this.view?.add(event)),
        known: () => this._offerKnown(),
        away: reason => this.view?.setAway(reason),
        ended: () => this._ended()
      };
      void liveOffer.promise.then(follow => {
        if (this._wanted === runId && !this.isDisposed) {
          this._attach(follow(runId, sink));
        }
      });
    }
  }

  private _attach(run: ILiveRun): void {
    this._following = run;
    this.host.live = path => run.artifact(path);
    this.view?.setLive(true);
    // If a server ended during a run, the notebook was saved with the run as live: do not wait for it.
    window.setTimeout(() => {
      if (this._following === run && this._offered !== run && this._over !== this._wanted && !this.isDisposed) {
        this.view?.setLive(false);
        void this._recover();
      }
    }, ANSWER_MS);
  }

  /** Offer the controls of the followed run, because the server knows it. */
  private _offerKnown(): void {
    if (this._offered !== this._following) {
      this._known = this._wanted;
      this._over = null;
      this._offer(this._following);
      this.view?.setLive(true);
    }
  }

  private _offer(run: ILiveRun | null): void {
    this._offered = run;
    this.host.refresh = undefined;
    this.host.controls = run?.controls;
    this.host.decisions = run?.decisions;
    this.host.history = run?.history;
    this.host.timeTravel = run?.timeTravel;
    this.view?.offersChanged();
  }

  private _ended(): void {
    this._over = this._wanted;
    this._known = null;
    this._offered = null; // a kernel that was given up may connect again
    this.host.controls = undefined;
    this.view?.setLive(false);
    this._offerRoom();
    if (!this.view?.trajectory.finish) {
      void this._recover();
    }
    this._settle();
  }

  /** Read the journal of a run whose end is not in the notebook. */
  private async _recover(): Promise<void> {
    const view = this.view;
    const text = await this.host.journal();
    if (view && view === this.view) {
      this.bring(text);
    }
  }
}

/** Renderer of a file: a journal, or another project's record, which the server reads. Any other file is text. */
class FileRenderer extends RunRenderer {
  private _shown = '';

  protected get inTab(): boolean {
    return true;
  }

  constructor(options: IRenderMime.IRendererOptions) {
    super(options);
    this.addClass('lsn-file');
    this.host.folder = '';
  }

  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    const text = String(model.data[RECORD_MIME] ?? '');
    const { trans } = this.host;
    this._shown = text;
    const record = readRecord(text) ?? (await this.host.foreignRecord(text));
    if (this.isDisposed || this._shown !== text) {
      return;
    }
    this.node.querySelector(':scope > .lsn-other')?.remove();
    if (!record.events.length) {
      this.clear();
      this.tell(record.problem, trans('It is shown as text.'));
      this.node.append(h('pre', { class: 'lsn-other', tabindex: 0 }, text));
      return;
    }
    // A person opened this file by hand, and frames keep its content apart from the page.
    this.host.trusted = true;
    this.model = model;
    this.open(false);
    this.draw(this.feed.take(record.events));
    this.tell(record.problem);
    this.runId = this.view!.trajectory.start?.run_id ?? null;
    if (this.runId) {
      this.lookBack(this.runId, record.events.length);
    }
  }
}

const extensions: IRenderMime.IExtension[] = [
  {
    id: 'llm-sandbox-nb:output',
    description: 'Shows the runs of language models in outputs.',
    rendererFactory: {
      safe: true,
      mimeTypes: [TRAJECTORY_MIME],
      defaultRank: 10,
      createRenderer: options => new OutputRenderer(options)
    },
    rank: 10,
    dataType: 'json'
  },
  {
    id: 'llm-sandbox-nb:file',
    description: 'Shows journals and trajectories that are opened with it as files.',
    rendererFactory: {
      safe: true,
      mimeTypes: [RECORD_MIME],
      defaultRank: 10,
      createRenderer: options => new FileRenderer(options)
    },
    rank: 10,
    dataType: 'string',
    fileTypes: recordFileTypes,
    documentWidgetFactoryOptions: recordWidget
  }
];

export default extensions;
