/** A run inside a notebook or an exported page: a JSON object with the events and the files. */

import { IArtifactContent, ITablePreview } from './view/host';
import { decodeBase64, heldOnPage, TooLargeError, unpack } from './packed';
import { isVersion } from './valid';

export const TRAJECTORY_MIME = 'application/vnd.llm-sandbox.trajectory+json';

export interface IEmbeddedArtifact {
  mime: string;
  size: number;
  /** Base64. */
  data?: string;
  /** The content of a file that is text, in place of `data`. */
  text?: string;
  /** The number of the figure of the card's page that holds the file, in place of `data`. */
  figure?: number;
  /** The reason why there is no data. */
  omitted?: string;
  /** The first rows of a table that only Python reads. */
  preview?: ITablePreview;
  /** Path of the file, relative to the notebook. */
  href?: string;
}

export interface ITrajectoryBundle {
  schema_version: number;
  run_id: string | null;
  events: unknown[];
  /** Number of characters to which texts in the events were clipped; null if no text was clipped. */
  text_limit: number | null;
  artifacts: Record<string, IEmbeddedArtifact>;
  /** Present while the run is live, so that the page can follow it at the server. */
  live?: { run_id: string; server?: boolean; folder?: string | null };
  /** The card's static page, which holds some of the files. */
  page: string;
  /** The reason why the record cannot be read, in one sentence; empty if it can. */
  problem: string;
}

/**
 * Return `value` as a bundle with all its parts; null for any other value. The events are not checked here.
 *
 * `page` is the card's static page, from the same output. Bundles of earlier versions hold events and files as plain
 * JSON; in later ones, one text holds both, compressed.
 */
export function asBundle(value: unknown, page?: unknown): ITrajectoryBundle | null {
  if (typeof value !== 'object' || value === null) {
    return null;
  }
  const { packed } = value as { packed?: unknown };
  const opened = typeof packed === 'string' ? openPacked(packed) : { problem: '' };
  const bundle: Partial<ITrajectoryBundle> = { ...value, ...opened };
  if (!Array.isArray(bundle.events)) {
    return null;
  }
  const { artifacts, live } = bundle;
  const known = isVersion(bundle.schema_version);
  return {
    schema_version: known ? (bundle.schema_version ?? 1) : 0,
    run_id: typeof bundle.run_id === 'string' ? bundle.run_id : null,
    events: known ? bundle.events : [],
    text_limit: typeof bundle.text_limit === 'number' ? bundle.text_limit : null,
    artifacts: typeof artifacts === 'object' && artifacts !== null ? artifacts : {},
    live: typeof live?.run_id === 'string' ? live : undefined,
    page: typeof page === 'string' ? page : '',
    problem: known ? opened.problem : NO_VERSION
  };
}

type Opened = Pick<ITrajectoryBundle, 'problem'> & Partial<Pick<ITrajectoryBundle, 'events' | 'artifacts'>>;

/** Unpack events and files. If that fails, return no events, no files, and the reason. */
function openPacked(text: string): Opened {
  try {
    const { events, artifacts } = JSON.parse(new TextDecoder().decode(unpack(text))) as Partial<ITrajectoryBundle>;
    return { events, artifacts, problem: '' };
  } catch (error) {
    return { events: [], artifacts: {}, problem: error instanceof TooLargeError ? TOO_LARGE : DAMAGED };
  }
}

const TOO_LARGE =
  'The record in this notebook is far larger than it says and was not unpacked; open journal.jsonl in the run’s folder.';
const NO_VERSION = 'The record in this notebook is not shown, because it does not name the version of its format.';
const DAMAGED = 'The record in this notebook is damaged; open journal.jsonl in the run’s folder.';

/** Return an embedded file; null if the bundle has no file of that name. */
export function embeddedArtifact(bundle: ITrajectoryBundle, path: string): IArtifactContent | null {
  if (!Object.hasOwn(bundle.artifacts, path)) {
    return null;
  }
  const entry = bundle.artifacts[path];
  const { mime, omitted, preview } = entry;
  const type = typeof mime === 'string' ? mime : 'application/octet-stream';
  const data = content(entry, bundle.page);
  if (data) {
    return { mime: type, data, preview: isPreview(preview) ? preview : undefined };
  }
  return { mime: type, omitted: typeof omitted === 'string' ? omitted : '' };
}

function content({ data, text, figure, size }: IEmbeddedArtifact, page: string): Uint8Array | null {
  if (typeof data === 'string') {
    return decodeBase64(data);
  }
  if (typeof text === 'string') {
    return new TextEncoder().encode(text);
  }
  return typeof figure === 'number' ? heldOnPage(page, figure, size) : null;
}

function isPreview(value: unknown): value is ITablePreview {
  const { columns, rows, total_rows } = (value ?? {}) as Partial<ITablePreview>;
  const isText = (cell: unknown) => typeof cell === 'string';
  return (
    typeof total_rows === 'number' &&
    Array.isArray(columns) &&
    columns.every(column => isText(column?.name) && isText(column?.type)) &&
    Array.isArray(rows) &&
    rows.every(row => Array.isArray(row) && row.every(isText))
  );
}
