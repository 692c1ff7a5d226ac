"""Digest of the package's scorers: changed code changes it, and other words do not."""

from __future__ import annotations

import ast
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from llm_sandbox_nb.benchmark import digests
from llm_sandbox_nb.benchmark.rows import Row
from llm_sandbox_nb.benchmark.task import load_task

NOT_OF_SCORERS = {"datasets", "numpy", "pyarrow", "pydantic", "pyyaml", "ray"}
CODE = '''"""Scorers."""

LIMIT = 3
"""Maximum number of words."""


def score(answer):
    """Score an answer."""
    # Long answers score 0.
    return len(answer.split()) <= LIMIT
'''
WORDS = "yes: [yes, oui]\n"


@pytest.mark.parametrize(
    ("code", "words", "same"),
    [
        (CODE.replace("Score an", "Return the score of an"), WORDS, True),
        (CODE.replace('    """Score an answer."""\n', ""), WORDS, True),
        (CODE.replace("Maximum", "Largest"), WORDS, True),
        (CODE.replace("    # Long answers score 0.\n", ""), WORDS, True),
        (CODE.replace("<= LIMIT", "<= LIMIT  # too long"), WORDS, True),
        (CODE.replace("return len(answer.split()) <= LIMIT", "pass"), WORDS, False),
        (CODE.replace("<= LIMIT", "< LIMIT"), WORDS, False),
        (CODE.replace("LIMIT = 3", "LIMIT = '3'"), WORDS, False),
        (CODE, WORDS.replace("oui", "ja"), False),
    ],
)
def test_only_changed_code_and_data_of_the_scorers_change_the_digest(
    code: str, words: str, same: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "__file__", str(tmp_path / "digests.py"))
    monkeypatch.setattr(digests, "_own_scorers", digests._own_scorers.__wrapped__)
    task, row = load_task("math"), Row("1", "2 + 2?", "4")
    found = []
    for text, table in ((CODE, WORDS), (code, words)):
        (tmp_path / "scorers.py").write_text(text)
        (tmp_path / "words.yaml").write_text(table)
        found.append(digests.scorer_digest(task, row))
    assert (found[0] == found[1]) is same


def test_digest_has_the_versions_of_all_packages_that_scorers_import() -> None:
    nodes = [
        node
        for path in Path(digests.__file__).parent.glob("*.py")
        for node in ast.walk(ast.parse(path.read_bytes()))
    ]
    imported = {name.name for node in nodes if isinstance(node, ast.Import) for name in node.names}
    imported |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    packages = {name.partition(".")[0] for name in imported} - sys.stdlib_module_names - {"llm_sandbox_nb"}
    owners = packages_distributions()
    used = {canonicalize_name(distribution) for package in packages for distribution in owners[package]}
    assert used > {"math-verify", "sympy"}
    assert used - NOT_OF_SCORERS <= {canonicalize_name(name) for name in digests.SCORING_PACKAGES}
