"""What a sandbox holds when a run begins: input files, checked before anything starts, and files of another run."""

from __future__ import annotations

import io
import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_sandbox_nb.agent.errors import InputError
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.errors import TransferError
from llm_sandbox_nb.sandbox.transfer import plan_upload
from llm_sandbox_nb.trajectory.events import clean_text

InputFiles = Iterable[str | Path] | Mapping[str, Any] | str | Path | None
"""Paths; or, by their names in the input folder, paths, contents (`bytes`) and data frames of pandas or polars."""
_NAMED = 1000
PREVIEW = "The input files begin like this:"
"""The line above `Inputs.preview`, by which that is found again."""
_PREVIEWED, _LINES, _WIDTH = 5, 3, 80
"""Files of a preview, lines of each, and characters of a line."""


@dataclass(frozen=True)
class Inputs:
    """Input files: host paths, and contents by name, where a path may also be a folder.

    `found` are the names of all files in them, for the record.
    """

    paths: tuple[Path, ...] = ()
    contents: tuple[tuple[str, bytes | Path], ...] = ()
    found: tuple[str, ...] = ()

    def names(self) -> list[str]:
        """Names below the input folder, for the record; at most the first thousand."""
        return [str(clean_text(name)) for name in sorted(self.found)[:_NAMED]]

    def preview(self, folder: str) -> str:
        """The first lines of the first few files that are text, with their places in `folder`; empty without any."""
        named = [(path.name, path) for path in self.paths] + list(self.contents)
        parts = []
        for name, content in sorted(named, key=lambda pair: pair[0])[:_PREVIEWED]:
            lines = _first_lines(content)
            parts += [f"{posixpath.join(folder, name)}:", *lines] if lines else []
        return "\n".join([PREVIEW, *parts]) if parts else ""

    async def upload(self, box: Sandbox, folder: str) -> tuple[str, ...]:
        """Put everything into `folder` of the sandbox. Returns a sentence for each thing that was left out.

        Raises:
            TransferError: something cannot be read any more, or there is no room.
        """
        left_out: list[str] = []
        for path in self.paths:
            left_out += await box.upload(path, folder)
        for name, content in self.contents:
            place = posixpath.join(folder, name)
            if isinstance(content, bytes):
                await box.write_file(place, content)
            elif content.is_dir():
                left_out += await box.upload(content, place)
            else:
                await box.write_file(place, content.read_bytes())
        return tuple(left_out)


def previewed(message: str) -> str:
    """The preview in a message; empty where there is none."""
    return message.partition(f"{PREVIEW}\n")[2]


def _first_lines(content: bytes | Path) -> list[str]:
    """The first lines of a text, shortened; none of a folder, and of what is no text or cannot be read."""
    try:
        if isinstance(content, Path):
            with content.open("rb") as file:
                content = file.read(_LINES * _WIDTH * 4)
        text = str(clean_text(content[: _LINES * _WIDTH * 4].decode("utf-8", "ignore")))
    except OSError:
        return []
    if "\0" in text or not text.strip():
        return []
    lines = text.splitlines()
    shown = [line[:_WIDTH] + "..." * (len(line) > _WIDTH) for line in lines[:_LINES]]
    return [*shown, "..."] if len(lines) > _LINES else shown


def check_inputs(inputs: InputFiles) -> Inputs:
    """Check the input: files, folders (their content), or contents, data frames and files by name.

    Raises:
        InputError: something is missing or unreadable, or two things have the same name.
    """
    if inputs is None:
        return Inputs()
    if isinstance(inputs, Mapping):
        contents = tuple((_checked_name(name), _checked(name, content)) for name, content in inputs.items())
        found = [
            posixpath.join(name, below) if below else name
            for name, content in contents
            for below in (_names_in(content) if isinstance(content, Path) and content.is_dir() else [""])
        ]
        return Inputs(contents=contents, found=tuple(found))
    given: Any = inputs
    is_one = isinstance(given, str | bytes | bytearray) or is_frame(given) or not isinstance(given, Iterable)
    listed = [given] if is_one else given
    paths = tuple(_existing(_checked_path(one)) for one in listed)
    _check_unique(paths)
    return Inputs(paths, found=tuple(name for path in paths for name in _names_in(path)))


def _names_in(path: Path) -> list[str]:
    """The names of the files that an upload takes. Raises InputError when something cannot be read."""
    try:
        return plan_upload(path).names()
    except TransferError as error:
        raise InputError(f"The inputs cannot be taken: {error}") from error


def _checked_path(given: Any) -> str | Path:
    if is_frame(given):
        raise InputError("A data frame needs a name in the input folder: write inputs={'data.csv': frame}.")
    if not isinstance(given, str | Path):
        raise InputError(
            f"inputs takes paths, or contents by name as in {{'data.csv': content}}, not {type(given).__name__}."
        )
    return given


def _checked(name: str, content: Any) -> bytes | Path:
    if isinstance(content, bytes | bytearray):
        return bytes(content)
    if is_frame(content):
        return frame_content(name, content)
    if not isinstance(content, str | Path):
        raise InputError(
            f"The input {name!r} is of type {type(content).__name__}: give a path, bytes or a data frame."
        )
    return _existing(content)


def is_frame(value: Any) -> bool:
    """Whether it is a data frame or a column, of pandas or polars."""
    library = type(value).__module__.partition(".")[0]
    return library in ("pandas", "polars") and type(value).__name__ in ("DataFrame", "Series")


def frame_content(name: str, value: Any) -> bytes:
    """The content of a file `name` that holds a data frame: `.csv`, `.tsv` or `.parquet`.

    Raises:
        InputError: the name has another ending.
        ImportError: what writes Parquet is not installed.
    """
    frame = value.to_frame() if type(value).__name__ == "Series" else value
    suffix, out = Path(name).suffix.lower(), io.BytesIO()
    polars = type(frame).__module__.startswith("polars")
    if suffix == ".parquet":
        frame.write_parquet(out) if polars else frame.to_parquet(out)
    elif suffix in (".csv", ".tsv"):
        between = "," if suffix == ".csv" else "\t"
        if polars:
            frame.write_csv(out, separator=between)
        else:
            frame.to_csv(out, sep=between, index=type(frame.index).__name__ != "RangeIndex")
    else:
        raise InputError(f"A data frame becomes a file that ends in .csv, .tsv or .parquet, not {name!r}.")
    return out.getvalue()


def _existing(path: str | Path) -> Path:
    path = Path(path).expanduser()
    if not path.exists():
        raise InputError(f"The input {path} does not exist: check the name, relative to {Path.cwd()}.")
    if not path.is_file() and not path.is_dir():
        raise InputError(f"The input {path} is neither a file nor a folder: give one of these.")
    return path.absolute()


def _checked_name(name: str) -> str:
    if not name or name.startswith("/") or "\x00" in name or ".." in name.split("/"):
        raise InputError(f"{name!r} cannot be the name of an input: use a plain file name.")
    return name


def _check_unique(paths: tuple[Path, ...]) -> None:
    taken: dict[str, Path] = {}
    for path in paths:
        for entry in (path,) if path.is_file() else path.iterdir():
            if entry.name in taken:
                raise InputError(
                    f"{taken[entry.name]} and {entry} would have the same name in the sandbox: rename one."
                )
            taken[entry.name] = entry


@dataclass(frozen=True)
class StartingFiles:
    """A checkpoint in a history on disk."""

    history: Path
    checkpoint: str

    async def put_into(self, box: Sandbox) -> tuple[str, ...]:
        """Give the sandbox these files. Returns a sentence for each thing that could not be restored.

        Raises:
            SandboxError: they cannot be read; nothing was changed.
        """
        kept = {one.id for one in box.history.checkpoints}
        if kept and self.checkpoint not in kept:
            await box.keep_history(self.history)
        return (await box.restore(self.checkpoint)).problems

    def continued(self, box: Sandbox) -> Path | None:
        """The history that the sandbox's own begins with; None for one that has its own."""
        return None if box.history.checkpoints else self.history
