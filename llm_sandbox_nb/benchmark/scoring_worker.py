"""Worker process that scores answers and runs the Python files of tasks. Requests and replies are JSON lines.

An answer can do harm: evaluating a formula may never end, matching a pattern may take exponential time, and a task's
scorer may crash. Therefore answers are scored in this process, which can be killed. Scorers run on its main thread,
because math-verify's time limit works only there.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

_MAX_DETAIL_CHARACTERS = 2_000
_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Answer requests until stdin ends. Text that a scorer prints goes to stderr.

    The only argument is the number of the parent process. A killed parent cannot stop a scorer that hangs. Therefore,
    on Linux, the kernel kills this process when the parent ends.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):
        sys.exit(1)
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    from llm_sandbox_nb.benchmark.scorers import ScorerError, load_asker, load_scorer, score_row

    for line in sys.stdin.buffer:
        request = json.loads(line)
        reply: dict[str, Any] = {"value": None, "detail": ""}
        try:
            if "check" in request:
                load_scorer(Path(request["check"]))
            elif "asker" in request:
                reply["prompt"] = str(load_asker(Path(request["asker"]))(request["row"]))
            else:
                files = _files(Path(request["files"])) if request["files"] else {}
                row = {**request["row"], "output_files": files}
                score = score_row(request["scorer"], request["answer"], request["gold"], row)
                reply |= {"value": score.value, "detail": str(score.detail)[:_MAX_DETAIL_CHARACTERS]}
        except ScorerError as error:
            reply["detail"] = str(error)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - report any exception of a scorer, and continue
            who = "create_prompt" if "asker" in request else "the scorer"
            reply["detail"] = f"{who} failed with {type(error).__name__}: {error}"[:500]
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def _files(folder: Path) -> dict[str, Path]:
    """Return the files of a folder by relative name."""
    found = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return {path.relative_to(folder).as_posix(): path for path in found}


if __name__ == "__main__":
    main()
