// The TypeScript under test, bundled by what also bundles the exported page.
import { build } from 'esbuild';

/** What a module of `src` exports. */
export const load = name => loadFile(new URL(`../src/${name}.ts`, import.meta.url).pathname);

/** What a file exports. */
export async function loadFile(entry) {
  const { outputFiles } = await build({ entryPoints: [entry], bundle: true, format: 'esm', write: false });
  return import(`data:text/javascript;base64,${Buffer.from(outputFiles[0].contents).toString('base64')}`);
}
