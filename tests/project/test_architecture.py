"""docs/explanation/architecture.md names files, classes and functions: all of them exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "llm_sandbox_nb"
PAGE = (ROOT / "docs" / "explanation" / "architecture.md").read_text("utf-8")
NAMED = re.compile(r"`([\w./-]+?\.(?:py|ts|mjs|css|yaml|yml|md|toml|sh)|[\w./-]+/)(?::([\w.]+))?`")


def places(page: str) -> list[tuple[str, str]]:
    """The files and folders that a page names, each with the name inside it, or an empty one."""
    return sorted({(match[1], match[2] or "") for match in NAMED.finditer(page)})


def problem(place: str, name: str) -> str:
    """Why a place does not exist; empty when it does."""
    paths = [folder / place for folder in (PACKAGE, ROOT, ROOT / "labextension" / "src")]
    path = next((path for path in paths if path.exists()), None)
    if path is None:
        return f"there is no {place}"
    if not name:
        return ""
    if path.suffix == ".py":
        return "" if name in names_in(ast.parse(path.read_text("utf-8"))) else f"{place} has no {name}"
    return "" if re.search(rf"\b{re.escape(name)}\b", path.read_text("utf-8")) else f"{place} has no {name}"


def names_in(tree: ast.Module) -> set[str]:
    """Everything defined at module level, and in its classes as `Class.name`."""
    found: set[str] = set()
    for owner in [tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))]:
        prefix = f"{owner.name}." if isinstance(owner, ast.ClassDef) else ""
        for node in owner.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(prefix + node.name)
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found |= {prefix + target.id for target in targets if isinstance(target, ast.Name)}
    return found


@pytest.mark.parametrize(("place", "name"), places(PAGE))
def test_what_the_page_names_exists(place: str, name: str) -> None:
    assert problem(place, name) == ""


def test_the_page_is_short_and_names_every_package() -> None:
    assert PAGE.count("\n") <= 40
    packages = [path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("__init__.py")]
    picture = PAGE.partition("```text")[2].partition("```")[0]
    top = {package for package in packages if "/" not in package} - {".", "examples", "hosts"}
    assert {package for package in top if f"{package}/" not in picture} == set()


def test_what_does_not_exist_is_found() -> None:
    page = "`agent/nothing.py` `agent/session.py:Nobody` `agent/session.py` `nowhere/`"
    assert [place for place, name in places(page) if problem(place, name)] == [
        "agent/nothing.py",
        "agent/session.py",
        "nowhere/",
    ]
