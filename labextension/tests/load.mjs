// The TypeScript under test, bundled by what also bundles the exported page.
import { build } from 'esbuild';

const loaded = new Map();

/** What a module of `src` exports; bundled once for all tests of this process. */
export function load(name) {
  if (!loaded.has(name)) {
    loaded.set(name, loadFile(new URL(`../src/${name}.ts`, import.meta.url).pathname));
  }
  return loaded.get(name);
}

/** What a file exports. */
export async function loadFile(entry) {
  const loader = { '.svg': 'text' };
  const { outputFiles } = await build({ entryPoints: [entry], bundle: true, format: 'esm', write: false, loader });
  return import(`data:text/javascript;base64,${Buffer.from(outputFiles[0].contents).toString('base64')}`);
}
