/** The panels of all runs on this page that wait for a person. Keys and commands act on one of these panels. */

/** Actions of keys on a run that waits. */
export interface IPausedRun {
  readonly node: HTMLElement;
  continue(): void;
  step(): void;
  end(): void;
}

const all = new Set<IPausedRun>();
const watchers = new Set<() => void>();

/** Add a run that waits. Call the returned function when the run continues. */
export function addPausedRun(stopped: IPausedRun): () => void {
  all.add(stopped);
  tell();
  return () => {
    if (all.delete(stopped)) {
      tell();
    }
  };
}

/** Return the waiting run within `place`, the newest if there are several. */
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
