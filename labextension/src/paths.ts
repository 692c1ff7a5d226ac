/** Paths that a notebook or a journal names: only what lies below it is ever asked for. */

/** True for a relative path that stays below its start. */
export function isBelow(path: string): boolean {
  // eslint-disable-next-line no-control-regex
  return path !== '' && !/^\/|^[a-z][a-z0-9+.-]*:|[\\\u0000-\u001f]/i.test(path) && !path.split('/').includes('..');
}

/** `path` within `folder`; an empty folder is where one is. */
export function within(folder: string, path: string): string {
  return folder ? `${folder.replace(/\/+$/, '')}/${path}` : path;
}
