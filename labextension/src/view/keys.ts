/** The list of keys, shown over the page until a person closes it. */

import { h, makeButton } from './dom';
import { Trans } from '../formatting';

/** Places in which there are more keys than in every view: a tab of its own, and JupyterLab or Notebook. */
export interface IKeyPlaces {
  tab?: boolean;
  lab?: boolean;
}

function keys(trans: Trans, { tab, lab }: IKeyPlaces): [string, string][] {
  const all: ([string, string] | false | undefined)[] = [
    lab && ['F9', trans('Continue the run that waits for you')],
    lab && ['F10', trans('Continue to the next call or result')],
    lab && ['Shift+F9', trans('End the run that waits for you')],
    tab && ['↓  →', trans('Next step')],
    tab && ['↑  ←', trans('Previous step')],
    tab && ['Home  End', trans('First step, last step')],
    tab && ['p', trans('Large type, to show it to a class; Esc ends it')],
    ['e', trans('Next problem: an error or a warning')],
    ['f', trans('Fold or unfold all steps')],
    ['/', trans('Search the steps')],
    ['?', trans('This list')],
    lab && ['Shift+S', trans('Insert a sandbox cell below, while no text is edited')]
  ];
  return all.filter((one): one is [string, string] => !!one);
}

/** Show the list within `place`. After it is closed, the focus returns to the earlier element. */
export function showKeys(place: HTMLElement, trans: Trans, places: IKeyPlaces): void {
  if (place.querySelector('dialog.lsn-keys')) {
    return;
  }
  const rows = keys(trans, places).flatMap(([key, text]) => [h('dt', {}, h('kbd', {}, key)), h('dd', {}, text)]);
  const close = makeButton(trans('Close'), () => dialog.close());
  const dialog = h(
    'dialog',
    { class: 'lsn-keys', 'aria-label': trans('Keys'), 'data-lm-suppress-shortcuts': 'true' },
    h('h3', {}, trans('Keys')),
    h('dl', {}, ...rows),
    close
  );
  dialog.addEventListener('close', () => dialog.remove());
  dialog.addEventListener('keydown', event => event.stopPropagation());
  place.append(dialog);
  dialog.showModal();
}
