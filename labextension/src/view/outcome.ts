/** The outcome of the run, above its steps: the answer, or why there is no answer, and the files that the run made. */

import { pictureWarning } from '../artifacts/bounds';
import { addressFor, IArtifact, load } from '../artifacts/content';
import { kindOf, Shown } from '../artifacts/kinds';
import { visibleName } from '../artifacts/names';
import { h, makeButton, plainText, setText } from './dom';
import { Trajectory } from '../trajectory/fold';
import { formatSize } from '../formatting';
import { IChecked } from '../generated/events';
import { CHECK_LABELS, UNPROTECTED } from '../generated/words';
import { IHost } from './host';

/** Maximum number of files with a tile here. All others are only counted. */
const SHOWN_FILES = 12;
/** Number of last lines of a check's output that are shown. */
const CHECK_LINES = 20;
/** Maximum bytes of a picture that is shown in its tile. */
const PICTURE_BYTES = 8 * 2 ** 20;

/** The origins of the answer and of the files. */
export interface IOrigins {
  /** Return the chain of files that led to the answer, each with its step. */
  answerChain(): HTMLElement | null;
  /** Return the last step that changed a file after another step; null if there is none. */
  replacedIn(path: string): number | null;
}

export class Outcome {
  readonly node = h('div', { class: 'lsn-outcome' });
  private _head: HTMLElement;
  private _answer = h('div', { class: 'lsn-answer' });
  private _error = h('div', { class: 'lsn-error' });
  private _check = h('div', { class: 'lsn-check' });
  private _outputs = h('div', { class: 'lsn-outs', role: 'group' });
  private _shown = new Map<string, { key: string; node: HTMLElement }>();
  private _told: string | null = null;
  private _checked: IChecked | null = null;
  private _rest: { path: string; count: number; node: HTMLElement } | null = null;

  constructor(
    private _trajectory: Trajectory,
    private _host: IHost,
    private _open: (path: string) => void,
    private _origins: IOrigins
  ) {
    this._head = h('div', { class: 'lsn-answer-head' });
    this._outputs.setAttribute('aria-label', _host.trans('Files it made'));
    this.node.append(this._error, this._head, this._answer, this._check, this._outputs);
    this.update();
  }

  /** Show the present end of the run and its files. */
  update(): void {
    const { finish } = this._trajectory;
    const told = finish && JSON.stringify([finish.answer, finish.error]);
    if (told !== this._told) {
      this._told = told;
      setText(this._error, plainText(finish?.error ?? ''));
      this._showAnswer(finish?.answer ?? null);
    }
    this._error.hidden = !finish?.error;
    this._showCheck(this._trajectory.checks.at(-1) ?? null);
    this._drawFiles();
    this.node.hidden = !finish?.error && !finish?.answer && this._check.hidden && this._outputs.hidden;
  }

  private _showAnswer(answer: string | null): void {
    this._answer.hidden = this._head.hidden = !answer;
    const label = h('span', { class: 'lsn-label' }, this._host.trans('Answer'));
    this._head.replaceChildren(...(answer ? [label, this._origins.answerChain() ?? ''] : []));
    this._answer.replaceChildren();
    if (answer && this._host.renderMarkdown) {
      this._host.renderMarkdown(answer, this._answer);
    } else {
      setText(this._answer, plainText(answer ?? ''));
    }
  }

  /** Show the newest check: its verdict, its command, and the end of its output, unfolded if the check did not pass. */
  private _showCheck(check: IChecked | null): void {
    this._check.hidden = !check;
    if (check === this._checked) {
      return;
    }
    this._checked = check;
    this._check.replaceChildren(...(check ? renderCheck(check, this._host) : []));
    this._check.dataset.state = check?.verdict.outcome ?? '';
  }

  private _drawFiles(): void {
    const { artifacts } = this._trajectory;
    const all = [...artifacts.values()].sort((one, other) => PLACES[kindOf(one).shown] - PLACES[kindOf(other).shown]);
    const shown = all.slice(0, SHOWN_FILES);
    const nodes = shown.map(artifact => {
      const known = this._shown.get(artifact.path);
      const replaced = this._origins.replacedIn(artifact.path);
      const key = `${artifact.sha256} ${replaced}`;
      if (known?.key === key) {
        return known.node;
      }
      const node = renderThumbnail(artifact, replaced, this._host, () => this._open(artifact.path));
      this._shown.set(artifact.path, { key, node });
      return node;
    });
    const rest = all.length - shown.length;
    const more = rest > 0 && this._more(rest, all[SHOWN_FILES].path);
    this._outputs.hidden = !all.length;
    const next = more ? [...nodes, more] : nodes;
    if (
      next.length !== this._outputs.childElementCount ||
      next.some((node, at) => node !== this._outputs.children[at])
    ) {
      this._outputs.replaceChildren(...next);
    }
  }

  /** Return a button that leads to the files without a tile, of which `path` is the first. */
  private _more(rest: number, path: string): HTMLElement {
    if (this._rest?.path !== path || this._rest.count !== rest) {
      const label = this._host.trans('and %1 more', rest);
      const node = makeButton(label, () => this._open(path), { class: 'lsn-out-more' });
      this._rest = { path, count: rest, node };
    }
    return this._rest.node;
  }
}

function renderCheck(check: IChecked, host: IHost): HTMLElement[] {
  const { trans } = host;
  const { outcome, summary, protected: isProtected } = check.verdict;
  const words = trans(CHECK_LABELS.get(outcome) ?? 'Check');
  const number = check.number > 1 ? ` (${trans('check %1', check.number)})` : '';
  const line = h('summary', {}, h('b', {}, `${words}${number}: `), plainText(summary));
  const output = typeof check.output === 'string' ? check.output : check.output.preview;
  const lines = plainText(output).trimEnd().split('\n');
  const end = lines.slice(-CHECK_LINES).join('\n');
  const more = lines.length > CHECK_LINES ? `${trans('and %1 lines before', lines.length - CHECK_LINES)}\n` : '';
  const notes = [...(isProtected ? [] : [trans(UNPROTECTED)]), ...check.left_out.map(plainText)];
  const box = h(
    'details',
    {},
    line,
    h('code', {}, plainText(check.what)),
    h('pre', {}, `${more}${end}`),
    ...notes.map(note => h('div', { class: 'lsn-check-note' }, note))
  );
  box.open = (outcome !== 'passed' && end !== '') || notes.length > 0;
  return [box];
}

/** Places of kinds in the order of files: visible kinds first. Files with equal places stay in the order of the run. */
// prettier-ignore
const PLACES: Record<Shown, number> = {
  image: 0, document: 1, video: 2, audio: 3, midi: 4, pdf: 5, table: 6,
  preview: 7, markdown: 7, json: 7, text: 7, other: 7
};

function renderThumbnail(artifact: IArtifact, replaced: number | null, host: IHost, open: () => void): HTMLElement {
  const name = visibleName(artifact.path);
  const { shown } = kindOf(artifact);
  const picture = h('span', { class: 'lsn-pic', 'data-shown': shown, 'aria-hidden': 'true' });
  const node = makeButton(
    picture,
    open,
    { class: 'lsn-out', title: host.trans('Show %1', name) },
    h('span', { class: 'lsn-cap' }, h('b', { dir: 'auto' }, name), h('span', {}, formatSize(artifact.size))),
    replaced !== null && h('span', { class: 'lsn-replaced' }, host.trans('replaced in step %1', replaced))
  );
  node.classList.toggle('lsn-was-replaced', replaced !== null);
  if (shown === 'image' && artifact.size <= PICTURE_BYTES) {
    void showPicture(artifact, host, picture);
  }
  return node;
}

async function showPicture(artifact: IArtifact, host: IHost, place: HTMLElement): Promise<void> {
  const loaded = await load(artifact, host).catch(() => '');
  if (typeof loaded !== 'string' && !pictureWarning(loaded.bytes, host)) {
    const picture = h('img', { alt: '', decoding: 'async', draggable: 'false' });
    picture.addEventListener('error', () => picture.remove());
    picture.src = addressFor(picture, loaded.bytes, kindOf(artifact).type);
    place.replaceChildren(picture);
  }
}
