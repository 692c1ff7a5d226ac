// Reads lists of events from standard input, as JSON, and writes the messages that the view shows of each: used by pytest.
import { readFileSync } from 'node:fs';
import { load } from './load.mjs';

const { messagesOf } = await load('trajectory/conversation');

const shown = events => messagesOf(events).map(({ role, text }) => [role, text]);

process.stdout.write(JSON.stringify(JSON.parse(readFileSync(0, 'utf8')).map(shown)));
