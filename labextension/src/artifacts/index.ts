/** A file that the model made: its name, its content and its actions. All of it is hostile input. */
import { h } from '../view/dom';
import { formatSize } from '../formatting';
import { IHost } from '../view/host';
import { renderActions } from './actions';
import { renderAudio, renderVideo } from './media';
import { IArtifact, ILoaded, load } from './content';
import { renderDocument } from './document';
import { renderImage } from './images';
import { renderJson } from './json';
import { IKind, kindOf } from './kinds';
import { renderMarkdown } from './markdown';
import { renderMidi } from './pianoroll';
import { visibleName } from './names';
import { renderPdf } from './pdf';
import { renderDelimited, renderPreview } from './tables';
import { renderText } from './text';

export type { IArtifact } from './content';

const RENDERERS: Record<IKind['shown'], (loaded: ILoaded, kind: IKind) => HTMLElement | null> = {
  image: renderImage,
  document: renderDocument,
  audio: renderAudio,
  video: renderVideo,
  midi: renderMidi,
  table: renderDelimited,
  preview: renderPreview,
  markdown: renderMarkdown,
  json: renderJson,
  text: renderText,
  pdf: renderPdf,
  other: () => null
};

/** Show the name and size of a file at once, and its content when the host has loaded it. */
export function renderArtifact(artifact: IArtifact, host: IHost): HTMLElement {
  const name = visibleName(artifact.path);
  const caption = h(
    'figcaption',
    {},
    h('code', { dir: 'auto' }, name),
    h('span', { class: 'lsn-quiet' }, formatSize(artifact.size))
  );
  const body = h('div', { class: 'lsn-artifact-body', 'aria-busy': 'true' });
  const figure = h('figure', { class: 'lsn-artifact', 'aria-label': host.trans('File %1', name) }, caption, body);
  void fill(artifact, host, caption, body);
  return figure;
}

async function fill(artifact: IArtifact, host: IHost, caption: HTMLElement, body: HTMLElement): Promise<void> {
  try {
    const loaded = await load(artifact, host);
    if (typeof loaded === 'string') {
      body.replaceChildren(quiet(loaded));
      return;
    }
    const kind = kindOf(artifact);
    caption.append(renderActions(loaded, kind));
    const shown = RENDERERS[kind.shown](loaded, kind);
    body.replaceChildren(...(shown ? [shown] : []));
  } catch (error) {
    console.warn('A file of the run cannot be shown.', error);
    body.replaceChildren(quiet(host.trans('The file cannot be shown.')));
  } finally {
    body.removeAttribute('aria-busy');
  }
}

const quiet = (text: string) => h('p', { class: 'lsn-quiet' }, text);
