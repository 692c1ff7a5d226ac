/**
 * Kinds of files, by the endings of their names: the type in an event would be no safer. `index.ts` has the viewer of
 * each kind, `view/outcome.ts` the order of kinds, `style/view.css` their signs, and `card/artifact_html.py` the
 * viewers of cards without scripts. A viewer that decodes a file needs a limit in `bounds.ts` and a hostile file in
 * tests/bombs.py. `agent/artifacts.py` has the recorded types, and `agent/blank_files.py` finds blank files. The
 * suffixes of media are also in `trajectory/doubts/evidence.py`, and a test compares them.
 */
import { IArtifact } from './content';
import { suffix } from './names';

export type Shown =
  | 'image'
  | 'document'
  | 'audio'
  | 'video'
  | 'midi'
  | 'table'
  | 'preview'
  | 'markdown'
  | 'json'
  | 'text'
  | 'pdf'
  | 'other';

export interface IKind {
  shown: Shown;
  /** MIME type under which the browser plays or shows the file. */
  type: string;
  /** MIME type of the file in a new tab, or `framed` for the sandboxed frame. Absent if the file opens in no tab. */
  opens?: string;
}

const TEXT = 'text/plain;charset=utf-8';
const image = (type: string): IKind => ({ shown: 'image', type, opens: type });
const audio = (type: string): IKind => ({ shown: 'audio', type, opens: type });
const video = (type: string): IKind => ({ shown: 'video', type, opens: type });
const written = (shown: IKind['shown']): IKind => ({ shown, type: TEXT, opens: TEXT });
const framed: IKind = { shown: 'document', type: 'text/html', opens: 'framed' };
const preview: IKind = { shown: 'preview', type: 'application/octet-stream' };
const midi: IKind = { shown: 'midi', type: 'audio/midi' };
const OTHER: IKind = { shown: 'other', type: 'application/octet-stream' };

const KINDS = new Map<string, IKind>([
  ['.png', image('image/png')],
  ['.jpg', image('image/jpeg')],
  ['.jpeg', image('image/jpeg')],
  ['.gif', image('image/gif')],
  ['.webp', image('image/webp')],
  ['.html', framed],
  ['.htm', framed],
  ['.xhtml', framed],
  ['.svg', framed],
  ['.wav', audio('audio/wav')],
  ['.mp3', audio('audio/mpeg')],
  ['.ogg', audio('audio/ogg')],
  ['.oga', audio('audio/ogg')],
  ['.mp4', video('video/mp4')],
  ['.webm', video('video/webm')],
  ['.ogv', video('video/ogg')],
  ['.mid', midi],
  ['.midi', midi],
  ['.csv', written('table')],
  ['.tsv', written('table')],
  ['.parquet', preview],
  ['.feather', preview],
  ['.xlsx', preview],
  ['.md', written('markdown')],
  ['.markdown', written('markdown')],
  ['.json', written('json')],
  ['.geojson', written('json')],
  ['.ipynb', written('json')],
  ['.pdf', { shown: 'pdf', type: 'application/pdf', opens: 'application/pdf' }]
]);

const TEXTS = new Set(
  '.txt .log .py .sh .r .js .ts .css .yaml .yml .toml .ini .cfg .tex .xml .sql .c .h .cpp .rs .go .java .rst .bib .jsonl .ndjson .diff .patch .srt .vtt .dot'.split(
    ' '
  )
);

export function kindOf(artifact: IArtifact): IKind {
  const ending = suffix(artifact.path);
  const known = KINDS.get(ending);
  if (known) {
    return known;
  }
  return TEXTS.has(ending) || artifact.mime.startsWith('text/') ? written('text') : OTHER;
}
