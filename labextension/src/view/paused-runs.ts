/** The panels of all runs that wait for a person on this page: keys and commands act on one of them. */

/** Actions of keys on a run that waits. */
export interface IPausedRun {
  readonly node: HTMLElement;
  continue(): void;
  step(): void;
  end(): void;
}

const all = new Set<IPausedRun>();
const watchers = new Set<() => void>();

/** A run waits; call what this returns when it continues. */
export function addPausedRun(stopped: IPausedRun): () => void {
  all.add(stopped);
  tell();
  return () => {
    if (all.delete(stopped)) {
      tell();
    }
  };
}

/** The run that waits within `place`, the newest if there are several. */
export function pausedRunWithin(place: Node | null | undefined): IPausedRun | null {
  return [...all].reverse().find(stopped => place?.contains(stopped.node)) ?? null;
}

/** Call `watcher` whenever a run begins to wait, or continues. */
export function watchPausedRuns(watcher: () => void): void {
  watchers.add(watcher);
}

function tell(): void {
  watchers.forEach(watcher => watcher());
}
