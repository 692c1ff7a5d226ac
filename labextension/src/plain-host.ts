/** The host of the view without Jupyter: an exported file, or the panel of a notebook outside of JupyterLab. */

import { AnsiUp } from 'ansi_up';
import { marked } from 'marked';
import { cleanHtml } from './clean';
import { embeddedArtifact, ITrajectoryBundle } from './embedded';
import { asWritten } from './formatting';
import { isHeavyMarkdown } from './markdown-cost';
import { IArtifactContent, IHost } from './view/host';

export class PlainHost implements IHost {
  readonly trusted: boolean = true;
  readonly offline: boolean = false;
  readonly choices = new Map<string, 'allowed' | 'denied'>();

  constructor(public bundle: ITrajectoryBundle) {}

  async artifact(path: string): Promise<IArtifactContent | null> {
    return embeddedArtifact(this.bundle, path);
  }

  trans(text: string, ...args: (string | number)[]): string {
    return asWritten(text, ...args);
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
}
