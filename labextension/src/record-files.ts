/** Kinds of files that open as a run. */

import { IRenderMime } from '@jupyterlab/rendermime-interfaces';

/** Type of the text of such a file in Lab. */
export const RECORD_MIME = 'text/vnd.llm-sandbox.record';
/** The viewer of such files, in the menu *Open With*. */
export const RECORD_FACTORY = 'Trajectory';

export const recordFileTypes: IRenderMime.IFileType[] = [
  {
    name: 'llm-sandbox-journal',
    displayName: 'Journal of a run',
    mimeTypes: [RECORD_MIME],
    extensions: [],
    pattern: '^journal\\.jsonl$',
    fileFormat: 'text'
  },
  {
    name: 'llm-sandbox-trajectory',
    displayName: 'Trajectory',
    mimeTypes: [RECORD_MIME],
    extensions: [],
    pattern: '^trajectory\\.json$',
    fileFormat: 'text'
  },
  {
    name: 'llm-sandbox-traj',
    displayName: 'Trajectory of SWE-agent or mini-swe-agent',
    mimeTypes: [RECORD_MIME],
    extensions: [],
    pattern: '^.+\\.traj(\\.json)?$',
    fileFormat: 'text'
  }
];

/** This viewer is the default of no file: other projects have files of these names, and Lab looks at names only. */
export const recordWidget: IRenderMime.IDocumentWidgetFactoryOptions = {
  name: RECORD_FACTORY,
  modelName: 'text',
  primaryFileType: 'llm-sandbox-journal',
  fileTypes: recordFileTypes.map(({ name }) => name)
};
