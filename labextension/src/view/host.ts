/** What a host (Lab, Notebook, the cell's panel, an exported page) gives to the view. Everything optional may be missing. */

/** The first rows of a table in a format that only Python reads. */
export interface ITablePreview {
  columns: { name: string; type: string }[];
  rows: string[][];
  total_rows: number;
}

export interface IArtifactContent {
  /** The bytes, or an address from which the host allows them to be loaded. */
  data?: Uint8Array;
  url?: string;
  mime: string;
  preview?: ITablePreview;
  /** Why there is nothing to show, in words, when both are missing. */
  omitted?: string;
}

export interface IControls {
  stop(): Promise<void>;
  pause(): Promise<void>;
  resume(): Promise<void>;
  /** Say something to the agent; it reads it before its next reply. */
  say(text: string): Promise<void>;
}

export interface IHost {
  /** The content of a file of the output folder; null when it is not there. */
  artifact(path: string): Promise<IArtifactContent | null>;
  /** Translate; `%1`, `%2`... stand for the arguments. */
  trans(text: string, ...args: (string | number)[]): string;
  /** Whether scripts of artifacts may run (in their sandboxed frame). */
  readonly trusted: boolean;
  /** Whether nothing on this page can use the network, whatever the person allows. */
  readonly offline?: boolean;
  /** Render Markdown safely into `node`; without it Markdown is shown as text. */
  renderMarkdown?(text: string, node: HTMLElement): void;
  /** Render terminal output with its colours safely into `node`; without it escape sequences are removed. */
  renderAnsi?(text: string, node: HTMLElement): void;
  /** Present while the run can be controlled. */
  controls?: IControls;
  /** Remember a choice for as long as this run is shown, e.g. that an artifact may use the network. */
  remember?(key: string, value: string): void;
  recall?(key: string): string | null;
}
