"""Collects the sentences that the package can give a person as an error, from its source.

A sentence is what a call of an exception's class, or a `print` to stderr, is given as text. Names, helpers that return
text and tables of texts are followed to where the text is written. A value in a sentence becomes `…`. Text that only
repeats another error (`str(error)`) adds no sentence: the other error has it.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import llm_sandbox_nb

PACKAGE = Path(llm_sandbox_nb.__file__).parent
VALUE = "…"
NOT_FOR_PEOPLE = frozenset({"AssertionError", "NotImplementedError", "IncompleteReadError", "addError"})
"""Classes whose text no person reads: bugs, and a method of unittest that has such a name."""
_WRAPPERS = frozenset({"str", "plain", "harmless", "_printable"})
_REASONS = frozenset({"fail", "Ending"})
"""Calls that are given why a sandbox was lost, or why a run ended; an error's sentence repeats it."""
_ASKED = frozenset({"why_unavailable"})
"""Functions that return why something does not work here."""
_DEPTH = 4


@dataclass
class _Module:
    """What one file defines: functions and methods, texts by name, and names from other files of ours."""

    path: str
    tree: ast.Module
    functions: dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]] = field(default_factory=dict)
    texts: dict[str, list[ast.expr]] = field(default_factory=dict)
    imported: dict[str, str] = field(default_factory=dict)


@functools.cache
def _modules() -> dict[str, _Module]:
    found = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        path = file.relative_to(PACKAGE).as_posix()
        module = _Module(path, ast.parse(file.read_text("utf-8")))
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                module.functions.setdefault(node.name, []).append(node)
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("llm_sandbox_nb."):
                place = str(node.module).removeprefix("llm_sandbox_nb.").replace(".", "/")
                module.imported |= {one.asname or one.name: place for one in node.names}
        for name, value in _assignments(module.tree.body):
            module.texts.setdefault(name, []).append(value)
        found[path] = module
    return found


def _assignments(body: list[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    """The assignments of a module or function, those in its branches too."""
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                yield node.targets[0].id, node.value
            elif (
                isinstance(node, ast.AnnAssign | ast.NamedExpr)
                and isinstance(node.target, ast.Name)
                and node.value is not None
            ):
                yield node.target.id, node.value


class _Reader:
    """Reads the texts that an expression of a module can be."""

    def __init__(self, module: _Module, function: ast.AST | None) -> None:
        self.module = module
        body = getattr(function, "body", [])
        self.local: dict[str, list[ast.expr]] = {}
        for name, value in _assignments(body):
            self.local.setdefault(name, []).append(value)

    def texts(self, node: ast.expr, depth: int = 0) -> list[str]:
        """The texts, with `…` for values. Empty when the text comes from elsewhere."""
        if depth > _DEPTH:
            return []
        read = functools.partial(self.texts, depth=depth + 1)
        match node:
            case ast.Constant(value=str(text)):
                return [text]
            case ast.JoinedStr(values=parts):
                return ["".join(self._part(part) for part in parts)]
            case ast.BinOp(op=ast.Mod(), left=left):
                return [re.sub(r"%[sdr]", VALUE, text) for text in read(left)]
            case ast.BinOp(op=ast.Add(), left=left, right=right):
                both = read(left), read(right)
                if not any(both):
                    return []
                return [a + b for a in both[0] or [VALUE] for b in both[1] or [VALUE]]
            case ast.IfExp(body=body, orelse=orelse):
                return [*read(body), *read(orelse)]
            case ast.BoolOp(values=values):
                return [text for value in values for text in read(value)]
            case ast.Dict(values=values):
                return [text for value in values for text in read(value)]
            case ast.Subscript(value=value) | ast.Await(value=value):
                return read(value)
            case ast.Name(id=name):
                return self._named(name, depth + 1)
            case ast.Call(func=ast.Attribute(attr="format", value=value)):
                return [re.sub(r"\{\w*\}", VALUE, text) for text in read(value)]
            case ast.Call(func=ast.Name(id=name), args=[first, *_]) if name in _WRAPPERS:
                return read(first)
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(value=ast.Name(id="self"), attr=name)):
                return self._returned(name, depth + 1)
        return []

    def _part(self, part: ast.expr) -> str:
        """A part of an f-string: its text, also that of a constant such as `{IN_USE}`."""
        match part:
            case ast.Constant(value=str(text)):
                return text
            case ast.FormattedValue(value=ast.Name(id=name)) if name.isupper():
                return next(iter(self._named(name, 1)), VALUE)
        return VALUE

    def _named(self, name: str, depth: int) -> list[str]:
        values = self.local.get(name) or self.module.texts.get(name)
        if values:
            return [text for value in values for text in self.texts(value, depth)]
        return [text for other in self._other(name) for text in other._named(name, depth)]

    def _returned(self, name: str, depth: int) -> list[str]:
        if name in self.module.functions:
            return [
                text
                for function in self.module.functions[name]
                for node in ast.walk(function)
                if isinstance(node, ast.Return) and node.value is not None
                for text in _Reader(self.module, function).texts(node.value, depth)
            ]
        return [text for other in self._other(name) for text in other._returned(name, depth)]

    def _other(self, name: str) -> list[_Reader]:
        place = self.module.imported.get(name)
        paths = (f"{place}.py", f"{place}/__init__.py")
        return [_Reader(_modules()[path], None) for path in paths if path in _modules()]


def _said(call: ast.Call) -> list[ast.expr]:
    """The expressions that a call gives a person to read."""
    name = getattr(call.func, "id", getattr(call.func, "attr", ""))
    if name.endswith("Error") and name not in NOT_FOR_PEOPLE:
        return call.args[:2]  # the first may be a number, as of an OSError
    if name in _REASONS:
        return call.args
    if name == "error" and isinstance(call.func, ast.Attribute) and "parser" in ast.unparse(call.func.value):
        return call.args[:1]
    given = [word.value for word in call.keywords if word.arg == "problem"]
    if given:
        return given
    to_stderr = any(word.arg == "file" and "stderr" in ast.unparse(word.value) for word in call.keywords)
    return call.args[:1] if name == "print" and to_stderr else []


def _calls(node: ast.AST, function: ast.AST | None = None) -> Iterator[tuple[ast.Call, ast.AST | None]]:
    """All calls, each with the function that it is in."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            yield child, function
        inside = child if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) else function
        yield from _calls(child, inside)


def _written(texts: list[str]) -> list[str]:
    """The texts of two words or more, each on one line."""
    lines = (re.sub(f"{VALUE}+", VALUE, " ".join(text.split())) for text in texts)
    return [line for line in lines if len(re.findall(r"[A-Za-z]{2,}", line)) > 1]


def collected() -> dict[str, list[str]]:
    """The sentences by file, in the order of the source."""
    sentences: dict[str, list[str]] = {}
    for path, module in _modules().items():
        found: dict[str, None] = {}
        for call, function in _calls(module.tree):
            reader, said = _Reader(module, function), _said(call)
            found |= dict.fromkeys(_written([text for node in said for text in reader.texts(node)]))
        for name in _ASKED & set(module.functions):
            found |= dict.fromkeys(_written(_Reader(module, None)._returned(name, 0)))
        if found:
            sentences[path] = list(found)
    return sentences
