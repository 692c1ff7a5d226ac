/** The host of the view without Jupyter: an exported file, or the panel of a notebook outside of JupyterLab. */

import { AnsiUp } from 'ansi_up';
import { marked } from 'marked';
import { cleanHtml } from './clean';
import { embeddedArtifact, ITrajectoryBundle } from './embedded';
import { isHeavyMarkdown } from './markdown-cost';
import { IArtifactContent, IHost } from './view/host';

export class PlainHost implements IHost {
  readonly trusted: boolean = true;
  readonly offline: boolean = false;
  private _remembered = new Map<string, string>();

  constructor(public bundle: ITrajectoryBundle) {}

  async artifact(path: string): Promise<IArtifactContent | null> {
    return embeddedArtifact(this.bundle, path);
  }

  trans(text: string, ...args: (string | number)[]): string {
    return text.replace(/%(\d)/g, (whole, place) => String(args[Number(place) - 1] ?? whole));
  }

  renderMarkdown(text: string, node: HTMLElement): void {
    if (isHeavyMarkdown(text)) {
      node.textContent = text;
      return;
    }
    node.replaceChildren(cleanHtml(marked.parse(text, { async: false, gfm: true })));
    node.classList.add('lsn-markdown');
  }

  renderAnsi(text: string, node: HTMLElement): void {
    const ansi = new AnsiUp();
    ansi.use_classes = true;
    ansi.url_allowlist = { http: 1, https: 1 };
    node.replaceChildren(cleanHtml(ansi.ansi_to_html(text)));
  }

  remember(key: string, value: string): void {
    this._remembered.set(key, value);
  }

  recall(key: string): string | null {
    return this._remembered.get(key) ?? null;
  }
}
