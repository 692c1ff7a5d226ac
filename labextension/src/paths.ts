/** Paths that a notebook or a journal names. Only files below its folder are ever requested. */

/** Return true for a relative path that stays below its start. */
export function isBelow(path: string): boolean {
  // eslint-disable-next-line no-control-regex
  return path !== '' && !/^\/|^[a-z][a-z0-9+.-]*:|[\\\u0000-\u001f]/i.test(path) && !path.split('/').includes('..');
}

/** Return `path` within `folder`. An empty `folder` means the current folder. */
export function within(folder: string, path: string): string {
  return folder ? `${folder.replace(/\/+$/, '')}/${path}` : path;
}
