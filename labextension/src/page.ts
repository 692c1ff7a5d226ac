/** The script of an exported HTML file: shows the run that the file holds as JSON. Needs no network and no server. */

import { asBundle } from './embedded';
import { EventFeed } from './feed';
import { PlainHost } from './plain-host';
import { errorText } from './view/dom';
import { TrajectoryView } from './view/view';

/** Host of the exported page, whose content security policy allows no network. */
class OfflineHost extends PlainHost {
  readonly offline = true;
}

/** Show the run in `source`, the text of a JSON bundle, within `place`. */
function show(source: string, place: HTMLElement): void {
  const bundle = asBundle(JSON.parse(source));
  if (!bundle || bundle.problem) {
    throw new Error(bundle?.problem ?? 'This file does not contain a run.');
  }
  const view = new TrajectoryView(new OfflineHost(bundle));
  new EventFeed().take(bundle.events).forEach(event => view.add(event));
  place.replaceChildren(view.node);
  view.flush();
}

const place = document.getElementById('llm-sandbox-view')!;
try {
  show(document.getElementById('llm-sandbox-run')!.textContent ?? '', place);
} catch (error) {
  place.textContent = `The run cannot be shown: ${errorText(error)}`;
}
