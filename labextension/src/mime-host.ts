/** The host of the view in JupyterLab and Notebook: in an output, or in a file's tab. */

import { PageConfig, URLExt } from '@jupyterlab/coreutils';
import { removeMath, renderText, replaceMath } from '@jupyterlab/rendermime';
import { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { ServerConnection } from '@jupyterlab/services';

import { cleanHtml } from './clean';
import { embeddedArtifact, ITrajectoryBundle } from './embedded';
import { MOST_BYTES } from './feed';
import { settings } from './live';
import { IRecord } from './formats';
import { asWritten } from './formatting';
import { isHeavyMarkdown } from './markdown-cost';
import { isBelow, within } from './paths';
import { IArtifactContent, IControls, IDecisions, IHistory, IHost, ITimeTravel } from './view/host';
import { Trajectory } from './trajectory/fold';
import { isEvent } from './valid';

export class MimeHost implements IHost {
  trusted = false;
  /** True in an output of a notebook, false in a file. */
  inNotebook = false;
  controls?: IControls;
  decisions?: IDecisions;
  history?: IHistory;
  timeTravel?: ITimeTravel;
  refresh?: () => Promise<void>;
  keys = { tab: false, lab: true };
  bundle: ITrajectoryBundle | null = null;
  /** The run's folder, relative to the file that is shown; null if unknown. */
  folder: string | null = null;
  /** Function that reads a file while the run is live. */
  live: ((path: string) => Promise<IArtifactContent | null>) | null = null;
  /** The shown run, which knows the size of a file before the file is loaded. */
  trajectory: Trajectory | null = null;
  /** True after a file was found nowhere. The final card, which comes at the end of the run, may hold it. */
  missed = false;
  readonly choices = new Map<string, 'allowed' | 'denied'>();
  private _bundle: IRenderMime.TranslationBundle | undefined;

  constructor(private _options: IRenderMime.IRendererOptions) {
    this._bundle = _options.translator?.load('llm_sandbox_nb');
    this.trans = this.trans.bind(this);
  }

  get runsPages(): boolean {
    return this.inNotebook && this.trusted && settings.runPages;
  }

  trans(text: string, ...args: (string | number)[]): string {
    return this._bundle ? this._bundle.__(text, ...args) : asWritten(text, ...args);
  }

  async artifact(path: string): Promise<IArtifactContent | null> {
    const embedded = () => this.bundle && embeddedArtifact(this.bundle, path);
    const held = embedded();
    if (held?.data) {
      return held;
    }
    const live = await this.live?.(path);
    if (live || this.trusted) {
      const found = live ?? (await this._beside(path)) ?? embedded();
      this.missed ||= !found?.data;
      return found;
    }
    // An untrusted notebook makes no request: it could name any file of the server.
    const mime = this.trajectory?.artifacts.get(path)?.mime ?? '';
    return { mime, omitted: this.trans('Not loaded: this notebook is not trusted, and does not hold the file.') };
  }

  renderMarkdown(text: string, node: HTMLElement): void {
    node.textContent = text;
    const { markdownParser, latexTypesetter } = this._options;
    if (!markdownParser || isHeavyMarkdown(text)) {
      return;
    }
    const parts = removeMath(text);
    void markdownParser.render(parts.text).then(html => {
      node.replaceChildren(cleanHtml(replaceMath(html, parts.math)));
      node.classList.add('jp-RenderedHTMLCommon', 'lsn-markdown');
      return parts.math.length && node.isConnected ? latexTypesetter?.typeset(node) : undefined;
    });
  }

  renderAnsi(text: string, node: HTMLElement): void {
    const { sanitizer, translator } = this._options;
    // No links: the text comes from the model, and a link could lead to this server.
    const plain = {
      sanitize: (...given: Parameters<typeof sanitizer.sanitize>) => sanitizer.sanitize(...given),
      getAutolink: () => false
    };
    void renderText({ host: node, source: text, sanitizer: plain, translator });
  }

  /** Make a link lead to the journal of another run, as links in notebooks do. */
  linkRun(link: HTMLAnchorElement, folder: string): void {
    const { resolver, linkHandler } = this._options;
    if (!resolver || !linkHandler || this.folder === null || folder.includes('/') || !isBelow(folder)) {
      return;
    }
    const beside = this.folder ? this.folder.replace(/[^/]*\/*$/, '') : '../';
    const path = `${beside}${encodeURIComponent(folder)}/journal.jsonl`;
    void resolver.resolveUrl(path).then(async place => {
      link.href = await resolver.getDownloadUrl(place);
      linkHandler.handleLink(link, decodeURI(place), '');
    });
  }

  /** Read the text of the run's journal; null if there is none. */
  async journal(): Promise<string | null> {
    const bytes = this.folder === null ? null : await this._load(within(this.folder, 'journal.jsonl'));
    return bytes && new TextDecoder().decode(bytes);
  }

  /** Read a record of another project through the server: its events, or a sentence about the problem. */
  async foreignRecord(text: string): Promise<IRecord> {
    const settings = ServerConnection.makeSettings();
    const url = URLExt.join(settings.baseUrl, 'llm-sandbox/api/foreign-record');
    try {
      const response = await ServerConnection.makeRequest(url, { method: 'POST', body: text }, settings);
      const { events, message } = (await response.json()) as { events?: unknown[]; message?: string };
      if (response.ok || (message && response.status !== 404)) {
        return { events: (events ?? []).filter(isEvent), problem: message ? this.trans(message) : '' };
      }
    } catch {
      // no server, or one without this package
    }
    const problem = this.trans(
      'This file is no journal, and other trajectories need the server part of llm_sandbox_nb.'
    );
    return { events: [], problem };
  }

  private async _beside(path: string): Promise<IArtifactContent | null> {
    const known = this.trajectory?.artifacts.get(path);
    const href =
      this.bundle?.artifacts[path]?.href ?? (this.folder === null ? null : within(this.folder, `files/${path}`));
    if (!known || typeof href !== 'string') {
      return null;
    }
    if (known.size > MOST_BYTES) {
      return { mime: known.mime, omitted: this.trans('Too large to be shown here; it is in the run’s folder.') };
    }
    const data = await this._load(href);
    return data && { mime: known.mime, data };
  }

  /** Load a file next to the notebook or the journal. */
  private async _load(href: string): Promise<Uint8Array | null> {
    const { resolver } = this._options;
    if (!resolver || !isBelow(href)) {
      return null;
    }
    try {
      const place = await resolver.resolveUrl(href.split('/').map(encodeURIComponent).join('/'));
      const url = new URL(await resolver.getDownloadUrl(place), PageConfig.getBaseUrl()).href;
      const response = await ServerConnection.makeRequest(url, {}, ServerConnection.makeSettings());
      return response.ok ? new Uint8Array(await response.arrayBuffer()) : null;
    } catch {
      return null;
    }
  }
}
