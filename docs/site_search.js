/* Searches a built site as its search page does, without a browser: node site_search.js FOLDER QUERY... prints JSON. */

'use strict';

const fs = require('fs');
const path = require('path');
const vm = require('vm');

const [folder, ...queries] = process.argv.slice(2);
const context = vm.createContext({ URLSearchParams, DOCUMENTATION_OPTIONS: {}, SPHINX_HIGHLIGHT_ENABLED: false, console });
context.window = context;
context.document = { getElementById: () => null };
context._ready = () => undefined;
context._ = text => text;
for (const name of ['_static/language_data.js', '_static/searchtools.js', 'searchindex.js']) {
  vm.runInContext(fs.readFileSync(path.join(folder, name), 'utf8'), context, { filename: name });
}
const found = queries.map(query => {
  context.location = { search: `?${new URLSearchParams({ q: query })}` };
  context.query = query;
  return vm.runInContext('Search._performSearch(...Search._parseQuery(query)).reverse()', context);
});
console.log(JSON.stringify(found));
