/** Names that the model chose, made safe to show and to use as file names. */

const HIDDEN = /[\p{Cc}\p{Cf}\p{Co}\p{Cs}\u2028\u2029]/gu;
const RESERVED = /^(?:con|prn|aux|nul|com\d|lpt\d)(?:\.|$)/i;
const LONGEST = 120;

/** Return a path in which characters that could hide or reorder letters are written as escapes such as `\u202e`. */
export function visibleName(path: string): string {
  const shown = path.replace(HIDDEN, letter => `\\u${letter.codePointAt(0)!.toString(16).padStart(4, '0')}`);
  return shown.length <= 300 ? shown : `${shown.slice(0, 200)}…${shown.slice(-80)}`;
}

/** Return a file name for a download, without folders and misleading characters. */
export function downloadName(path: string): string {
  const last = path.split(/[\\/]/).pop() ?? '';
  const plain = last
    .replace(HIDDEN, '')
    .replace(/[<>:"|?*%]/g, '_')
    .replace(/^[.\s~-]+|[.\s]+$/g, '');
  const name = RESERVED.test(plain) ? `_${plain}` : plain;
  if (name.length <= LONGEST) {
    return name || 'file';
  }
  const ending = /\.[^.]{1,12}$/.exec(name)?.[0] ?? '';
  return name.slice(0, LONGEST - ending.length) + ending;
}

/** Return the ending of a name, with its dot and in lower case. It decides how a file is shown. */
export function suffix(path: string): string {
  return (/[^\\/.](\.[^\\/.]+)$/.exec(path)?.[1] ?? '').toLowerCase();
}
