/**
 * The panel in the cell where no server knows the run: the view as an anywidget, fed over the widget's comm.
 *
 * `notebook/panel.py` is the other side. Written events come as parts of the widget's state, unfinished text and signs of
 * life as messages. Some kernels read messages only while a cell runs, so buttons appear once the kernel has answered.
 */

import { asBundle, IEmbeddedArtifact } from './embedded';
import { EventFeed } from './feed';
import { PlainHost } from './plain-host';
import { h } from './view/dom';
import { IControls } from './view/host';
import { TrajectoryView } from './view/view';

/** Milliseconds without a sign of life until the kernel is shown as silent; it sends one every second. */
const SILENT_MS = 10_000;
/** Milliseconds until a decision without an answer is an error. */
const ANSWER_MS = 5_000;

/** The model of a widget, as anywidget gives it. */
export interface IModel {
  get(name: string): unknown;
  on(event: string, callback: (...values: never[]) => void): void;
  off(event: string, callback: (...values: never[]) => void): void;
  send(content: unknown): void;
}

interface IMessage {
  type?: string;
  id?: number;
  error?: string | null;
  events?: unknown[];
}

class CommHost extends PlainHost {
  /** Without scripts: nobody knows who listens on this page, and a frame's scripts could speak to them (see `guard.ts`). */
  readonly trusted = false;
  controls?: IControls;
}

class Panel {
  readonly node = h('div', { class: 'lsn-host' });
  private _host = new CommHost(asBundle({ events: [] })!);
  private _feed = new EventFeed();
  private _view = new TrajectoryView(this._host, { live: true, capped: true });
  private _note: HTMLElement;
  private _parts = 0;
  private _asked = 0;
  private _signs = 0;
  private _answers = new Map<number, (error: string | null) => void>();
  private _timer: ReturnType<typeof setTimeout> | undefined;

  constructor(private _model: IModel) {
    const trans = this._host.trans.bind(this._host);
    this._note = h('div', { class: 'lsn-note' }, trans('Interrupt the cell to stop the run.'));
    this.node.append(this._view.node, this._note);
    this._model.on('change:parts', this._take);
    this._model.on('msg:custom', this._hear);
    this._take();
    this._model.send({ type: 'hello' });
  }

  dispose(): void {
    clearTimeout(this._timer);
    this._model.off('change:parts', this._take);
    this._model.off('msg:custom', this._hear);
    this._view.dispose();
  }

  private _take = (): void => {
    const parts = Number(this._model.get('parts')) || 0;
    for (; this._parts < parts; this._parts++) {
      const { events, artifacts } = read(this._model.get(`part_${this._parts}`));
      Object.assign(this._host.bundle.artifacts, artifacts);
      this._add(events);
    }
    this._alive();
  };

  private _hear = (message: IMessage): void => {
    this._alive();
    switch (message.type) {
      case 'live':
        this._add(message.events ?? []);
        this._greetAgain();
        break;
      case 'ready':
        this._note.remove();
        this._host.controls = this._controls();
        this._view.setLive(true);
        break;
      case 'answer':
        this._answers.get(message.id ?? -1)?.(message.error ?? null);
        break;
      case 'over':
        clearTimeout(this._timer);
        this._note.remove();
        this._view.setLive(false);
        break;
    }
  };

  /**
   * What a page says before its subshell is there reaches the shell that the cell keeps busy. So it says hello again until
   * it is heard, at ever fewer signs of life: a kernel that hears nothing takes all of them when the cell is over.
   */
  private _greetAgain(): void {
    this._signs++;
    if (!this._host.controls && Number.isInteger(Math.log2(this._signs))) {
      this._model.send({ type: 'hello' });
    }
  }

  private _add(events: readonly unknown[]): void {
    this._feed.add(events).forEach(event => this._view.add(event));
  }

  /** The kernel gave a sign of life; it gives none while it waits for a person in a pause. */
  private _alive(): void {
    clearTimeout(this._timer);
    this._view.setAway(null);
    this._timer = setTimeout(() => {
      if (!this._view.trajectory.paused) {
        this._view.setAway('kernel');
      }
    }, SILENT_MS);
  }

  private _controls(): IControls {
    return {
      stop: () => this._ask('stop'),
      pause: () => this._ask('pause'),
      resume: () => this._ask('resume'),
      say: text => this._ask('say', text)
    };
  }

  private _ask(action: string, text?: string): Promise<void> {
    const id = this._asked++;
    const trans = this._host.trans.bind(this._host);
    return new Promise((done, fail) => {
      const late = setTimeout(
        () => answer(trans('The kernel does not answer; interrupt it to stop the run.')),
        ANSWER_MS
      );
      const answer = (error: string | null) => {
        clearTimeout(late);
        this._answers.delete(id);
        if (error === null) {
          done();
        } else {
          fail(new Error(error));
        }
      };
      this._answers.set(id, answer);
      this._model.send({ type: 'control', id, action, text });
    });
  }
}

/** A part of the state; an empty one when it is none. */
function read(part: unknown): { events: unknown[]; artifacts: Record<string, IEmbeddedArtifact> } {
  try {
    const { events, artifacts } = asBundle(JSON.parse(String(part)))!;
    return { events, artifacts };
  } catch {
    return { events: [], artifacts: {} };
  }
}

/** Put the panel into `el`, as anywidget asks; returns a function that removes it. */
function render({ model, el }: { model: IModel; el: HTMLElement }): () => void {
  const panel = new Panel(model);
  el.append(panel.node);
  return () => panel.dispose();
}

export default { render };
