"""The prose of the package (docstrings, comments, messages, help texts), pages and notebooks holds no phrase of a list.

Each phrase made readers stop: subject, verb, object and the field's word (resume, run, undo, result) say it better.
"""

import ast
import functools
import io
import json
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "llm_sandbox_nb"
VIEW = ROOT / "labextension" / "src"
PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "CHANGELOG.md",
        *PACKAGE.rglob("*.md"),
        *PACKAGE.rglob("*.yml"),
        *ROOT.glob("docs/*.toml"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("notebooks/*.ipynb"),
    ]
)
PHRASES = (
    r"under way",
    r"at work",
    r"carr(?:y|ies|ied|ying)(?: \w+)? out",
    r"t(?:ak(?:e|es|en|ing)|ook)(?: \w+)? back",
    r"go(?:es|ne|ing)? on with",
    r"went on with",
    r"what c(?:omes|ame) of",
    r"by (?:it|him|her)self|by themselves",
    r"makes? no sense",
    r"(?:is|are|was|were) wanted",
    r"as (?:it was|they were) then",
    r"(?:may|can) be had",
    r"of one's own",
    r"that (?:is|are|was|were) there",
    r"(?:where|when) nobody can",
    r"c[oa]mes? to a halt",
    r"somebody",
    r"put (?:it|them|itself|themselves) away|puts? away",
    r"let go of",
    r"is told of|are told of",
    r"go(?:es|ing) on|went on|gone on",
    r"going back|gone back|went back",
    r"(?:of|as) then",
    r"unasked",
    r"falls? silent",
    r"brought up to date",
    r"comes? out otherwise",
    r"be had",
)
IN_PAGES = (
    r"halt(?:s|ed|ing)?",
    r"go on",
    r"goes? (?:back|away|along)",
    r"asked for",
    r"made up to",
    r"all the same",
    r"anew",
    r"come(?:s)? to an end",
    r"for good",
    r"in the end",
    r"of (?:ours|yours)",
    r"that (?:is|are) none",
    r"where there (?:is|are) none",
    r"what else",
    r"what there is",
    r"whoever",
    r"(?:they|it|which|that) (?:lies?|stands?)",
    r"tak(?:e|es|en) (?:it |them )?away",
    r"nobody (?:can|could|uses|may|counted|knows)",
)
"""What modules say in few places without harm, but what is not plain in a page."""


def prose(source: str) -> str:
    parts = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            parts.append(token.string.lstrip("# "))
        elif token.type == tokenize.STRING or tokenize.tok_name[token.type] == "FSTRING_MIDDLE":
            parts.append(re.sub(r"^[a-zA-Z]*(['\"]+)(.*?)\1$", r"\2", token.string, flags=re.DOTALL))
    return " ".join(" ".join(parts).split())


MADE = re.compile(r"<!-- (table|errors|first_errors): begin -->.*?<!-- \1: end -->", re.DOTALL)
CODE = re.compile(r"^ *```.*?^ *```$|^(?:    [^\n]*\n)+|`[^`\n]+`", re.DOTALL | re.MULTILINE)


def prose_of_page(page: str) -> str:
    """A Markdown page as one line, without its code, its table of measurements and the sentences that modules have."""
    return " ".join(CODE.sub("`code`", MADE.sub("", page)).split())


def prose_of_notebook(notebook: str) -> str:
    cells = json.loads(notebook)["cells"]
    texts = ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return prose_of_page("\n\n".join(texts))


TYPESCRIPT = re.compile(
    r"/\*(?P<block>.*?)\*/|//(?P<line>[^\n]*)|'(?P<single>(?:\\.|[^'\\\n])*)'"
    r"|\"(?P<double>(?:\\.|[^\"\\\n])*)\"|`(?P<template>(?:\\.|[^`\\])*)`",
    re.DOTALL,
)


def prose_of_typescript(source: str) -> str:
    parts = (match[match.lastgroup or 0].strip().lstrip("* ") for match in TYPESCRIPT.finditer(source))
    return " ".join(re.sub(r"\n\s*\*", " ", " ".join(parts)).split())


def found_in(text: str, phrases: tuple[str, ...] = PHRASES) -> list[str]:
    return [match.group() for phrase in phrases for match in re.finditer(rf"\b(?:{phrase})\b", text, re.I)]


@functools.cache
def findings() -> dict[str, list[str]]:
    packages: dict[str, list[str]] = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        inside = file.relative_to(PACKAGE)
        if inside.parts[:3] == ("benchmark", "tasks", "swe"):
            continue
        package = inside.parts[0] if len(inside.parts) > 1 else "package"
        packages.setdefault(package, []).extend(
            f"{inside}: {one}" for one in found_in(prose(file.read_text()))
        )
    for file in sorted(VIEW.rglob("*.ts")):
        package = f"labextension/{file.relative_to(VIEW).parts[0]}"
        found = found_in(prose_of_typescript(file.read_text()))
        packages.setdefault(package, []).extend(f"{file.relative_to(VIEW)}: {one}" for one in found)
    for file in PAGES:
        read = prose_of_notebook if file.suffix == ".ipynb" else prose_of_page
        name = file.relative_to(ROOT).as_posix()
        packages[name] = [f"{name}: {one}" for one in found_in(read(file.read_text()), PHRASES + IN_PAGES)]
    return packages


@pytest.mark.parametrize("package", sorted(findings()))
def test_no_package_and_no_page_uses_these_phrases(package: str) -> None:
    assert findings()[package] == []


def test_the_search_sees_strings_comments_and_line_breaks() -> None:
    source = 'x = f"a run {y} that is under " "way"\n# A run that\n# is under way.\nunder_way = at.work\n'
    assert found_in(prose(source)) == ["under way", "under way"]


def test_the_search_sees_strings_and_comments_of_typescript() -> None:
    source = "/** A run that is under\n * way. */\nconst atWork = `at work ${x}`; // goes on\nt('It\\'s under way');\n"
    assert sorted(found_in(prose_of_typescript(source))) == ["at work", "goes on", "under way", "under way"]


def test_the_search_sees_the_text_of_pages_and_not_their_code() -> None:
    page = (
        "A run that is\nunder way, `under way`.\n\n```\nunder way\n```\n\n    under way\n\n| a | goes on |\n"
    )
    made = "<!-- table: begin -->\nunder way\n<!-- table: end -->\n"
    assert found_in(prose_of_page(page + made)) == ["under way", "goes on"]
    cells = [{"cell_type": kind, "source": ["It goes\n", "on."]} for kind in ("markdown", "code")]
    assert found_in(prose_of_notebook(json.dumps({"cells": cells}))) == ["goes on"]


@dataclass
class Docstring:
    """A docstring and whether it belongs to a function that is not a property."""

    place: str
    text: str
    of_function: bool

    @property
    def words(self) -> list[str]:
        return re.findall(r"[A-Za-z']+", self.text)


def docstrings(source: str, place: str) -> Iterator[Docstring]:
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if text := ast.get_docstring(node):
            decorators = [ast.unparse(one) for one in getattr(node, "decorator_list", ())]
            function = not isinstance(node, ast.Module | ast.ClassDef)
            called = function and not any("property" in one for one in decorators)
            yield Docstring(f"{place}:{getattr(node, 'lineno', 1)}", text, called)
        if isinstance(node, ast.Module | ast.ClassDef):
            for before, one in pairwise(node.body):
                text = getattr(getattr(one, "value", None), "value", None)
                if isinstance(before, ast.Assign | ast.AnnAssign) and isinstance(one, ast.Expr) and text:
                    yield Docstring(f"{place}:{one.lineno}", str(text), False)


RELATIVE = ("What", "Whether", "One", "Those", "Which", "How", "Where", "Why", "Who", "It")
"""First words that define a thing by a clause: readers search for the verb or the noun."""


def begins_with_a_clause(found: Docstring) -> bool:
    return bool(found.words) and found.words[0] in RELATIVE


@functools.cache
def package_docstrings() -> list[Docstring]:
    files = sorted(PACKAGE.rglob("*.py"))
    return [
        one for file in files for one in docstrings(file.read_text(), file.relative_to(PACKAGE).as_posix())
    ]


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    assert [one.place for one in package_docstrings() if begins_with_a_clause(one)] == []
    functions = [one for one in package_docstrings() if one.of_function and one.words]
    nouns = ("A", "An", "The", "Its", "All", "Each", "Every", "No", "Some", "Any")
    verbs = [one for one in functions if one.words[0] not in nouns and not one.words[0].endswith("s")]
    assert len(verbs) >= 0.9 * len(functions), "Return, Read, Write, Raise, Start, ..."


def test_docstrings_name_things() -> None:
    words = [word.lower() for one in package_docstrings() for word in one.words]
    assert words.count("what") <= 1 * len(words) / 1000
    assert words.count("it") + words.count("its") <= 15 * len(words) / 1000


def test_the_search_sees_docstrings_of_every_kind() -> None:
    source = (
        "'What is there.'\nclass A:\n    'One of them.'\n    x: int = 1\n    'Whether it is so.'\n"
        "    def f(self):\n        'Which of them.'\n    @property\n    def name(self):\n        'The name.'\n"
    )
    found = list(docstrings(source, "a"))
    assert sum(map(begins_with_a_clause, found)) == 4
    assert [one.text for one in found if one.of_function] == ["Which of them."]


if __name__ == "__main__":
    for one in [one for package in findings().values() for one in package]:
        print(one)
    print(Counter({package: len(found) for package, found in findings().items()}))
