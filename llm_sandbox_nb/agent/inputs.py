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
