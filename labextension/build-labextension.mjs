// Builds the extension for JupyterLab and Notebook from lib/, and puts beside it what tells Lab how it was installed.
// Needs neither Python nor JupyterLab: the list of Lab's own packages comes from npm.
//
// Of Lab's packages, the extension asks for the versions that package.json names, which are those of the oldest Lab that
// it is for; the list from npm is that of a newer Lab.

import { spawnSync } from 'node:child_process';
import { copyFileSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

const read = path => JSON.parse(readFileSync(path, 'utf8'));
const builder = 'node_modules/@jupyter/builder/lib/build-labextension.js';
const core = read('node_modules/@jupyterlab/core-meta/core.package.json');
const { dependencies, jupyterlab } = read('package.json');
const oldest = Object.entries(dependencies).filter(([name]) => name.startsWith('@jupyterlab/'));
for (const [name, range] of oldest) {
  core.dependencies[name] = range;
  delete core.resolutions?.[name];
}
writeFileSync('lib/core.package.json', JSON.stringify(core));
const words = [builder, '--core-package-file', 'lib/core.package.json', ...process.argv.slice(2), '.'];
const done = spawnSync(process.execPath, words, { stdio: 'inherit' });
if (done.status === 0) {
  copyFileSync('install.json', join(jupyterlab.outputDir, 'install.json'));
}
process.exit(done.status ?? 1);
