/**
 * Dangers of a command, found by rules: a warning for the person who approves the command, and not a protection. The command
 * is hostile input: if no rule matches, the command can still be dangerous.
 */

import type { IHost } from './host';

/** Maximum number of checked characters of a command, and of marked dangers. */
export const MAX_CHECKED_CHARACTERS = 20_000;
const MARKS_MOST = 20;

interface IRule {
  /** Global, and with no repetition within a repetition: hostile text must not keep the page busy. */
  pattern: RegExp;
  text: string;
  /** True if the effect is outside the sandbox, where no rewind undoes it. */
  outside?: boolean;
}

/** All rules except those for `>`, `mv` and `cp`, which are dangerous only if they overwrite a file. */
const RULES: readonly IRule[] = [
  { pattern: /(?<![\w-])(?:rm|shred|unlink)(?:[ \t]+-[-\w=]{1,30}){0,8}(?=\s)/g, text: 'It deletes files.' },
  { pattern: /\bfind\b[^\n;|&]{0,100}[ \t]-delete\b/g, text: 'It deletes files.' },
  { pattern: /\b(?:shutil\.rmtree|os\.remove|os\.unlink|\.unlink\()/g, text: 'It deletes files.' },
  { pattern: /\btruncate\b[^\n;|&]{0,100}[ \t](?:-s|--size)/g, text: 'It cuts off the content of files.' },
  {
    pattern: /\bgit\b[^\n;|&]{0,100}[ \t]push\b[^\n;|&]{0,100}[ \t](?:--force(?:-with-lease)?|-f\b|\+\w)/g,
    text: 'It overwrites the history of a remote repository.',
    outside: true
  },
  {
    pattern: /\bgit\b[^\n;|&]{0,100}[ \t](?:reset\b[^\n;|&]{0,100}--hard|clean\b[^\n;|&]{0,100}-\w{0,8}f)/g,
    text: 'It discards changes that are not committed.'
  },
  { pattern: /\bdd\b[^\n;|&]{0,100}[ \t]of=\S{1,300}/g, text: 'It writes raw data over a file or a disk.' },
  { pattern: /\bmkfs(?:\.\w{1,12})?\b/g, text: 'It formats a disk.' },
  {
    pattern: /\b(?:curl|wget)\b[^\n;|&]{0,100}\|[ \t]{0,20}(?:sudo[ \t]{1,20})?(?:ba|z|da)?sh\b/g,
    text: 'It downloads a program and runs it unread.'
  },
  {
    pattern: /\b(?:curl|wget)\b[^\n;|&]{0,100}\|[ \t]{0,20}(?:sudo[ \t]{1,20})?(?:python|perl|ruby|node)\w{0,5}\b/g,
    text: 'It downloads a program and runs it unread.'
  },
  {
    pattern: /\bch(?:mod|own|grp)\b[^\n;|&]{0,60}[ \t](?:-[A-Za-z]{0,8}R[A-Za-z]{0,8}|--recursive)\b/g,
    text: 'It changes who may use all files of a folder.'
  },
  {
    pattern: /\b(?:drop[ \t]+(?:table|database)|truncate[ \t]+table|delete[ \t]+from)\b/gi,
    text: 'It deletes data of a database.'
  },
  { pattern: /\b(?:pkill|killall|kill[ \t]+-(?:9|KILL))\b/g, text: 'It ends programs.' },
  { pattern: /\b(?:shutdown|reboot|poweroff|halt)\b(?=\s|$)/g, text: 'It ends the sandbox.' },
  { pattern: /:\(\)\s{0,5}\{[^}\n]{0,40}\}\s{0,5};\s{0,5}:/g, text: 'It starts programs without end.' }
];
const REDIRECTED = /(?:^|[^>&\d<=-])(>\|?[ \t]{0,20}(["']?)([^\s"'<>|;&()]{1,300})\2)/g;
const MOVED = /(?<![\w-])(?:mv|cp)[ \t]([^\n;|&()]+)/g;
/** An option of `mv` and `cp` with which the last path is not overwritten. */
const KEEPING = /^(?:-\w*[nt]|--no-clobber|--target-directory)/;

export interface IDanger {
  from: number;
  to: number;
  text: string;
  outside: boolean;
}

/**
 * Return the dangerous parts of a command, in their order. No two parts overlap.
 *
 * `exists` returns true if the record knows a file at a path, which `>`, `mv` or `cp` would overwrite.
 */
export function dangersOf(command: string, exists: (path: string) => boolean, host: IHost): IDanger[] {
  const { trans } = host;
  const text = command.slice(0, MAX_CHECKED_CHARACTERS);
  const found: IDanger[] = [];
  for (const { pattern, text: words, outside } of RULES) {
    for (const match of text.matchAll(pattern)) {
      found.push({ from: match.index, to: match.index + match[0].length, text: trans(words), outside: !!outside });
    }
  }
  for (const match of text.matchAll(REDIRECTED)) {
    const [whole, part, , path] = match;
    if (exists(path)) {
      const from = match.index + whole.length - part.length;
      found.push({ from, to: from + part.length, text: trans('It overwrites %1.', path), outside: false });
    }
  }
  for (const match of text.matchAll(MOVED)) {
    const given = match[1].split(/[ \t]\d[<>]|[<>]/)[0].trimEnd();
    const path = lastPath(given.trimStart().split(/\s+/));
    if (path && exists(path)) {
      const to = match.index + match[0].length - match[1].length + given.length;
      found.push({ from: match.index, to, text: trans('It overwrites %1.', path), outside: false });
    }
  }
  if (command.length > MAX_CHECKED_CHARACTERS) {
    const beyond = { from: MAX_CHECKED_CHARACTERS, to: MAX_CHECKED_CHARACTERS, outside: false };
    found.push({ ...beyond, text: trans('It is long: only its beginning was checked.') });
  }
  found.sort((one, other) => one.from - other.from || other.to - one.to);
  const kept: IDanger[] = [];
  for (const one of found) {
    if (kept.length < MARKS_MOST && one.from >= (kept[kept.length - 1]?.to ?? 0)) {
      kept.push(one);
    }
  }
  return kept;
}

/** Return the path that `mv` or `cp` with these arguments overwrites if it exists; '' if there is no such path. */
function lastPath(words: string[]): string {
  const paths = words.filter(word => !word.startsWith('-')).map(word => word.replace(/^["']|["']$/g, ''));
  return paths.length > 1 && !words.some(word => KEEPING.test(word)) ? paths[paths.length - 1] : '';
}
