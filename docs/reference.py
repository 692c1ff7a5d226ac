"""Fills in what the pages of this folder take from the code: `python docs/reference.py` rewrites them.

Between `<!-- NAME: begin -->` and `<!-- NAME: end -->` stands what the function for NAME says. A test
compares, so that pages and code do not drift apart.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path

from traitlets.config import Configurable

from llm_sandbox_nb.notebook.magics import SandboxMagics
from llm_sandbox_nb.notebook.settings import SandboxSettings
from llm_sandbox_nb.sandbox.isolations import ISOLATIONS
from llm_sandbox_nb.server.manager import SandboxManager
from llm_sandbox_nb.server.policy import SandboxPolicy
from llm_sandbox_nb.server.runs import RunRegistry
from llm_sandbox_nb.training.config import documented_keys

HERE = Path(__file__).parent
_BLOCK = re.compile(r"(<!-- (\w+): begin -->\n).*?(<!-- \2: end -->)", re.DOTALL)


def traits(*classes: type[Configurable]) -> str:
    """Every setting of the classes, as a table."""
    lines = ["| setting | default | |", "|---|---|---|"]
    for one in classes:
        for name, trait in sorted(one.class_own_traits(config=True).items()):
            owner = SandboxMagics if issubclass(SandboxMagics, one) else one
            setting, default = f"{owner.__name__}.{name}", trait.default_value_repr()
            lines.append(f"| `{setting}` | `{default}` | {_cell(trait.help)} |")
    return "\n".join(lines)


def options() -> str:
    """The options of `%%sandbox`, as a table."""
    lines = ["| option | |", "|---|---|"]
    for action in SandboxMagics.sandbox_cell.parser._actions:
        if action.option_strings and action.help:
            names = " ".join(f"`{name}`" for name in action.option_strings)
            lines.append(f"| {names} | {_cell(action.help)} |")
    return "\n".join(lines)


def isolations() -> str:
    """The registry of isolations: what each needs, and what its checkpoints keep."""
    lines = ["| isolation | what to do so that it works | checkpoints |", "|---|---|---|"]
    for one in ISOLATIONS.values():
        lines.append(f"| `{one.name}` | {_cell(one.install_hint)} | {_cell(one.checkpoints)} |")
    return "\n".join(lines)


def subcommands() -> str:
    """What `%sandbox` explains of itself."""
    _, _, listed = inspect.cleandoc(SandboxMagics.sandbox_line.__doc__ or "").partition("\n\n")
    return f"```\n{listed}\n```"


def training() -> str:
    """Every key of a training's configuration, as a table."""
    lines = ["| key | default | |", "|---|---|---|"]
    lines += [f"| `{name}` | `{default}` | {_cell(text)} |" for name, default, text in documented_keys()]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


BLOCKS: dict[str, Callable[[], str]] = {
    "traits": lambda: traits(SandboxPolicy, SandboxManager, RunRegistry),
    "settings": lambda: traits(SandboxSettings),
    "options": options,
    "subcommands": subcommands,
    "isolations": isolations,
    "training": training,
}


def filled(page: str) -> str:
    """The page with its blocks as the code has them now."""
    return _BLOCK.sub(lambda match: f"{match[1]}\n{BLOCKS[match[2]]()}\n\n{match[3]}", page)


def main() -> None:
    """Rewrite the pages that have blocks."""
    for path in HERE.glob("*.md"):
        text = path.read_text("utf-8")
        if path.name != "performance.md" and (new := filled(text)) != text:
            path.write_text(new, "utf-8")
            print(f"rewrote {path.name}")


if __name__ == "__main__":
    main()
