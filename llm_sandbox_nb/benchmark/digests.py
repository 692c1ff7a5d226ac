"""Digests of what a result was made with, so that results of different makings never mix.

Three parts: the question (a row's problem and documents), the prompt (how a task asks), and the scorer (its code, the
gold answer, the judge). Answers of another question or prompt are refused; what another scorer scored is scored again.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from llm_sandbox_nb.benchmark.judge import PROMPT_VERSION, Judge
from llm_sandbox_nb.benchmark.results import Result, ResultsError
from llm_sandbox_nb.benchmark.rows import Row
from llm_sandbox_nb.benchmark.task import Task
from llm_sandbox_nb.version import __version__

_SCORING_PACKAGES = ("math-verify", "rouge-score", "latex2sympy2_extended", "pint")


def digest(*parts: object) -> str:
    """A short digest of values that JSON knows; of others their words."""
    whole = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(whole.encode("utf-8", "replace")).hexdigest()[:16]


def question_digest(task: Task, row: Row) -> str:
    """What a model is given of a row. With a prompt or a repository of its own that may be any column."""
    any_column = (
        task.asker and not task.prompts.source
    )  # those of the paper's package use problem and documents
    if any_column or task.answer == "patch":
        return row.digest
    return digest(row.problem_statement, dict(row.input_files), row.extra.get("image"))


def prompt_digest(task: Task) -> str:
    """How a task asks: its prompts, where the answer is looked for, its limits and its image."""
    asker = _content(Path(task.asker)) if task.asker else ""
    how = dataclasses.asdict(task.prompts), task.vanilla_prompt, asker, task.answer, task.answer_file
    return digest(*how, dataclasses.asdict(task.limits), task.image)


def scorer_digest(task: Task, row: Row, judge: Judge | None = None) -> str:
    """What scores an answer: the scorer's code, the gold answer and the columns, the judge and how often it judges."""
    if task.scorer == "judge":
        how = None if judge is None else (PROMPT_VERSION, judge.model.name, dataclasses.asdict(judge.options))
        return digest("judge", how, row.problem_statement, row.ground_truth)
    code = code_of(task.scorer, task.folder) if task.has_own_scorer else _own_scorers()
    return digest(task.scorer, code, row.digest, task.test_command, task.test_evidence)


def code_of(scorer: str, folder: Path | None = None) -> str:
    """The code of a Python file that scores, with the Python files beside it where it lies in the task's `folder`."""
    path = Path(scorer)
    files = sorted(path.parent.glob("*.py")) if folder is not None and path.parent == folder else [path]
    return digest([(one.name, _content(one)) for one in files])


@functools.cache
def _own_scorers() -> str:
    """The scorers of this package and of those it uses."""
    files = sorted(one for one in Path(__file__).parent.iterdir() if one.suffix in (".py", ".yaml"))
    return digest(
        [(one.name, _content(one)) for one in files], [_version(name) for name in _SCORING_PACKAGES]
    )


def _content(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def signed(result: Result, task: Task, row: Row, judge: Judge | None) -> Result:
    """The result with the digests of all that it was made with."""
    return dataclasses.replace(
        result,
        row=row.digest,
        problem=row.problem,
        prompts=task.prompts.source,
        question=question_digest(task, row),
        prompt=prompt_digest(task),
        scorer=scorer_digest(task, row, judge),
        version=__version__,
    )


def same_question(result: Result, task: Task, row: Row) -> bool:
    """Whether a result answers the row as it is now."""
    if not result.question:  # of an earlier version
        return not result.row or result.row == row.digest
    return result.question == question_digest(task, row)


def check_questions(
    out: Path, results: Iterable[Result], rows: Mapping[str, tuple[Task, Mapping[str, Row]]]
) -> None:
    """Compare the rows with those that were answered. `rows`: by the names of the tasks, and by their ids.

    Raises:
        ResultsError: the model was asked something else.
    """
    for result in results:
        task, known = rows.get(result.task, (None, {}))
        row = known.get(result.item)
        if task is None or row is None or result.error_kind or same_question(result, task, row):
            continue
        raise ResultsError(
            f"Row {result.item!r} of {result.task} is another one now than when its result in {out} was made: "
            "choose another --out."
        )


def check_prompts(out: Path, results: Iterable[Result], tasks: Iterable[Task]) -> None:
    """Compare how tasks ask with how they asked.

    Raises:
        ResultsError: it has changed, so that answers of two kinds would stand in one folder.
    """
    now = {task.name: prompt_digest(task) for task in tasks}
    for result in results:
        if result.error_kind or not result.prompt or result.task not in now:
            continue
        if result.prompt != now[result.task]:
            raise ResultsError(
                f"The prompts or limits of {result.task} are others now than when its results in {out} were made: "
                "choose another --out."
            )


def check_version(out: Path, results: Iterable[Result], more: Any) -> None:
    """Compare the version of this package with that which made the answers, when `more` items are to be done.

    Raises:
        ResultsError: it is another one.
    """
    others = {result.version for result in results if result.version and not result.error_kind} - {
        __version__
    }
    if others and more:
        raise ResultsError(
            f"{out} holds results of llm-sandbox-nb {sorted(others)[0]}, and this is {__version__}: choose another "
            f"--out, or install that version. `llm-sandbox-nb benchmark score {out}` scores its answers with this one."
        )
