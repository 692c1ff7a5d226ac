/**
 * The panel in a cell whose run no server knows: the view as an anywidget, which gets its data over the widget's comm.
 *
 * `notebook/panel.py` is the kernel's side. Recorded events come as parts of the widget's state; unfinished text and
 * signs of life come as messages. Some kernels read no messages while a cell runs, so the buttons appear only after an
 * answer.
 */

import { asBundle, IEmbeddedArtifact } from './embedded';
import { EventFeed } from './feed';
import { PlainHost } from './plain-host';
import { h } from './view/dom';
import { IControls } from './view/host';
import { TrajectoryView } from './view/view';

/** Milliseconds without a sign of life until the kernel is shown as silent. A kernel sends one every second. */
const SILENT_MS = 10_000;
/** Milliseconds after which a decision without an answer is an error. */
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
  /** False: scripts of a frame could send messages to unknown listeners on this page (see `guard.ts`), so none run. */
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
   * Say hello again until the kernel answers, because a message that is sent before the page's subshell exists waits in
   * the shell that the cell keeps busy. The pauses grow, because a kernel that reads no messages now gets all of them
   * at the end of the cell.
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

  /** Note a sign of life of the kernel. While it waits for a person in a pause, the kernel gives no signs. */
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

/** Read a part of the state. An invalid part is empty. */
function read(part: unknown): { events: unknown[]; artifacts: Record<string, IEmbeddedArtifact> } {
  try {
    const { events, artifacts } = asBundle(JSON.parse(String(part)))!;
    return { events, artifacts };
  } catch {
    return { events: [], artifacts: {} };
  }
}

/** Put the panel into `el`, as anywidget expects, and return a function that removes the panel. */
function render({ model, el }: { model: IModel; el: HTMLElement }): () => void {
  const panel = new Panel(model);
  el.append(panel.node);
  return () => panel.dispose();
}

export default { render };
