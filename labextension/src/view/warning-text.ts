/** A warning in the few words of a chip. */

import { visibleName } from '../artifacts/names';
import { formatCount, formatSize } from '../formatting';
import { IWarning } from './file-history';
import { IHost } from './host';

export function warningText(warning: IWarning, host: IHost): string {
  const { trans } = host;
  const name = shortName(warning.path);
  switch (warning.kind) {
    case 'shrunk':
      return warning.unit === 'lines'
        ? trans('%1 lost %2 lines', name, formatCount(warning.count))
        : trans('%1 lost %2', name, formatSize(warning.count));
    case 'removed':
      return trans('%1 removed', name);
    case 'changed':
      return trans('%1 changed', name);
    case 'removed-many':
      return trans('%1 files removed', formatCount(warning.count));
    case 'empty':
      return trans('%1 is empty', name);
    case 'same-name':
      return trans('%1 is not output/%1', name);
    case 'error':
      return trans('error printed, exit 0');
  }
}

/** Return the last part of a path, safe to show. */
export function shortName(path: string): string {
  return visibleName(path.slice(path.lastIndexOf('/') + 1));
}
