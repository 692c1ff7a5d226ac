/** What JupyterLab and Notebook give to the view, in an output or in a file's tab. */

import { PageConfig, URLExt } from '@jupyterlab/coreutils';
import { removeMath, renderText, replaceMath } from '@jupyterlab/rendermime';
import { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { ServerConnection } from '@jupyterlab/services';

import { cleanHtml } from './clean';
import { embeddedArtifact, ITrajectoryBundle } from './embedded';
import { pagesRun } from './live';
import { IRecord } from './formats';
import { isHeavyMarkdown } from './markdown-cost';
import { isBelow, within } from './paths';
import { IArtifactContent, IControls, IDecisions, IHistory, IHost, ITimeTravel } from './view/host';
import { Trajectory } from './trajectory/fold';
import { isEvent } from './valid';

/** Bytes of a file beside the notebook that is loaded to be shown. */
const LOADED = 64 * 1024 * 1024;

export class MimeHost implements IHost {
  trusted = false;
  /** Whether this is an output of a notebook, not a file. */
  inNotebook = false;
  controls?: IControls;
  decisions?: IDecisions;
  history?: IHistory;
  timeTravel?: ITimeTravel;
  refresh?: () => Promise<void>;
  keys = { tab: false, lab: true };
  bundle: ITrajectoryBundle | null = null;
  /** The run's folder, relative to the file that is shown; null when that is not known. */
  folder: string | null = null;
  /** Where files come from while the run is live. */
  live: ((path: string) => Promise<IArtifactContent | null>) | null = null;
  /** To know how large a file is before it is loaded. */
  trajectory: Trajectory | null = null;
  private _remembered = new Map<string, string>();
  private _bundle: IRenderMime.TranslationBundle | undefined;

  constructor(private _options: IRenderMime.IRendererOptions) {
    this._bundle = _options.translator?.load('llm_sandbox_nb');
    this.trans = this.trans.bind(this);
  }

  get runsPages(): boolean {
    return this.inNotebook && this.trusted && pagesRun();
  }

  trans(text: string, ...args: (string | number)[]): string {
    if (this._bundle) {
      return this._bundle.__(text, ...args);
    }
    return text.replace(/%(\d)/g, (whole, place) => String(args[Number(place) - 1] ?? whole));
  }

  async artifact(path: string): Promise<IArtifactContent | null> {
    const embedded = this.bundle && embeddedArtifact(this.bundle, path);
    if (embedded?.data) {
      return embedded;
    }
    const live = await this.live?.(path);
    if (live || this.trusted) {
      return live ?? (await this._beside(path)) ?? embedded;
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
    void renderText({ host: node, source: text, sanitizer, translator });
  }

  remember(key: string, value: string): void {
    this._remembered.set(key, value);
  }

  recall(key: string): string | null {
    return this._remembered.get(key) ?? null;
  }

  /** Lead to the journal of a run beside this one, by the way that links of notebooks take. */
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

  /** The text of the run's journal; null when there is none. */
  async journal(): Promise<string | null> {
    const bytes = this.folder === null ? null : await this._load(within(this.folder, 'journal.jsonl'));
    return bytes && new TextDecoder().decode(bytes);
  }

  /** The events of a record of another project, which the server reads; or the sentence why not. */
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

  /** The file in the run's folder. */
  private async _beside(path: string): Promise<IArtifactContent | null> {
    const known = this.trajectory?.artifacts.get(path);
    const href =
      this.bundle?.artifacts[path]?.href ?? (this.folder === null ? null : within(this.folder, `files/${path}`));
    if (!known || typeof href !== 'string') {
      return null;
    }
    if (known.size > LOADED) {
      return { mime: known.mime, omitted: this.trans('Too large to be shown here; it is in the run’s folder.') };
    }
    const data = await this._load(href);
    return data && { mime: known.mime, data };
  }

  /** A file beside the notebook or the journal, through the server's own way to files. */
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
