/** Shows runs in outputs of notebooks, and journals and trajectories that are opened as files. */

import { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { Widget } from '@lumino/widgets';

import { asBundle, EventFeed, TRAJECTORY_MIME } from './embedded';
import { readRecord } from './formats';
import { ILiveRun, IPast, liveOffer, pastOffer } from './live';
import { MimeHost } from './mime-host';
import { h } from './view/dom';
import { IEvent } from './view/events';
import { TrajectoryView } from './view/view';

const RECORD_MIME = 'text/vnd.llm-sandbox.record';

/** What outputs and files have in common: a view that grows, and is made anew when it shows another run. */
abstract class RunRenderer extends Widget implements IRenderMime.IRenderer {
  protected host: MimeHost;
  protected feed = new EventFeed();
  protected view: TrajectoryView | null = null;
  private _notes = h('div', { class: 'lsn-notes' });

  constructor(options: IRenderMime.IRendererOptions) {
    super();
    this.host = new MimeHost(options);
    this.addClass('lsn-host');
    this.node.append(this._notes);
  }

  abstract renderModel(model: IRenderMime.IMimeModel): Promise<void>;

  dispose(): void {
    if (!this.isDisposed) {
      this.clear();
      super.dispose();
    }
  }

  /** Forget what is shown. */
  protected clear(): void {
    this.view?.dispose();
    this.view = null;
    this.feed = new EventFeed();
  }

  /** The view, with room for more events; `live` when they will come. */
  protected open(live: boolean): TrajectoryView {
    if (!this.view) {
      this.view = new TrajectoryView(this.host, { live });
      this.host.trajectory = this.view.trajectory;
      this.node.insertBefore(this.view.node, this._notes);
    }
    this.view.setLive(live);
    return this.view;
  }

  protected draw(events: readonly IEvent[]): void {
    events.forEach(event => this.view!.add(event));
    this.view!.flush();
  }

  protected tell(...notes: (string | false)[]): void {
    const lines = notes.filter(note => note).map(note => h('div', { class: 'lsn-note' }, note));
    this._notes.replaceChildren(...lines);
  }
}

/** The run that an output holds. Further outputs in its place bring events that are added, not shown anew. */
class OutputRenderer extends RunRenderer {
  private _runId: string | null = null;
  private _following: ILiveRun | null = null;
  private _wanted: string | null = null;

  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    const bundle = asBundle(model.data[TRAJECTORY_MIME], model.data['text/html']);
    const { trans } = this.host;
    if (!bundle) {
      this.clear();
      this.tell(trans('This output holds no run.'));
      return;
    }
    if (this.view && (bundle.run_id !== this._runId || model.trusted !== this.host.trusted)) {
      this.clear();
    }
    this._runId = bundle.run_id;
    this.host.trusted = model.trusted;
    this.host.bundle = bundle;
    if (typeof bundle.live?.folder === 'string') {
      this.host.folder = bundle.live.folder;
    }
    // Only a run of this session is followed: an untrusted notebook must not make the page do anything by itself.
    const followed = bundle.live && model.trusted ? bundle.live.run_id : null;
    this.open(followed !== null);
    this.draw(this.feed.take(bundle.events));
    const limit = bundle.text_limit;
    this.tell(
      bundle.problem && trans(bundle.problem),
      limit !== null && trans('Texts in this record are clipped to %1 characters; the journal has them whole.', limit),
      this.feed.rejected > 0 && trans('%1 entries of this record are not events and are left out.', this.feed.rejected)
    );
    this._follow(followed);
    if (followed === null && model.trusted && bundle.run_id !== null) {
      this._lookBack(bundle.run_id);
    }
    if (bundle.live && followed === null) {
      await this._recover();
    }
  }

  protected clear(): void {
    this._follow(null);
    super.clear();
  }

  private _follow(runId: string | null): void {
    if (runId === this._wanted) {
      return;
    }
    this._wanted = runId;
    this._following?.dispose();
    this._following = null;
    this._offer(null);
    this.host.live = null;
    if (runId !== null) {
      void liveOffer().then(follow => {
        if (this._wanted === runId && !this.isDisposed) {
          const away = (reason: 'server' | 'kernel' | null) => this.view?.setAway(reason);
          this._attach(follow(runId, { add: events => this._add(events), away, ended: () => this._ended() }));
        }
      });
    }
  }

  private _attach(run: ILiveRun): void {
    this._following = run;
    this._offer(run);
    this.host.live = path => run.artifact(path);
    this.view?.setLive(true);
  }

  /** The run is over, but of this session: its earlier files can be seen, and it can be taken back. */
  private _lookBack(runId: string): void {
    void pastOffer()
      .then(lookBack => lookBack(runId))
      .then(past => {
        if (past && this._wanted === null && this._runId === runId && !this.isDisposed) {
          this._offer(null, past);
          this.host.refresh = async () => this._bring(await past.journal());
        }
      });
  }

  private _offer(run: ILiveRun | null, past: Pick<IPast, 'history' | 'timeTravel'> | null = run): void {
    this.host.refresh = undefined;
    this.host.controls = run?.controls;
    this.host.decisions = run?.decisions;
    this.host.history = past?.history;
    this.host.timeTravel = past?.timeTravel;
  }

  private _ended(): void {
    this.host.controls = undefined;
    this.view?.setLive(false);
    if (!this.view?.trajectory.finish) {
      void this._recover();
    }
  }

  /** The run ended without its last word in the notebook: what is known of it is in its journal. */
  private async _recover(): Promise<void> {
    const view = this.view;
    const text = await this.host.journal();
    if (view && view === this.view) {
      this._bring(text);
    }
  }

  /** Add what a journal has and is not shown yet. */
  private _bring(journal: string | null): void {
    const record = journal === null ? null : readRecord(journal);
    if (record && this.view) {
      this.draw(this.feed.take(record.events));
      this.tell(record.problem);
    }
  }

  private _add(events: readonly unknown[]): void {
    for (const event of events) {
      if (this.feed.takeOne(event)) {
        this.view?.add(event);
      }
    }
  }
}

/** The run of a journal or of a `trajectory.json` in the paper's form; anything else is shown as the text it is. */
class FileRenderer extends RunRenderer {
  constructor(options: IRenderMime.IRendererOptions) {
    super(options);
    this.addClass('lsn-file');
    this.host.folder = '';
  }

  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    const text = model.data[RECORD_MIME];
    const { trans } = this.host;
    const record = readRecord(typeof text === 'string' ? text : '');
    this.node.querySelector(':scope > .lsn-other')?.remove();
    if (!record) {
      this.clear();
      this.tell(trans('This file is no trajectory; it is shown as text.'));
      this.node.append(h('pre', { class: 'lsn-other', tabindex: 0 }, String(text ?? '')));
      return;
    }
    // The file is opened by hand from the person's own disk, and frames keep what is in it apart from the page.
    this.host.trusted = true;
    this.open(false);
    this.draw(this.feed.take(record.events));
    this.tell(record.problem);
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
    description: 'Shows journals and trajectories that are opened as files.',
    rendererFactory: {
      safe: true,
      mimeTypes: [RECORD_MIME],
      defaultRank: 10,
      createRenderer: options => new FileRenderer(options)
    },
    rank: 10,
    dataType: 'string',
    fileTypes: [
      {
        name: 'llm-sandbox-journal',
        displayName: 'Journal of a run',
        mimeTypes: [RECORD_MIME],
        extensions: [],
        pattern: '.*journal\\.jsonl$',
        fileFormat: 'text'
      },
      {
        name: 'llm-sandbox-trajectory',
        displayName: 'Trajectory',
        mimeTypes: [RECORD_MIME],
        extensions: [],
        pattern: '^trajectory\\.json$',
        fileFormat: 'text'
      }
    ],
    documentWidgetFactoryOptions: {
      name: 'Trajectory',
      modelName: 'text',
      primaryFileType: 'llm-sandbox-journal',
      fileTypes: ['llm-sandbox-journal', 'llm-sandbox-trajectory'],
      defaultFor: ['llm-sandbox-journal', 'llm-sandbox-trajectory']
    }
  }
];

export default extensions;
