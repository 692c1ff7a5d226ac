"""The process in which answers are scored: one JSON line in, one out.

Answers are hostile: a formula may take for ever, a pattern may explode, a task's own scorer may crash. Here it
has a process that can be killed, and a main thread, which math-verify's time limit needs.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

_LONGEST_DETAIL = 2_000


def main() -> None:
    """Score until stdin ends. What scorers print goes to stderr."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    from llm_sandbox_nb.benchmark.rules import load_scorer, score_row

    for line in sys.stdin.buffer:
        request = json.loads(line)
        reply = {"value": None, "detail": "", "failed": False}
        try:
            if "check" in request:
                load_scorer(Path(request["check"]))
            else:
                score = score_row(request["scorer"], request["answer"], request["gold"], request["row"])
                reply |= asdict(score) | {"detail": str(score.detail)[:_LONGEST_DETAIL]}
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a scorer raises is told, and the process goes on
            reply |= {
                "detail": f"the scorer failed with {type(error).__name__}: {error}"[:500],
                "failed": True,
            }
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
