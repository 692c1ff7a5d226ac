/** The origin of the answer: its file, the data from which that was made, and so on back to a given file. */

import { h, makeButton } from './dom';
import { FileHistory } from './file-history';
import { IStep } from '../trajectory/fold';
import { IHost } from './host';
import { isProgram, madeWith } from './made-with';
import { shortName } from './warning-text';

interface ILink {
  path: string;
  /** The step that wrote it last; null for a file that was given. */
  step: number | null;
}

const ANSWER = 'output/answer.txt';
const LINKS_MOST = 5;

/**
 * Return the chain of files that begins with the answer's file. It is empty if the run wrote no such file, or if no
 * step names what the file was made with.
 */
export function answerChain(steps: readonly IStep[], history: FileHistory): ILink[] {
  const chain: ILink[] = [];
  for (let link = written(ANSWER, history, Infinity); link; link = next(link, chain, steps, history)) {
    chain.push(link);
    if (chain.length === LINKS_MOST) {
      break;
    }
  }
  return chain.length > 1 ? chain : [];
}

/** Return the last change of a file before a step; null if there is none. */
function written(path: string, history: FileHistory, before: number): ILink | null {
  const events = history.files.get(path)?.filter(event => event.step < before && event.what !== 'refused') ?? [];
  return events.length ? { path, step: events[events.length - 1].step } : null;
}

/** Return the data that the step of a link used, or a program if the step used no data. */
function next(link: ILink, chain: readonly ILink[], steps: readonly IStep[], history: FileHistory): ILink | null {
  const step = steps.find(one => one.number === link.step);
  const seen = new Set(chain.map(one => one.path));
  const used = (step ? madeWith(step, history) : []).filter(one => !seen.has(one.path) && one.mark !== 'bad');
  const data = used.find(one => one.event && !isProgram(one.path)) ?? used.find(one => !isProgram(one.path));
  // A step that only changed the file leads to the earlier step that wrote the file.
  const before = data ? null : written(link.path, history, link.step ?? 0);
  const found = data ?? used[0];
  return before ?? (found ? { path: found.path, step: found.event?.step ?? null } : null);
}

/** Render for example "answer.txt (9) ← wind_ms.csv (7) ← weather.csv", where each number is a link to its step. */
export function renderChain(chain: readonly ILink[], host: IHost, goTo: (step: number) => void): HTMLElement {
  const parts = chain.map(({ path, step }, at) => {
    const name = h('span', { class: 'lsn-chain-file', dir: 'auto', title: path }, shortName(path));
    const label = host.trans('%1 in step %2', shortName(path), step ?? '');
    const open = () => goTo(step!);
    const link = step !== null && makeButton(`(${step})`, open, { class: 'lsn-step-link', 'aria-label': label });
    return h('span', {}, at ? '← ' : '', name, ' ', link);
  });
  return h('span', { class: 'lsn-chain' }, ...parts);
}
