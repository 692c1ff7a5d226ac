// Reads records from standard input, a JSON list of texts, and writes what the file viewer makes of them: used by pytest.
import { readFileSync } from 'node:fs';
import { load } from './load.mjs';

const { readRecord } = await load('formats');
process.stdout.write(JSON.stringify(JSON.parse(readFileSync(0, 'utf8')).map(text => readRecord(text))));
