/** The tree of a journal's events, and its branches. Twin of `trajectory/branches.py`. */

import { IDoubtsFound, IEvent, IStepFacts } from '../generated/events';
import { MARKS } from '../generated/words';

/** A branch: the events from the first to `tip`. */
export interface IBranch {
  /** Id of its last event, for `Trajectory.at`. */
  tip: string;
  /** Id of the last event that it shares with the branch of HEAD; null for the branch of HEAD. */
  fork: string | null;
  /** Number of the last step that it shares with the branch of HEAD; for the branch of HEAD, its own last step. */
  step: number;
  /** The number of its last step. */
  steps: number;
  /** True for the branch that continues. */
  head: boolean;
}

interface INode {
  event: IEvent;
  parent: string | null;
  step: number;
}

export class Tree {
  private _nodes = new Map<string, INode>();
  /** Facts about steps, and doubts, by the event that they follow; they are not nodes. */
  private _facts = new Map<string | null, (IStepFacts | IDoubtsFound)[]>();

  has(id: string | null): boolean {
    return id !== null && this._nodes.has(id);
  }

  /** Add `event`, which follows `parent`. An event with a known id is ignored. */
  add(event: IEvent, parent: string | null): void {
    if (this._nodes.has(event.id)) {
      return;
    }
    const own = /^(model|call)\./.test(event.kind) && 'step' in event ? event.step : null;
    const step = typeof own === 'number' ? own : this.step(parent);
    this._nodes.set(event.id, { event, parent, step });
  }

  /** Keep facts about a step with `parent`. */
  annotate(facts: IStepFacts | IDoubtsFound, parent: string | null): void {
    const known = this._facts.get(parent);
    if (known) {
      known.push(facts);
    } else {
      this._facts.set(parent, [facts]);
    }
  }

  /** Return the events from the first to `tip`, each with the facts that follow it. */
  path(tip: string | null): IEvent[] {
    const found: IEvent[] = [];
    for (let node = this._node(tip); node; node = this._node(node.parent)) {
      found.push(...(this._facts.get(node.event.id) ?? []).slice().reverse(), node.event);
    }
    return found.reverse();
  }

  /** Return the id of the event that `id` follows. */
  parent(id: string): string | null {
    return this._node(id)?.parent ?? null;
  }

  /** Return the number of the step of an event, or of the last step before it; 0 before the first. */
  step(id: string | null): number {
    return this._node(id)?.step ?? 0;
  }

  /** Return all branches, in the order of their last events. */
  branches(head: string | null): IBranch[] {
    const tipOfHead = this._withoutMarks(head);
    const onHead = new Set(this.path(head).map(event => event.id));
    const tips = this._tips();
    if (tipOfHead !== null && !tips.includes(tipOfHead)) {
      tips.push(tipOfHead);
    }
    return tips.map(tip => this._branch(tip, onHead, tip === tipOfHead));
  }

  private _branch(tip: string, onHead: Set<string>, head: boolean): IBranch {
    let fork: string | null = tip;
    while (fork !== null && !onHead.has(fork)) {
      fork = this.parent(fork);
    }
    return { tip, fork: head ? null : fork, step: this.step(fork), steps: this.step(tip), head };
  }

  private _withoutMarks(id: string | null): string | null {
    let node = this._node(id);
    while (node && MARKS.has(node.event.kind) && node.event.kind !== 'checkpoint') {
      node = this._node(node.parent);
    }
    return node?.event.id ?? null;
  }

  /** Return the ends of branches: the events that only marks follow, or the checkpoint after such an event. */
  private _tips(): string[] {
    const leadOn = new Set<string | null>();
    const named = new Map<string | null, string>();
    const tips: string[] = [];
    for (const [id, { event, parent }] of [...this._nodes].reverse()) {
      if (MARKS.has(event.kind)) {
        if (leadOn.has(id)) {
          leadOn.add(parent);
        } else if (event.kind === 'checkpoint') {
          named.set(parent, named.get(id) ?? id);
        }
        continue;
      }
      if (!leadOn.has(id)) {
        tips.push(named.get(id) ?? id);
      }
      leadOn.add(parent);
    }
    return tips.reverse();
  }

  private _node(id: string | null): INode | undefined {
    return id === null ? undefined : this._nodes.get(id);
  }
}
