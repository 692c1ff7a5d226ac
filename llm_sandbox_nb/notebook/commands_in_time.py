"""`%sandbox rewind|undo|fork|compare|replay`: the newest run of the notebook, or the one that `--run` names."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from llm_sandbox_nb.notebook.arguments import variable_name
from llm_sandbox_nb.notebook.card_text import plain
from llm_sandbox_nb.notebook.errors import SandboxInputError, SandboxUsageError
from llm_sandbox_nb.notebook.records import run_folders

if TYPE_CHECKING:
    from llm_sandbox_nb.agent.run import Run

TIME_WORDS = ("rewind", "undo", "fork", "compare", "replay")
_USAGE = {
    "rewind": "rewind STEP [both|files|conversation] [--run RUN]",
    "undo": "undo [--run RUN]",
    "fork": "fork STEP [-o NAME] [--run RUN]",
    "compare": "compare [RUN...] [--run RUN]",
    "replay": "replay [--ignore EXPR] [--ignore-files PATTERN] [--run RUN]",
}


class CommandsInTime:
    """Each method is one subcommand.

    Args:
        newest: the newest run that began in this kernel, if any.
        folder: where the notebook's runs are.
        namespace: the user's variables, which may hold runs.
        find: the run of a name or folder, ready to be gone on with in cells.
    """

    def __init__(
        self, newest: Run | None, folder: Path, namespace: dict[str, Any], find: Callable[[str], Run]
    ) -> None:
        self._newest = newest
        self._folder = folder
        self._namespace = namespace
        self._find_run = find

    def rewind(self, rest: str) -> None:
        """Go back, after having said what that changes."""
        words, run = self._words("rewind", rest, 1, 2)
        step, what = _step("rewind", words[0]), words[1] if len(words) > 1 else "both"
        if what not in ("both", "files", "conversation"):
            _wrong("rewind")
        print(plain(str(run.preview(step, what))))  # type: ignore[arg-type]
        print(plain(str(run.rewind(step, what))))  # type: ignore[arg-type]

    def undo(self, rest: str) -> None:
        """Take the newest rewind back."""
        _, run = self._words("undo", rest, 0, 0)
        print(plain(str(run.undo())))

    def fork(self, rest: str) -> None:
        """Make a second run with a sandbox of its own."""
        words, run = self._words("fork", rest, 1, 3)
        name = None
        if len(words) == 3 and words[1] in ("-o", "--out"):
            name = variable_name(words[2])
        elif len(words) != 1:
            _wrong("fork")
        other = run.fork(_step("fork", words[0]))
        if name:
            self._namespace[name] = other
        where = f"It is the variable {name}: {name}.resume() goes on."
        if not name:
            where = f"%sandbox load {other.folder.name} -o NAME gives it."
        print(plain(f"Forked after step {words[0]} into {other.folder}. {where}"))

    def compare(self, rest: str) -> None:
        """Show runs side by side, or the branches of one."""
        from IPython import display

        words, run = self._words("compare", rest, 0, 20)
        show: Any = display.display
        show(run.compare(*(self._find(word) for word in words)))

    def replay(self, rest: str) -> None:
        """Play a run again and say what comes out otherwise."""
        words, run = self._words("replay", rest, 0, 100)
        found: dict[str, list[str]] = {"--ignore": [], "--ignore-files": []}
        while words:
            name = words.pop(0)
            if name not in found or not words:
                _wrong("replay")
            found[name].append(words.pop(0))
        print(plain(str(run.replay(found["--ignore"], ignore_files=found["--ignore-files"]))))

    def _words(self, name: str, rest: str, least: int, most: int) -> tuple[list[str], Run]:
        try:
            words = shlex.split(rest)
        except ValueError as error:
            raise SandboxUsageError(f"%sandbox {name} cannot be read ({error}): check the quotes.") from error
        run = None
        if "--run" in words:
            place = words.index("--run")
            if place + 1 >= len(words):
                _wrong(name)
            run = self._find(words[place + 1])
            del words[place : place + 2]
        if not least <= len(words) <= most:
            _wrong(name)
        return words, run or self._last()

    def _last(self) -> Run:
        if self._newest is not None:
            return self._newest
        folders = run_folders(self._folder)
        if not folders:
            raise SandboxInputError("There is no run in this notebook yet: a %%sandbox cell makes one.")
        return self._find_run(str(folders[-1]))

    def _find(self, name: str) -> Run:
        if self._newest is not None and name in (self._newest.folder.name, str(self._newest.folder)):
            return self._newest
        return self._find_run(name)


def _step(name: str, word: str) -> int:
    if not word.isdecimal():
        _wrong(name)
    return int(word)


def _wrong(name: str) -> NoReturn:
    raise SandboxUsageError(f"The command is %sandbox {_USAGE[name]}.")
