// The TypeScript under test, bundled by what also bundles the exported page.
import { build } from 'esbuild';

/** What a module of `src` exports. */
export async function load(name) {
  const entry = new URL(`../src/${name}.ts`, import.meta.url).pathname;
  const { outputFiles } = await build({ entryPoints: [entry], bundle: true, format: 'esm', write: false });
  return import(`data:text/javascript;base64,${Buffer.from(outputFiles[0].contents).toString('base64')}`);
}
