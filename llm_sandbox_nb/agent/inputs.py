"""Files that a sandbox has when a run begins: input files, and files of another run."""

from __future__ import annotations

import io
import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_sandbox_nb.agent.errors import InputError
from llm_sandbox_nb.own_folder import expanded
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.errors import TransferError
from llm_sandbox_nb.sandbox.transfer import plan_upload
from llm_sandbox_nb.trajectory.events import clean_text

InputFiles = Iterable[str | Path] | Mapping[str, Any] | str | Path | None
"""Input files: one path, several paths, or a mapping. The keys of a mapping are names in the input folder. Its values
are paths, `bytes`, or data frames of pandas or polars."""
EMPTY_NAME = (
    "An input has an empty name (is a variable empty?): name a file, or write . for the current folder."
)
_MAX_RECORDED_NAMES = 1000
_MAX_NAME_BYTES = 255
"""Maximum number of bytes in each part of a path. Common file systems allow no more."""
PREVIEW_HEADING = "The input files begin like this:"
"""First line of `Inputs.preview`. `previewed` searches for this line."""
_PREVIEW_FILES = 5
_PREVIEW_LINES_PER_FILE = 3
_PREVIEW_LINE_LENGTH = 80


@dataclass(frozen=True)
class Inputs:
    """Input files.

    `paths` are files and folders on this machine. `contents` has pairs of a name in the input folder and the content,
    or a path with the content. `found` has the names of all these files, relative to the input folder.
    """

    paths: tuple[Path, ...] = ()
    contents: tuple[tuple[str, bytes | Path], ...] = ()
    found: tuple[str, ...] = ()

    def names(self) -> list[str]:
        """Return the sorted names for the record, relative to the input folder. Only the first 1000 are returned."""
        return [str(clean_text(name)) for name in sorted(self.found)[:_MAX_RECORDED_NAMES]]

    def preview(self, folder: str) -> str:
        """Return the first lines of a few text files, below the path of each file in `folder`.

        Without text files, return an empty text.
        """
        named = [(path.name, path) for path in self.paths] + list(self.contents)
        parts = []
        for name, content in sorted(named, key=lambda pair: pair[0])[:_PREVIEW_FILES]:
            lines = _first_lines(content)
            parts += [f"{posixpath.join(folder, name)}:", *lines] if lines else []
        return "\n".join([PREVIEW_HEADING, *parts]) if parts else ""

    async def upload(self, box: Sandbox, folder: str) -> tuple[str, ...]:
        """Copy the files to `folder` in the sandbox. Return a message for each file that was left out.

        Raises:
            TransferError: if a file cannot be read any more, or if the sandbox has no space for the files.
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
    """Return the preview in a message. Empty if the message has no preview."""
    return message.partition(f"{PREVIEW_HEADING}\n")[2]


def _first_lines(content: bytes | Path) -> list[str]:
    """Return the first lines of a text, shortened. Return no lines for folders, binary files and unreadable files."""
    size = _PREVIEW_LINES_PER_FILE * _PREVIEW_LINE_LENGTH * 4  # UTF-8 has at most 4 bytes per character
    try:
        if isinstance(content, Path):
            with content.open("rb") as file:
                content = file.read(size)
        text = str(clean_text(content[:size].decode("utf-8", "ignore")))
    except OSError:
        return []
    if "\0" in text or not text.strip():
        return []
    lines = text.splitlines()
    shown = [
        line if len(line) <= _PREVIEW_LINE_LENGTH else f"{line[:_PREVIEW_LINE_LENGTH]}..."
        for line in lines[:_PREVIEW_LINES_PER_FILE]
    ]
    return [*shown, "..."] if len(lines) > _PREVIEW_LINES_PER_FILE else shown


def check_inputs(inputs: InputFiles) -> Inputs:
    """Check inputs, and return them in a common form.

    Raises:
        InputError: if an input is missing, unreadable or of a wrong type, or two inputs have the same name.
    """
    if inputs is None:
        return Inputs()
    if isinstance(inputs, Mapping):
        contents = tuple((name, _checked(name, content)) for name, content in inputs.items())
        found = [
            posixpath.join(name, below) if below else name
            for name, content in contents
            for below in (_names_in(content) if isinstance(content, Path) and content.is_dir() else [""])
        ]
        check_file_names(found)
        return Inputs(contents=contents, found=tuple(found))
    given: Any = inputs
    is_one = isinstance(given, str | bytes | bytearray) or is_frame(given) or not isinstance(given, Iterable)
    listed = [given] if is_one else given
    paths = tuple(_existing(_checked_path(path)) for path in listed)
    _check_unique(paths)
    return Inputs(paths, found=tuple(name for path in paths for name in _names_in(path)))


def check_file_names(names: Iterable[str]) -> None:
    """Check that files with these names can be written into one folder. The names may contain folders.

    Raises:
        InputError: if a name is longer than file systems allow, if a name ends with a slash, if two files have the
            same name, or if a file has the name of another file's folder.
    """
    known: set[str] = set()
    for name in names:
        if name.endswith("/"):
            raise InputError(f"{name!r} cannot be the name of an input: it ends with a slash.")
        if any(len(part.encode("utf-8", "replace")) > _MAX_NAME_BYTES for part in name.split("/")):
            raise InputError(
                f"{name[:40]!r}... cannot be the name of an input: it has more than {_MAX_NAME_BYTES} bytes."
            )
        plain = posixpath.normpath(name)
        if plain in known:
            raise InputError(f"Two inputs have the name {plain!r}: rename one.")
        known.add(plain)
    for name in known:
        folder = posixpath.dirname(name)
        while folder:
            if folder in known:
                raise InputError(
                    f"The input {folder!r} is a file, but the input {name!r} needs a folder of this name: rename one."
                )
            folder = posixpath.dirname(folder)


def _names_in(path: Path) -> list[str]:
    """Return the names of the files to upload. Raise InputError if a file or folder cannot be read."""
    try:
        return plan_upload(path).names()
    except TransferError as error:
        raise InputError(f"The inputs cannot be read: {error}") from error


def _checked_path(given: Any) -> str | Path:
    if is_frame(given):
        raise InputError("A data frame needs a name in the input folder: write inputs={'data.csv': frame}.")
    if not isinstance(given, str | Path):
        raise InputError(
            f"inputs takes paths, or a mapping as in {{'data.csv': content}}, not {type(given).__name__}."
        )
    return given


def _checked(name: Any, content: Any) -> bytes | Path:
    if (
        not isinstance(name, str)
        or not name
        or name.startswith("/")
        or "\x00" in name
        or ".." in name.split("/")
    ):
        raise InputError(f"{name!r} cannot be the name of an input: use a plain file name.")
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
    """Return True for a data frame or a series of pandas or polars."""
    library = type(value).__module__.partition(".")[0]
    return library in ("pandas", "polars") and type(value).__name__ in ("DataFrame", "Series")


def frame_content(name: str, value: Any) -> bytes:
    """Convert a data frame to the bytes of a `.csv`, `.tsv` or `.parquet` file. The ending of `name` decides.

    Raises:
        InputError: if the name has another ending.
        ImportError: if the library that writes Parquet is not installed.
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
    if path == "":  # `Path("")` is the current folder, so all files of this folder would be uploaded
        raise InputError(EMPTY_NAME)
    path = expanded(path)
    if not path.exists():
        raise InputError(f"The input {path} does not exist: check the name, relative to {Path.cwd()}.")
    if not path.is_file() and not path.is_dir():
        raise InputError(f"The input {path} is neither a file nor a folder: give one of these.")
    return path.absolute()


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
    """Files of a checkpoint, with which a sandbox begins. `history` is the folder that stores the checkpoint."""

    history: Path
    checkpoint: str

    async def put_into(self, box: Sandbox) -> tuple[str, ...]:
        """Restore these files in the sandbox. Return a message for each file that could not be restored.

        Raises:
            SandboxError: if the files cannot be read. In this case, the files of the sandbox do not change.
        """
        kept = {checkpoint.id for checkpoint in box.history.checkpoints}
        if kept and self.checkpoint not in kept:
            await box.keep_history(self.history)
        return (await box.restore(self.checkpoint)).problems

    def continued(self, box: Sandbox) -> Path | None:
        """Return the folder of the history that a sandbox without checkpoints should continue.

        Return None if the sandbox already has checkpoints.
        """
        return None if box.history.checkpoints else self.history
