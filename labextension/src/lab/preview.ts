/** A file of a sandbox in a tab of its own, shown like a file that a run keeps. */

import { MainAreaWidget } from '@jupyterlab/apputils';
import { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import { ITranslator } from '@jupyterlab/translation';
import { Widget } from '@lumino/widgets';

import { renderArtifact } from '../artifacts';
import { blobOf } from '../artifacts/content';
import { downloadName, visibleName } from '../artifacts/names';
import { MOST_BYTES } from '../feed';
import { MimeHost } from '../mime-host';
import { h } from '../view/dom';
import { IFile, ISandbox, SandboxApi } from './api';
import { sandboxIcon } from './icon';

const TYPE = 'application/octet-stream';

/** Return a tab that shows the file. Its content comes from the model, so it may be hostile. */
export function previewFile(
  api: SandboxApi,
  sandbox: ISandbox,
  file: IFile,
  rendermime: IRenderMimeRegistry,
  translator: ITranslator
): MainAreaWidget<Widget> {
  const { sanitizer, latexTypesetter, markdownParser } = rendermime;
  const host = new MimeHost({
    mimeType: TYPE,
    resolver: null,
    linkHandler: null,
    sanitizer,
    latexTypesetter,
    markdownParser,
    translator
  });
  host.live = async path =>
    file.size > MOST_BYTES
      ? { mime: TYPE, omitted: host.trans('Too large to be shown here; download it.') }
      : { mime: TYPE, data: await api.read(sandbox.id, path) };
  const content = new Widget();
  content.addClass('lsn-preview');
  const artifact = { id: `${sandbox.id}:${file.path}`, path: file.path, mime: TYPE, size: file.size, sha256: '' };
  content.node.append(h('div', { class: 'lsn-view' }, renderArtifact(artifact, host)));
  const widget = new MainAreaWidget({ content });
  widget.title.label = visibleName(file.path.slice(file.path.lastIndexOf('/') + 1));
  widget.title.caption = visibleName(file.path);
  widget.title.icon = sandboxIcon;
  widget.title.closable = true;
  return widget;
}

/** Save the file on the person's computer. */
export async function downloadFile(api: SandboxApi, sandbox: ISandbox, file: IFile): Promise<void> {
  const data = await api.read(sandbox.id, file.path);
  const url = URL.createObjectURL(blobOf(data, TYPE));
  h('a', { href: url, download: downloadName(file.path) }).click();
  window.setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
