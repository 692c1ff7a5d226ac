"""The pages of the documentation: their headings, links and fenced examples."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
_FENCE = re.compile(r"^( *)```(.*?)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Example:
    """A fenced block of a page. `kind` is the word after the fence: python, bash, toml, ...; empty for a magic."""

    page: Path
    kind: str
    text: str

    def __str__(self) -> str:
        first = self.text.strip().splitlines()[0] if self.text.strip() else ""
        return f"{name_of(self.page)}: {first}"


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def examples_of(page: Path) -> list[Example]:
    return examples_in(page.read_text("utf-8"), page)


def examples_in(text: str, page: Path) -> list[Example]:
    return [Example(page, match[2].strip(), match[3]) for match in _FENCE.finditer(text)]


def prose_of(page: Path) -> str:
    """A page without its fenced blocks."""
    return _FENCE.sub("", page.read_text("utf-8"))


def links_of(page: Path) -> list[tuple[str, str]]:
    """The links of a page that lead into the checkout, each as path and anchor."""
    found = [target for target in _LINK.findall(prose_of(page)) if "://" not in target]
    return [(path, anchor) for path, _, anchor in (target.partition("#") for target in found)]


def anchors_of(page: Path) -> set[str]:
    headings = re.findall(r"^#{1,6} (.*)$", prose_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}
