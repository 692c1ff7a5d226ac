/** What tests of the view need of it, for a page in Chromium and for a DOM in Node. */

import { renderArtifact } from '../src/artifacts';
import { delimiterOf, parseDelimited, typeOf } from '../src/artifacts/csv';
import { DENIED, policy, PRELUDE } from '../src/artifacts/frame';
import { parseMidi } from '../src/artifacts/midi';
import { pageCost } from '../src/artifacts/page-cost';
import { pdfSize } from '../src/artifacts/pdf';
import { pictureBytes, pictureSize } from '../src/artifacts/picture-size';
import { soundSize } from '../src/artifacts/sound-size';
import { videoSize } from '../src/artifacts/video-size';
import { isHeavyMarkdown } from '../src/markdown-cost';
import { downloadName, visibleName } from '../src/artifacts/names';
import { staticPage } from '../src/artifacts/static-page';
import { PlainHost } from '../src/plain-host';
import { TrajectoryView } from '../src/view/view';

class Host extends PlainHost {
  trusted = true;
}

function hostOf(bundle, options) {
  return Object.assign(new Host(bundle), options);
}

/** Show a run. */
function show(bundle, options = {}) {
  const host = hostOf(bundle, options);
  const view = new TrajectoryView(host);
  view.add(...bundle.events);
  document.getElementById('view').replaceChildren(view.node);
  view.flush();
  return { host, view };
}

/** Show a file of a run, after those that are shown already. */
function showFile(bundle, path, options = {}) {
  const host = hostOf(bundle, options);
  const event = bundle.events.find(event => event.kind === 'artifact' && event.path === path);
  const node = renderArtifact(event, host);
  document.getElementById('view').append(node);
  return { host, node };
}

const lsn = {
  TrajectoryView,
  PlainHost,
  renderArtifact,
  show,
  showFile,
  parseMidi,
  parseDelimited,
  delimiterOf,
  typeOf,
  downloadName,
  visibleName,
  policy,
  DENIED,
  PRELUDE,
  staticPage,
  pageCost,
  pdfSize,
  pictureBytes,
  pictureSize,
  soundSize,
  videoSize,
  isHeavyMarkdown
};
Object.assign(window, { lsn });
