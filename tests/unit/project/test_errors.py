"""Every exception of the package derives from LLMSandboxError, and the drawing in `errors.py` shows the public ones."""

from __future__ import annotations

import ast
import builtins
import re
from pathlib import Path

import pytest

import llm_sandbox_nb
from llm_sandbox_nb import errors
from llm_sandbox_nb.errors import LLMSandboxError

PACKAGE = Path(llm_sandbox_nb.__file__).parent
IN_SANDBOX = "sandbox/executor/"
"""Code that runs inside the sandbox, where the package is not installed."""
BUILTIN = {
    name
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, BaseException)
}
PUBLIC = {
    name: value
    for name in llm_sandbox_nb.__all__
    if isinstance(value := getattr(llm_sandbox_nb, name), type) and issubclass(value, Exception)
}


def bases_by_class() -> dict[str, set[str]]:
    """Read the base names of each class in the package; a name used twice gets the bases of both."""
    found: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        if not path.relative_to(PACKAGE).as_posix().startswith(IN_SANDBOX):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.ClassDef):
                    names = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
                    found.setdefault(node.name, set()).update(names)
    return found


def descendants(bases: dict[str, set[str]], roots: set[str]) -> set[str]:
    """Find the classes that derive from a root, directly or not."""
    found: set[str] = set()
    while new := {name for name, above in bases.items() if above & (roots | found)} - found:
        found |= new
    return found


def outside(bases: dict[str, set[str]]) -> set[str]:
    return descendants(bases, BUILTIN) - descendants(bases, {"LLMSandboxError"}) - {"LLMSandboxError"}


def test_every_exception_is_in_the_tree() -> None:
    bases = bases_by_class()
    assert len(descendants(bases, {"LLMSandboxError"})) > 75
    assert outside(bases) == set()


def test_an_exception_outside_of_the_tree_is_found() -> None:
    bases = {
        "LLMSandboxError": {"Exception"},
        "A": {"LLMSandboxError", "ValueError"},
        "B": {"KeyError"},
        "C": {"B"},
    }
    assert outside(bases) == {"B", "C"}


def test_drawing_shows_the_public_exceptions_and_their_bases() -> None:
    drawn: dict[str, tuple[str, ...]] = {}
    above: list[str] = []
    for indent, name, standard in re.findall(
        r"^    ([│ ]*(?:[├└]── )?)(\w+Error)(?: \((\w+)\))?$", errors.__doc__ or "", re.MULTILINE
    ):
        depth = len(indent) // 4
        above = [*above[:depth], name]
        drawn[name] = tuple(filter(None, (above[depth - 1] if depth else "", standard)))
    assert drawn.pop("LLMSandboxError") == ()
    assert drawn == {
        name: tuple(base.__name__ for base in value.__bases__ if base is not Exception)
        for name, value in PUBLIC.items()
        if value is not LLMSandboxError
    }


def test_public_exceptions_have_an_example() -> None:
    assert 10 <= len(PUBLIC) <= 14
    assert [name for name, value in PUBLIC.items() if "For example, " not in (value.__doc__ or "")] == []


def test_a_notebook_shows_the_name_of_an_exception_without_a_message() -> None:
    assert LLMSandboxError()._render_traceback_() == ["LLMSandboxError"]
    assert LLMSandboxError("Try again.")._render_traceback_() == ["LLMSandboxError: Try again."]


@pytest.mark.parametrize("standard", [ValueError, FileNotFoundError, ImportError, RuntimeError])
def test_a_standard_base_stays(standard: type[Exception]) -> None:
    made = type("SomeError", (LLMSandboxError, standard), {})
    with pytest.raises(standard, match="x"):
        raise made("x")
