"""Say which campaigns to run for what was changed, within a budget of seconds: their pytest arguments, on one line.

    python3 .ci/campaigns.py 600

What changed is told by git: since the branch left `main`, or on `main` itself since the commit before. Where git cannot
tell (one commit, a shallow clone), everything counts as changed. CAMPAIGNS_SINCE=commit names another commit. What is
chosen and what the budget leaves out is said on standard error.
"""

from __future__ import annotations

import fnmatch
import os
import subprocess
import sys
from pathlib import Path

TABLE = Path(__file__).with_name("campaigns.txt")


def git(*words: str) -> str | None:
    """What git answers; None when it cannot."""
    done = subprocess.run(["git", *words], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def since() -> str | None:
    """The commit to compare with; None when there is none."""
    head = git("rev-parse", "HEAD")
    for name in (os.environ.get("CAMPAIGNS_SINCE"), "origin/main", "main"):
        base = git("merge-base", "HEAD", name) if name else None
        if base and base != head:
            return base
    return git("rev-parse", "--verify", "--quiet", "HEAD^1")


def changed() -> list[str] | None:
    """Paths that changed; None when git cannot tell."""
    base = since()
    told = git("diff", "--name-only", base) if base else None
    return None if told is None else told.splitlines()


def main(budget: float) -> str:
    """The arguments, separated by spaces; nothing when nothing is to be run."""
    paths, chosen, left_out = changed(), [], []
    for line in TABLE.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        seconds, test, *patterns = line.split()
        touched = paths is None or any(
            fnmatch.fnmatch(path, one) for path in paths for one in [test, *patterns]
        )
        if touched and float(seconds) <= budget:
            budget -= float(seconds)
            chosen.append(test)
        elif touched:
            left_out.append(f"{test} ({seconds} s)")
    what = "git cannot tell what changed" if paths is None else f"{len(paths)} changed paths"
    print(f"{what}; campaigns: {', '.join(chosen) or 'none'}", file=sys.stderr)
    if left_out:
        print(f"left out for lack of time: {', '.join(left_out)}; make test-all runs them", file=sys.stderr)
    return " ".join(chosen)


if __name__ == "__main__":
    print(main(float(sys.argv[1])))
