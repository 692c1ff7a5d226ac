// Builds what an exported HTML file and the panel in a cell hold: a script and a style sheet each, without a network.

import { build } from 'esbuild';
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

const output = '../llm_sandbox_nb/notebook/page';
/** Characters of licences in an exported page. */
const MOST_LICENSES = 64 * 1024;

rmSync(output, { recursive: true, force: true });
mkdirSync(output, { recursive: true });
const common = { bundle: true, minify: true, target: 'es2020', legalComments: 'none', logLevel: 'warning' };
const banner = {
  js: '/* llm-sandbox-nb, Apache-2.0. With DOMPurify (c) Cure53, Apache-2.0; marked (c) MarkedJS, MIT; ansi_up (c) Dru Nelson, MIT; fflate (c) Arjun Barrett, MIT; highlight.js (c) Ivan Sagalaev, BSD-3-Clause; lowlight (c) Titus Wormer, MIT; noble-hashes (c) Paul Miller, MIT; jsdiff (c) Kevin Decker, BSD-3-Clause. */'
};
const script = { ...common, outdir: output, charset: 'ascii', metafile: true, banner };
const page = await build({ ...script, entryPoints: { page: 'src/page.ts' }, format: 'iife' });
const widget = await build({ ...script, entryPoints: { widget: 'src/widget.ts' }, format: 'esm' });
await build({ ...common, entryPoints: { page: 'style/page.css', widget: 'style/widget.css' }, outdir: output });
const texts = licenses([page, widget].flatMap(({ metafile }) => Object.keys(metafile.inputs)));
if (texts.length > MOST_LICENSES) {
  throw new Error(`the licences are ${texts.length} characters, and every exported page holds them`);
}
writeFileSync(join(output, 'LICENSES.txt'), texts);

/** The licence of each package that files came from. */
function licenses(inputs) {
  const folders = new Set(inputs.map(input => /^node_modules\/(?:@[^/]+\/)?[^/]+/.exec(input)?.[0]).filter(Boolean));
  return [...folders].sort().map(license).join('\n');
}

function license(folder) {
  const { name, version, license } = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8'));
  const file = ['LICENSE', 'LICENSE.md', 'LICENSE.txt', 'license'].map(each => join(folder, each)).find(existsSync);
  if (!file) {
    throw new Error(`${name} has no licence text`);
  }
  return `${name} ${version} (${license})\n\n${readFileSync(file, 'utf8')}\n`;
}
