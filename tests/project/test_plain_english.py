"""The prose of the package (docstrings, comments, messages, help texts), pages and notebooks holds no phrase of a list.

Each phrase made readers stop: subject, verb, object and the field's word (resume, run, undo, result) say it better.
"""

import functools
import io
import json
import re
import tokenize
from collections import Counter
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
    """The strings and comments of a module as one line."""
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
    """The strings and comments of a TypeScript module as one line."""
    parts = (match[match.lastgroup or 0].strip().lstrip("* ") for match in TYPESCRIPT.finditer(source))
    return " ".join(re.sub(r"\n\s*\*", " ", " ".join(parts)).split())


def found_in(text: str, phrases: tuple[str, ...] = PHRASES) -> list[str]:
    return [match.group() for phrase in phrases for match in re.finditer(rf"\b(?:{phrase})\b", text, re.I)]


@functools.cache
def findings() -> dict[str, list[str]]:
    """The phrases in each room, with the file that holds them."""
    rooms: dict[str, list[str]] = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        inside = file.relative_to(PACKAGE)
        if inside.parts[:3] == ("benchmark", "tasks", "swe"):
            continue
        room = inside.parts[0] if len(inside.parts) > 1 else "package"
        rooms.setdefault(room, []).extend(f"{inside}: {one}" for one in found_in(prose(file.read_text())))
    for file in sorted(VIEW.rglob("*.ts")):
        room = f"labextension/{file.relative_to(VIEW).parts[0]}"
        found = found_in(prose_of_typescript(file.read_text()))
        rooms.setdefault(room, []).extend(f"{file.relative_to(VIEW)}: {one}" for one in found)
    for file in PAGES:
        read = prose_of_notebook if file.suffix == ".ipynb" else prose_of_page
        name = file.relative_to(ROOT).as_posix()
        rooms[name] = [f"{name}: {one}" for one in found_in(read(file.read_text()), PHRASES + IN_PAGES)]
    return rooms


@pytest.mark.parametrize("room", sorted(findings()))
def test_no_room_and_no_page_uses_these_phrases(room: str) -> None:
    assert findings()[room] == []


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


if __name__ == "__main__":
    for one in [one for room in findings().values() for one in room]:
        print(one)
    print(Counter({room: len(found) for room, found in findings().items()}))
