/** The panels of all runs that are stopped on this page: keys and commands act on one of them. */

/** What a key can do with a run that is stopped. */
export interface IStopped {
  readonly node: HTMLElement;
  continue(): void;
  step(): void;
  end(): void;
}

const all = new Set<IStopped>();
const watchers = new Set<() => void>();

/** A run has stopped; call what this gives when it goes on. */
export function announceStop(stopped: IStopped): () => void {
  all.add(stopped);
  tell();
  return () => {
    if (all.delete(stopped)) {
      tell();
    }
  };
}

/** The stopped run within `place`, the newest if there are several. */
export function stoppedWithin(place: Node | null | undefined): IStopped | null {
  return [...all].reverse().find(stopped => place?.contains(stopped.node)) ?? null;
}

/** Call `watcher` whenever a run stops or goes on. */
export function watchStops(watcher: () => void): void {
  watchers.add(watcher);
}

function tell(): void {
  watchers.forEach(watcher => watcher());
}
