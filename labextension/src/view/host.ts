/** Services of a host (Lab, Notebook, the cell's panel, an exported page) for the view. A host may lack some. */

import type { IKeyPlaces } from './keys';

/** The first rows of a table in a format that only Python reads. */
export interface ITablePreview {
  columns: { name: string; type: string }[];
  rows: string[][];
  total_rows: number;
}

export interface IArtifactContent {
  data?: Uint8Array;
  mime: string;
  preview?: ITablePreview;
  /** The reason in words if `data` is missing. */
  omitted?: string;
}

export interface IControls {
  stop(): Promise<void>;
  pause(): Promise<void>;
  resume(): Promise<void>;
  /** Say something to the model, which reads it before its next reply. */
  say(text: string): Promise<void>;
}

/** Settings that apply from the next request on. Missing settings stay as they are. */
export interface IChangedSettings {
  model?: string;
  settings?: Record<string, unknown>;
  limits?: Record<string, unknown>;
  /** Breakpoints that replace all breakpoints in force. */
  breakpoints?: string[];
  /** `auto`: no call waits for an approval any more. */
  approve?: 'ask' | 'edits' | 'auto';
  /** Hosts that the sandbox may reach from now on, as HOST:PORT. */
  allow?: string[];
  /** Hosts that may each get one connection. */
  allow_once?: string[];
}

/** Decisions about the held call. `call` is the call's id, so that a late decision never applies to the next call. */
export interface IDecisions {
  /** Execute the call and resume. */
  continue(call: string): Promise<void>;
  /** Execute the call, and pause at the next place where a run can pause. */
  step(call: string): Promise<void>;
  /** Execute the call with `changes` to its arguments. */
  edit(call: string, changes: Record<string, unknown>): Promise<void>;
  /** Do not execute the call. The model reads `observation` as its result. */
  skip(call: string, observation: string): Promise<void>;
  /** Let the model read `text` in place of the call's result. */
  observe(call: string, text: string): Promise<void>;
  change(changed: IChangedSettings): Promise<void>;
}

/** A file or folder of a sandbox. */
export interface IFileEntry {
  path: string;
  kind: 'file' | 'directory' | 'link' | 'other';
  size: number;
}

/** A file or folder as it was at a checkpoint. */
export interface IOldFile extends IFileEntry {
  /** True for a file of the sandbox's image: the history does not hold its content. */
  base?: boolean;
  /** Target of a link. */
  target?: string | null;
}

export interface IOldFolder {
  path: string;
  files: IOldFile[];
  /** Number of all, listed or not. */
  total: number;
  /** True for a folder of the sandbox's image: the history does not list it. */
  base: boolean;
}

/** A path in which two checkpoints differ. */
export interface IFileChange {
  path: string;
  kind: 'added' | 'modified' | 'deleted';
  size: number;
}

export interface IFileChanges {
  changes: IFileChange[];
  /** Number of all, listed or not. */
  total: number;
  /** The unknown part, in words. */
  incomplete: string;
}

/** The files of earlier steps, read from the history that the host keeps of the run, and never from the sandbox. */
export interface IHistory {
  /** Read a folder; if `path` is empty, the folder in which the run works. */
  files(checkpoint: string, path: string): Promise<IOldFolder>;
  read(checkpoint: string, path: string): Promise<Uint8Array>;
  changes(from: string, to: string): Promise<IFileChanges>;
  /** Return a unified diff, or, in `note`, the reason why there is none. */
  diff(from: string, to: string, path: string): Promise<{ diff: string | null; note: string }>;
}

export type RewindWhat = 'both' | 'files' | 'conversation';

/** Paths that a rewind changes; `paths` has the first of them. */
export interface IRewindPaths {
  total: number;
  paths: { path: string; kind: string }[];
}

/** Effects of a rewind. */
export interface IRewindPreview {
  /** Paths that this run changed. */
  own: IRewindPaths;
  /** Paths that were changed since, not by a step of this run. */
  others: IRewindPaths;
  /** Words, for use in a sentence, that name who changed `others`. */
  by: string;
  /** The unknown part, in words. */
  incomplete: string;
  /** Calls outside the sandbox that the rewind cannot undo, such as "step 3: time__now". */
  outside?: string[];
}

/** A second run. */
export interface IForkMade {
  /** The name of its folder; it is also its id. */
  folder: string;
}

/** Options for the beginning of a resumed run. */
export interface IResumeOptions {
  /** Message to the model. */
  say?: string;
  /** Arguments of the next call, in place of those that the model proposed. */
  edit?: Record<string, unknown>;
  /** Name of a fork, which is resumed in place of this run. */
  run?: string;
}

/** Time travel: rewind, continue or fork a run, with the kernel that ran it. */
export interface ITimeTravel {
  /** Preview a rewind; null if the host does not know more than `IHistory`. */
  preview?(step: number, what: RewindWhat): Promise<IRewindPreview | null>;
  /** Rewind the run, and return what was done, in words. `others`: changes by other runs may be undone too. */
  rewind(step: number, what: RewindWhat, others: boolean): Promise<string>;
  /** Undo the newest rewind, and return what was done, in words. */
  undo(others: boolean): Promise<string>;
  /** Create a second run from the end of a step. Null if the host does not know the name of the new run. */
  fork(step: number): Promise<IForkMade | null>;
  /** Resume the run; resolves when it has ended or waits again. */
  resume?(options: IResumeOptions): Promise<void>;
}

export interface IHost {
  /** Return the content of a file of the output folder; null if the file is missing. */
  artifact(path: string): Promise<IArtifactContent | null>;
  /** Translate; `%1`, `%2`... stand for the arguments. */
  trans(text: string, ...args: (string | number)[]): string;
  /** True if a person may run the scripts of artifacts (in their sandboxed frame). */
  readonly trusted: boolean;
  /** True if scripts of artifacts run without a click: a setting of the person. */
  readonly runsPages?: boolean;
  /** True if nothing on this page can use the network, whatever the person allows. */
  readonly offline?: boolean;
  /** Render Markdown safely into `node`; without it Markdown is shown as text. */
  renderMarkdown?(text: string, node: HTMLElement): void;
  /** Render terminal output with its colours safely into `node`; without it escape sequences are removed. */
  renderAnsi?(text: string, node: HTMLElement): void;
  /** Present while the run can be controlled. */
  controls?: IControls;
  /** Present where a person can decide about a held call. */
  decisions?: IDecisions;
  /** Present where the files of earlier steps can be read. */
  history?: IHistory;
  /** Present where the run can be rewound. */
  timeTravel?: ITimeTravel;
  /** Show the events that were recorded of an ended run after it was shown. */
  refresh?(): Promise<void>;
  /** Make `link` lead to the run in the neighbouring folder `folder`. Absent if the host cannot open other runs. */
  linkRun?(link: HTMLAnchorElement, folder: string): void;
  /** Keys in addition to the view's. */
  readonly keys?: IKeyPlaces;
  /** Choices of the person for as long as this run is shown, e.g. that an artifact may use the network. */
  readonly choices: Map<string, 'allowed' | 'denied'>;
}
