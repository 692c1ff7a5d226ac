/**
 * The files that a step used. Their names are in the step's command, or in a program that the command runs, in lines
 * that the run wrote. They are searched for only when a step is open.
 */

import { FileHistory, IFileEvent } from './file-history';
import { ICall, IStep } from '../trajectory/fold';

export interface IUsed {
  path: string;
  /** Its last change before the step, or a later edit that was refused; null for a given file never touched. */
  event: IFileEvent | null;
  /** `warn`: the step with that change has a warning. `bad`: the edit was refused. */
  mark: '' | 'warn' | 'bad';
  /** True if the step wrote the file again, so that it may not have read it. */
  rewritten: boolean;
}

/** Maximum characters of a command, and of the run's lines in a program, that are read; maximum names and patterns. */
const READ = 64 * 1024;
const MAX_NAMES = 2000;
const PATTERNS_MOST = 50;
const WILDCARDS_MOST = 3;
const NAME_LONGEST = 300;
const USED_MOST = 30;
const PROGRAM =
  /\.(?:py|sh|bash|r|R|jl|js|mjs|ts|pl|rb|awk|sed|sql|mk|c|cc|cpp|rs|go|java|lua)$|(?:^|\/)(?:Makefile|Snakefile)$/;
const NAME = /[\p{L}\p{N}_.*?$%+~{}[\]/-]+/gu;
const IMPORT = /^[+\s]*(?:from|import)\s+([\w.]+)/gm;

export function isProgram(path: string): boolean {
  return PROGRAM.test(path);
}

export function madeWith(step: IStep, history: FileHistory): IUsed[] {
  const names = new Names(history, step.number);
  const found = new Set<string>();
  const todo = step.calls.flatMap(call => names.in(textOf(call)));
  for (let path = todo.shift(); path !== undefined && found.size < USED_MOST; path = todo.shift()) {
    if (!found.has(path)) {
      found.add(path);
      if (PROGRAM.test(path) && !written(step, path, history)) {
        todo.push(...names.in(programText(path, history, step.number)));
      }
    }
  }
  return [...found]
    .flatMap(path => entries(path, step, history))
    .sort((a, b) => rank(a) - rank(b) || stepOf(b) - stepOf(a));
}

/** Return the place in the order: marked files, data, programs, files that the step rewrote, files never touched. */
function rank(used: IUsed): number {
  return !used.event ? 4 : used.mark ? 0 : used.rewritten ? 3 : PROGRAM.test(used.path) ? 2 : 1;
}

function stepOf(used: IUsed): number {
  return used.event?.step ?? 0;
}

/** Return true if the step only writes this file, as an edit does, and does not run it. */
function written(step: IStep, path: string, history: FileHistory): boolean {
  return step.calls.every(call => {
    const edited = call.arguments?.path;
    return typeof edited === 'string' && history.below(edited) === path;
  });
}

function entries(path: string, step: IStep, history: FileHistory): IUsed[] {
  const events = (history.files.get(path) ?? []).filter(event => event.step < step.number);
  const last = [...events].reverse().find(event => event.what !== 'refused') ?? null;
  const refused = [...events].reverse().find(event => event.what === 'refused' && event.step > (last?.step ?? 0));
  const own = history.files.get(path)?.find(event => event.step === step.number && event.what !== 'refused');
  const rewritten = !!own;
  const found: IUsed[] = refused ? [{ path, event: refused, mark: 'bad', rewritten }] : [];
  if (last) {
    found.push({ path, event: last, mark: history.warnings.has(last.step) ? 'warn' : '', rewritten });
  } else if (own?.what !== 'made' && !refused) {
    found.push({ path, event: null, mark: '', rewritten });
  }
  return found;
}

/** Search for the files that a text names: by the path, its last part, a pattern, or as an imported module. */
class Names {
  constructor(
    private _history: FileHistory,
    private _step: number
  ) {}

  in(text: string): string[] {
    const found = new Set<string>();
    const patterns: string[] = [];
    const read = text.slice(0, READ);
    for (const [, module] of read.matchAll(IMPORT)) {
      this._named(`${module.split('.')[0]}.py`).forEach(path => found.add(path));
    }
    for (const [word] of read.matchAll(NAME)) {
      if (word.length > NAME_LONGEST) {
        continue;
      }
      const name = word.replace(/^\.\//, '').replace(/[.]$/, '');
      this._named(name).forEach(path => found.add(path));
      if (/[*?$%{[]/.test(name) && /[\p{L}\p{N}]\S*\.|\/\S*[*?$%{]/u.test(name) && patterns.length < PATTERNS_MOST) {
        patterns.push(name);
      }
    }
    patterns.forEach(pattern => this._matching(pattern).forEach(path => found.add(path)));
    return [...found];
  }

  /** Return the files with this path or name; else those with the same last part, if one path ends with the other. */
  private _named(name: string): string[] {
    const exact = this._known(name);
    if (exact.length) {
      return exact.includes(name) ? [name] : exact;
    }
    const last = name.slice(name.lastIndexOf('/') + 1);
    return name === last ? [] : this._known(last).filter(path => name.endsWith(path) || path.endsWith(name));
  }

  /** Return the files with a name that existed at the step. */
  private _known(name: string): string[] {
    return this._history.byName.get(name)?.filter(path => this._there(path)) ?? [];
  }

  private _there(path: string): boolean {
    return (this._history.files.get(path)?.[0].step ?? 0) <= this._step;
  }

  private _matching(pattern: string): string[] {
    const parts = pattern.split(/\*+|\?|\$\{\w+\}|\$\w+|%\w+|\{[^}]*\}|\[[^\]]*\]/);
    if (parts.length > WILDCARDS_MOST + 1) {
      return [];
    }
    const wanted = parts.join('\0').split('/');
    const paths = [...new Set([...this._history.byName.values()].slice(-MAX_NAMES).flat())];
    return paths.filter(path => path.length < 400 && this._there(path) && ends(path, wanted));
  }
}

/**
 * Return true if the last parts of a path are `wanted`, in which `\0` stands for any letters. A regular expression
 * could take very long.
 */
function ends(path: string, wanted: readonly string[]): boolean {
  const names = path.split('/').slice(-wanted.length);
  return names.length === wanted.length && wanted.every((one, at) => fits(names[at], one.split('\0')));
}

/** Return true for a name that has these texts in their order, the first at its start and the last at its end. */
function fits(name: string, [first, ...rest]: readonly string[]): boolean {
  const last = rest.pop();
  if (last === undefined || !name.startsWith(first)) {
    return name === first;
  }
  let at = first.length;
  for (const part of rest) {
    const found = name.indexOf(part, at);
    if (found < 0) {
      return false;
    }
    at = found + part.length;
  }
  return at <= name.length - last.length && name.endsWith(last);
}

function textOf(call: ICall): string {
  const values = call.arguments;
  if (!values) {
    return call.rawArguments;
  }
  const words = [values.command, values.path].filter(value => typeof value === 'string');
  return words.join(' ');
}

/** Return the lines that the run wrote into a program before a step. */
function programText(path: string, history: FileHistory, step: number): string {
  const diffs = (history.files.get(path) ?? [])
    .filter(event => event.step <= step)
    .map(event => event.change?.diff ?? '');
  const lines = diffs.join('\n').slice(-READ).split('\n');
  return lines.filter(line => line.startsWith('+') && !line.startsWith('+++')).join('\n');
}
