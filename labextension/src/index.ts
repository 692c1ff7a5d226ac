/** The plugins for JupyterLab and Notebook. Outputs and files are shown by `mime.ts`, which works without them. */

import { debugPlugin } from './lab/debug';
import { followPlugin } from './lab/follow';
import { launcherPlugin } from './lab/launcher';
import { plugin } from './lab/plugin';
import { reloadPlugin } from './lab/reload';

export default [plugin, followPlugin, debugPlugin, reloadPlugin, launcherPlugin];
