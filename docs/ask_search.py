"""Asks the search of a built site what users ask: `python docs/ask_search.py out/docs/html`, a part of `make docs`.

For 18 of the 20 questions, the page that answers has to be among the first three results.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
FIRST, ANSWERED = 3, 18
QUESTIONS = {
    "rewind": ("how-to/rewind",),
    "go back to an earlier step": ("how-to/rewind",),
    "undo": ("how-to/rewind",),
    "fork": ("how-to/rewind",),
    "compare two runs": ("how-to/rewind",),
    "resume a run": ("how-to/rewind",),
    "pause": ("how-to/pause",),
    "deny a call": ("how-to/pause",),
    "approve commands": ("how-to/pause",),
    "breakpoint": ("how-to/pause", "reference/breakpoints"),
    "stop a run": ("how-to/watch",),
    "install": ("how-to/install",),
    "api key": ("how-to/keys",),
    "cost limit": ("how-to/keys",),
    "local model": ("how-to/model-server",),
    "why did it fail": ("how-to/why-did-it-fail",),
    "share a run": ("how-to/share",),
    "docker image": ("how-to/image",),
    "own tool": ("how-to/own-tool",),
    "network": ("reference/sandbox", "how-to/sandbox"),
}
"""What users ask, and the pages that answer."""


def places(results: dict[str, list[str]]) -> dict[str, int | None]:
    """For each question the place of the first page that answers it, from 1; None where no result does."""
    found: dict[str, int | None] = {}
    for question, pages in results.items():
        right = (place for place, page in enumerate(pages, 1) if page in QUESTIONS[question])
        found[question] = next(right, None)
    return found


def main() -> int:
    """Print the questions whose answer stands too far down; exit code 1 when there are too many."""
    node = shutil.which("node")
    if node is None:
        print("Node was not found: the order of the search's results is not checked.", file=sys.stderr)
        return 0
    command = [node, str(HERE / "site_search.js"), sys.argv[1], *QUESTIONS]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    results = {
        question: [result[0] for result in found]
        for question, found in zip(QUESTIONS, json.loads(done.stdout), strict=True)
    }
    late = {question: place for question, place in places(results).items() if place is None or place > FIRST}
    for question, place in late.items():
        print(f"The search finds {question!r} at place {place}: {results[question][:FIRST]}", file=sys.stderr)
    answered = len(QUESTIONS) - len(late)
    print(f"{answered} of {len(QUESTIONS)} questions have their page among the first {FIRST} results.")
    return 0 if answered >= ANSWERED else 1


if __name__ == "__main__":
    sys.exit(main())
