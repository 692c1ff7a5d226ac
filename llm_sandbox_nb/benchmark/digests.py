"""Digests of a result's inputs, so that results of different inputs never mix.

There are three inputs: the question (a row's problem and documents), the prompt (the task's prompts and limits), and
the scorer (its code, the gold answer, the judge). A folder with answers to another question or prompt is refused.
Answers that another scorer has scored are scored again.
"""

from __future__ import annotations

import ast
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

SCORING_PACKAGES = (
    "if-verifiable",
    "latex2sympy2_extended",
    "math-verify",
    "pint",
    "regex",
    "rouge-score",
    "sympy",
)
"""Packages whose new version may change a score."""


def digest(*parts: object) -> str:
    """Return a short digest of JSON values. Values of other types are converted to text."""
    whole = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(whole.encode("utf-8", "replace")).hexdigest()[:16]


def question_digest(task: Task, row: Row) -> str:
    """Return the digest of the columns that the model may read.

    A task with a repository or with its own `create_prompt` may use all columns.
    """
    any_column = (
        task.asker and not task.prompts.source
    )  # `create_prompt` of the paper's package uses only the problem and the documents
    if any_column or task.answer == "patch":
        return row.digest
    return digest(row.problem_statement, dict(row.input_files), row.extra.get("image"))


def prompt_digest(task: Task) -> str:
    """Return the digest of a task's prompts, answer file, limits and image."""
    asker = _file_digest(Path(task.asker)) if task.asker else ""
    how = dataclasses.asdict(task.prompts), task.vanilla_prompt, asker, task.answer, task.answer_file
    return digest(*how, dataclasses.asdict(task.limits), task.image)


def scorer_digest(task: Task, row: Row, judge: Judge | None = None) -> str:
    """Return the digest of all that decides the score of an answer: the scorer's code or the judge, and the row."""
    if task.needs_judge:
        how = None if judge is None else (PROMPT_VERSION, judge.model.name, dataclasses.asdict(judge.options))
        return digest(task.scorer, how, row.problem_statement, row.ground_truth)
    code = code_of(task.scorer, task.folder) if task.has_own_scorer else _own_scorers()
    return digest(task.scorer, code, row.digest, task.test_command, task.test_evidence)


def code_of(scorer: str, folder: Path | None = None) -> str:
    """Return the digest of a scorer file. If the file is in the task's `folder`, include all Python files there."""
    path = Path(scorer)
    files = sorted(path.parent.glob("*.py")) if folder is not None and path.parent == folder else [path]
    return digest([(file.name, _file_digest(file)) for file in files])


@functools.cache
def _own_scorers() -> str:
    """Return the digest of all modules and tables in this folder, and of the versions of packages that scorers use."""
    folder = Path(__file__).parent
    code = [(file.name, _code_without_texts(file)) for file in sorted(folder.glob("*.py"))]
    tables = [(file.name, _file_digest(file)) for file in sorted(folder.glob("*.yaml"))]
    return digest(code, tables, [_version(name) for name in SCORING_PACKAGES])


def _code_without_texts(path: Path) -> str:
    """Return a Python file as text that stays the same if only comments, docstrings or line breaks change."""
    tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [
                part
                for part in node.body
                if not (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))
            ]
    return ast.dump(tree)


def _file_digest(path: Path) -> str:
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
    """Return the result with the digests of all its inputs."""
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
    """Return True if the row's question is still the question that the result answers."""
    return result.question == question_digest(task, row)


def check_questions(
    out: Path, results: Iterable[Result], rows: Mapping[str, tuple[Task, Mapping[str, Row]]]
) -> None:
    """Check that the questions of rows have not changed since the model answered them.

    `rows` maps the name of each task to the task and its rows by id.

    Raises:
        ResultsError: if the question of a row has changed since its answer.
    """
    for result in results:
        task, known = rows.get(result.task, (None, {}))
        row = known.get(result.item)
        if task is None or row is None or result.error_kind or same_question(result, task, row):
            continue
        raise ResultsError(
            f"Row {result.item!r} of {result.task} has changed since its result in {out} was made: choose another "
            "--out."
        )


def check_prompts(out: Path, results: Iterable[Result], tasks: Iterable[Task]) -> None:
    """Check that earlier results were made with the current prompts and limits of the tasks.

    Raises:
        ResultsError: if the prompts or limits have changed, because different prompts must not share a folder.
    """
    now = {task.name: prompt_digest(task) for task in tasks}
    for result in results:
        if not result.error_kind and result.prompt != now.get(result.task, result.prompt):
            raise ResultsError(
                f"The prompts or limits of {result.task} have changed since its results in {out} were made: choose "
                "another --out."
            )


def check_version(out: Path, results: Iterable[Result], more: Any) -> None:
    """Check that earlier answers were made with this version of the package.

    `more` has the items that still need an answer. If `more` is empty, nothing is checked.

    Raises:
        ResultsError: if the versions differ.
    """
    others = {result.version for result in results if not result.error_kind} - {__version__}
    if others and more:
        raise ResultsError(
            f"{out} holds results of llm-sandbox-nb {sorted(others)[0]}, and this is {__version__}: choose another "
            f"--out, or install that version. `llm-sandbox-nb benchmark score {out}` scores the existing answers with "
            "this version."
        )
