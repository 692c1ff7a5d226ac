/** The changes of each file, step by step, and the steps that succeeded and still lost data. Constant work for each call. */

import { ICallFinished, IFileDiff } from '../generated/events';
import { ICall, IStep } from '../trajectory/fold';

export type FileAction = 'made' | 'changed' | 'removed' | 'refused';

export interface IFileEvent {
  step: number;
  what: FileAction;
  /** Null if an edit was refused. */
  change: IFileDiff | null;
}

/** A step that succeeded, and still lost data or printed an error. */
export interface IWarning {
  step: number;
  kind: 'shrunk' | 'removed' | 'changed' | 'removed-many' | 'empty' | 'error' | 'same-name';
  /** Path of the file below the folder of the run; empty if the warning is about several files or no file. */
  path: string;
  /** Number of lines, bytes or files that are gone. */
  count: number;
  unit: 'lines' | 'bytes' | 'files' | '';
}

/** Maximum numbers of remembered files, of events of a file, and of files with one name. A journal may have more. */
const FILES_MOST = 5000;
const EVENTS_MOST = 2000;
const SAME_NAME_MOST = 20;
/** Minimum lines or bytes, and minimum share of a file, whose removal counts as a loss. */
const LOST_LINES = 10;
const LOST_BYTES = 1024;
const LOST_SHARE = 0.1;
const REMOVED_MANY = 3;
/** Maximum number of kept warnings of one step, and of characters of an output that are searched for an error. */
const WARNINGS_MOST = 20;
const TAIL_READ = 1500;
const ERROR_LINE = /^(?:Traceback \(most recent call last\)|fatal|error|FATAL|ERROR):/m;
const ERROR_ENDS = [': command not found\n', ': No such file or directory\n'];

function printsError(output: string): boolean {
  const tail = output.slice(-TAIL_READ);
  return ERROR_ENDS.some(end => tail.includes(end)) || ERROR_LINE.test(tail);
}

export class FileHistory {
  /** Each file by its path below the folder of the run, in the order in which the files were touched first. */
  readonly files = new Map<string, IFileEvent[]>();
  readonly warnings = new Map<number, IWarning[]>();
  /** Paths of these files and of given files, by the whole path and by its last part. */
  readonly byName = new Map<string, string[]>();
  /** Number of files that were made, changed or removed. */
  changed = 0;
  /** The first step with a warning; 0 when there is none. */
  firstWarning = 0;
  /** Grows with each change of this object. */
  version = 0;
  private _taken = new WeakSet<ICall>();

  /** `root` is the folder of the run, or empty. */
  constructor(public root = '') {}

  /** Take the finished calls of a step into account, each once. */
  take(step: IStep): void {
    for (const call of step.calls) {
      if (call.result && !this._taken.has(call)) {
        this._taken.add(call);
        this._takeCall(step.number, call, call.result);
      }
    }
  }

  /** Return the path without the folder of the run. */
  below(path: string): string {
    return this.root && path.startsWith(`${this.root}/`) ? path.slice(this.root.length + 1) : path;
  }

  /** Return true for a file that existed before the first step. */
  given(path: string): boolean {
    const first = this.files.get(path)?.[0];
    return !!first && (first.what === 'changed' || first.what === 'removed');
  }

  private _takeCall(step: number, call: ICall, result: ICallFinished): void {
    const warnings: IWarning[] = [];
    const edited = call.arguments?.path;
    if (result.error && typeof edited === 'string' && call.arguments?.command !== 'view') {
      this._remember(this.below(edited), { step, what: 'refused', change: null });
    }
    for (const change of result.changes) {
      const path = this.below(change.path);
      // An edit names its file and shows its diff. Only changes by a command, which nobody sees, need a warning.
      if (typeof edited !== 'string') {
        warnings.push(...this._lossOf(step, path, change, call));
      }
      const what = change.kind === 'added' ? 'made' : change.kind === 'deleted' ? 'removed' : 'changed';
      this._remember(path, { step, what, change });
    }
    this._warn(step, call, result, warnings);
  }

  private _warn(step: number, call: ICall, result: ICallFinished, warnings: IWarning[]): void {
    const failed = !!result.error || result.timed_out || !!result.exit_code;
    if (failed) {
      return;
    }
    const gone = result.changes.filter(change => change.kind === 'deleted').length;
    if (gone >= REMOVED_MANY && !warnings.some(one => one.kind === 'removed')) {
      warnings.unshift({ step, kind: 'removed-many', path: '', count: gone, unit: 'files' });
    }
    if (typeof call.arguments?.path !== 'string' && printsError(result.observation)) {
      warnings.unshift({ step, kind: 'error', path: '', count: 0, unit: '' });
    }
    if (warnings.length) {
      this.warnings.set(step, [...(this.warnings.get(step) ?? []), ...warnings].slice(0, WARNINGS_MOST));
      this.firstWarning = this.firstWarning ? Math.min(this.firstWarning, step) : step;
      this.version++;
    }
  }

  /** Return the losses of a change, compared with the file before. */
  private _lossOf(step: number, path: string, change: IFileDiff, call: ICall): IWarning[] {
    const known = this.files.get(path);
    const given = change.kind !== 'added' && (!known || this.given(path));
    if (change.kind === 'deleted') {
      return given ? [{ step, kind: 'removed', path, count: 1, unit: 'files' }] : [];
    }
    const before = change.size_before ?? known?.[known.length - 1]?.change?.size ?? 0;
    if (change.size === 0 && (before > 0 || (change.kind === 'added' && !/\btouch\b/.test(commandOf(call))))) {
      return [{ step, kind: 'empty', path, count: before, unit: 'bytes' }];
    }
    if (change.kind === 'added') {
      const name = path.slice(path.lastIndexOf('/') + 1);
      const beside = path !== `output/${name}` && this.files.has(`output/${name}`);
      return beside ? [{ step, kind: 'same-name', path, count: 0, unit: '' }] : [];
    }
    const [lines, linesBefore] = [change.lines, change.lines_before];
    const lost =
      typeof lines === 'number' && typeof linesBefore === 'number'
        ? { count: linesBefore - lines, of: linesBefore, least: LOST_LINES, unit: 'lines' as const }
        : { count: before - change.size, of: before, least: LOST_BYTES, unit: 'bytes' as const };
    if (lost.count >= lost.least && lost.count >= lost.of * LOST_SHARE) {
      return [{ step, kind: 'shrunk', path, count: lost.count, unit: lost.unit }];
    }
    return given ? [{ step, kind: 'changed', path, count: 0, unit: '' }] : [];
  }

  private _remember(path: string, event: IFileEvent): void {
    const events = this.files.get(path);
    if (event.change && !events?.some(one => one.change)) {
      this.changed++;
    }
    if (events && events.length < EVENTS_MOST) {
      events.push(event);
    } else if (!events && this.files.size < FILES_MOST) {
      this.files.set(path, [event]);
      this.name(path);
    }
    this.version++;
  }

  /** Let a file be found by its name. */
  name(path: string): void {
    for (const name of new Set([path, path.slice(path.lastIndexOf('/') + 1)])) {
      const known = this.byName.get(name) ?? [];
      if (known.length < SAME_NAME_MOST && !known.includes(path)) {
        this.byName.set(name, [...known, path]);
      }
    }
  }
}

function commandOf(call: ICall): string {
  const command = call.arguments?.command;
  return typeof command === 'string' ? command : call.rawArguments;
}
