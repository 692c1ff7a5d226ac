// Builds the extension for JupyterLab and Notebook from lib/, and puts beside it what tells Lab how it was installed.
// Needs neither Python nor JupyterLab: the list of Lab's own packages comes from npm.

import { spawnSync } from 'node:child_process';
import { copyFileSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

const builder = 'node_modules/@jupyter/builder/lib/build-labextension.js';
const core = 'node_modules/@jupyterlab/core-meta/core.package.json';
const done = spawnSync(process.execPath, [builder, '--core-package-file', core, ...process.argv.slice(2), '.'], {
  stdio: 'inherit'
});
if (done.status === 0) {
  const { outputDir } = JSON.parse(readFileSync('package.json', 'utf8')).jupyterlab;
  copyFileSync('install.json', join(outputDir, 'install.json'));
}
process.exit(done.status ?? 1);
