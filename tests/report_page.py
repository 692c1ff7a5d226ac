"""docs/benchmark-report.html: what `benchmark report --html` makes of the sample rows, worked on by a scripted model.

`python tests/report_page.py`, with the repository in PYTHONPATH, writes it anew; a test compares. The runs are real:
each item has its sandbox, its commands, its scorer and its journal. Only times are put in afterwards, as they differ
from run to run.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import re
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmark_models import FunctionModel, calls, says, turn_of

from llm_sandbox_nb.benchmark.attempt import HowToAsk
from llm_sandbox_nb.benchmark.data import load_rows
from llm_sandbox_nb.benchmark.judge import Judge
from llm_sandbox_nb.benchmark.results import FILE, read_results, write_result
from llm_sandbox_nb.benchmark.rows import Row
from llm_sandbox_nb.benchmark.runner import Runner, RunnerOptions, make_opener, plan
from llm_sandbox_nb.benchmark.task import load_task
from llm_sandbox_nb.cli import main
from llm_sandbox_nb.model.contract import ModelSettings, Reply
from llm_sandbox_nb.model.retries import RetryPolicy

PAGE = Path(__file__).parents[1] / "docs" / "benchmark-report.html"
TASKS = ("biomed", "chem", "long_context", "math")
REPEATS = 2
_PICTURE = re.compile(r"<svg.*?</svg>", re.DOTALL)
LOOKS = {
    "biomed": ["ls -la"],
    "chem": ["curl --noproxy '*' -sfm 2 http://chemistry.invalid/names", "ls -la"],
    "long_context": ["find input -type f | head", "grep -rn grew input | head -5"],
    "math": ["python3 -c 'import itertools, math; print(sum(n for n in range(100) if n * n % 10 == 9))'",
             "python3 -c 'from fractions import Fraction; print(Fraction(9, 10))'"],
}  # fmt: skip
"""What the model does first, by task; nothing of it needs a network."""


WRONG_IN_SANDBOX = {"b2"}
RIGHT_ALONE = {"b1", "b2", "c1", "l2", "m3"}


class Planted:
    """Says what its tables say: in the sandbox more is right than without."""

    def __init__(self, rows: dict[str, list[Row]]) -> None:
        self.rows = [(task, row) for task, those in rows.items() for row in those]

    def __call__(self, messages: list[dict[str, Any]]) -> Reply:
        text = next(message["content"] for message in messages if message["role"] == "user")
        task, row = next((task, row) for task, row in self.rows if row.problem_statement in text)
        if messages[0]["role"] != "system":
            answer = row.ground_truth if row.id in RIGHT_ALONE else "Z"
            return says(
                f"\\boxed{{{answer}}}" if task == "math" else f"Answer: {answer}", 60 + len(text) // 4, 30
            )
        answer = "Z" if row.id in WRONG_IN_SANDBOX else row.ground_truth
        answer = f"\\boxed{{{answer}}}" if task == "math" else answer
        save = f"cat > answer.txt <<'END'\n{answer}\nEND\ncat answer.txt"
        turn, commands = turn_of(messages), [*LOOKS[task], save]
        prompt = 900 + len(text) // 4 + 120 * turn
        if turn == len(commands):
            return calls("submit", "{}", prompt, 8, turn)
        return calls("execute_bash", json.dumps({"command": commands[turn]}), prompt, 40, turn)


def judged(messages: list[dict[str, Any]]) -> Reply:
    text = messages[-1]["content"]
    gold = text.partition("<official_answer>\n")[2].partition("\n</official_answer>")[0]
    answer = text.partition("</official_answer>\n\n")[2].partition("\n")[2]
    return says("Compared.\nCORRECT" if gold in answer else "Compared.\nINCORRECT")


async def work(out: Path) -> None:
    """All items, in sandboxes of this machine's own processes: what is run is our own."""
    tasks = [load_task(name) for name in TASKS]
    rows = {task.name: load_rows(task, "sample") for task in tasks}
    how = HowToAsk(FunctionModel(Planted(rows)), ModelSettings(), RetryPolicy(attempts=1))
    judge = Judge(FunctionModel(judged, "test/judge"), out / "judge")
    runner = Runner(how, make_opener("process"), RunnerOptions(out, workers=4), judge)
    await runner.run(plan([(task, rows[task.name]) for task in tasks], ("sandbox", "llm"), REPEATS))


def put_times(out: Path) -> None:
    """Times that are the same every time: 2 s for a reply, half a second for a command, one item after the other."""
    results = sorted(read_results(out), key=lambda result: result.key)
    for path in out.glob(f"*/*/{FILE}"):
        path.unlink()
    started = 1_700_000_000.0
    for result in results:
        tools = 0.5 * (result.turns - 1)
        wall = 2.0 * result.turns + tools
        write_result(
            out,
            replace(result, started=started, wall_time=wall, model_time=2.0 * result.turns, tool_time=tools),
        )
        started += wall


def make() -> str:
    with tempfile.TemporaryDirectory() as folder:
        out, page = Path(folder) / "results", Path(folder) / "report.html"
        asyncio.run(work(out))
        put_times(out)
        with contextlib.redirect_stdout(io.StringIO()):
            assert main(["benchmark", "report", str(out), "--html", str(page)]) == 0
        return page.read_text("utf-8")


def without_pictures(page: str) -> str:
    """The page as it has to be everywhere: how pictures are drawn depends on the version of matplotlib."""
    return _PICTURE.sub("<svg></svg>", page)


if __name__ == "__main__":
    PAGE.write_text(make(), "utf-8", newline="\n")
    print(PAGE, file=sys.stderr)
