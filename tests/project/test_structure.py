"""The package has no import circles, and a public class name means one class."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "llm_sandbox_nb"
PACKAGE = ROOT.name

Graph = Mapping[str, set[str]]


def module_files() -> dict[str, Path]:
    files = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


def imports_of(module: str, tree: ast.AST, *, is_package: bool) -> Iterator[str]:
    """Names that a module imports, anywhere: at the top, in functions and under TYPE_CHECKING."""
    package = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*above, node.module] if node.module else above)
            yield from (f"{source}.{alias.name}" for alias in node.names)


def known_module(name: str, modules: Mapping[str, object]) -> str | None:
    """The module that an imported name is, or is in; None outside the package."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name or None


def import_graph() -> dict[str, set[str]]:
    """Which modules of the package each module imports. The lazy front door, `__init__.py`, imports nothing."""
    files = module_files()
    graph: dict[str, set[str]] = {PACKAGE: set()}
    for module, path in files.items():
        if module == PACKAGE:
            continue
        tree = ast.parse(path.read_text("utf-8"))
        names = imports_of(module, tree, is_package=path.name == "__init__.py")
        graph[module] = {found for name in names if (found := known_module(name, files))} - {module}
    return graph


def circles(graph: Graph) -> list[set[str]]:
    """Groups of modules that import each other, directly or not."""
    reachable = {module: reach(graph, module) for module in graph}
    found: dict[str, set[str]] = {}
    for module, below in reachable.items():
        if module in below:
            group = {other for other in below if module in reachable[other]}
            found[min(group)] = group
    return [found[first] for first in sorted(found)]


def reach(graph: Graph, start: str) -> set[str]:
    """Modules that a module imports, directly or not."""
    found: set[str] = set()
    todo = list(graph[start])
    while todo:
        module = todo.pop()
        if module not in found:
            found.add(module)
            todo += graph[module]
    return found


def public_classes(tree: ast.AST) -> list[str]:
    """The public class names of a module, also nested ones, one for each definition."""
    return [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]


def test_there_are_no_import_circles() -> None:
    assert [sorted(group) for group in circles(import_graph())] == []


def test_a_public_class_name_means_one_class() -> None:
    places = defaultdict(list)
    for module, path in module_files().items():
        for name in public_classes(ast.parse(path.read_text("utf-8"))):
            places[name].append(module)
    assert {name: modules for name, modules in places.items() if len(modules) > 1} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pkg.b",
        "from pkg import b",
        "from pkg.b import name",
        "from . import b",
        "from .b import name",
        "def late():\n    from .b import name",
        "if TYPE_CHECKING:\n    from .b import name",
    ],
)
def test_every_kind_of_import_is_seen(source: str) -> None:
    modules = {"pkg": None, "pkg.a": None, "pkg.b": None}
    names = imports_of("pkg.a", ast.parse(source), is_package=False)
    assert {known_module(name, modules) for name in names} == {"pkg.b"}


def test_circles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
    assert circles(graph) == [{"a", "b", "c"}, {"d", "e"}]


def test_every_public_class_is_seen() -> None:
    source = "class A:\n class B: pass\n class _C: pass\ndef f():\n class A: pass\ntry: pass\nexcept E:\n class D: pass"
    assert sorted(public_classes(ast.parse(source))) == ["A", "A", "B", "D"]
