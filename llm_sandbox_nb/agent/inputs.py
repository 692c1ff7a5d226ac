"""The files a user hands in: checked before anything starts, put into the sandbox's input folder."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from llm_sandbox_nb.agent.failures import InputError
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.trajectory.events import clean_text

InputFiles = Iterable[str | Path] | Mapping[str, str | Path | bytes] | str | Path | None
_NAMED = 1000


@dataclass(frozen=True)
class Inputs:
    """What goes in: host paths, and contents by name."""

    paths: tuple[Path, ...] = ()
    contents: tuple[tuple[str, bytes | Path], ...] = ()

    def names(self) -> list[str]:
        """Names below the input folder, for the record; at most the first thousand."""
        names = [name for name, _ in self.contents]
        for path in self.paths:
            names += [path.name] if path.is_file() else [str(file.relative_to(path)) for file in _files(path)]
        return [str(clean_text(name)) for name in sorted(names)[:_NAMED]]

    async def upload(self, box: Sandbox, folder: str) -> None:
        """Put everything into `folder` of the sandbox.

        Raises:
            TransferError: a link leads outside of what was handed in, or there is no room.
        """
        for path in self.paths:
            await box.upload(path, folder)
        for name, content in self.contents:
            data = content if isinstance(content, bytes) else content.read_bytes()
            await box.write_file(posixpath.join(folder, name), data)


def check_inputs(inputs: InputFiles) -> Inputs:
    """Look at what was handed in: files, folders (whose content goes in), or contents and files by name.

    Raises:
        InputError: something is missing, cannot be read, or two things have the same name.
    """
    if inputs is None:
        return Inputs()
    if isinstance(inputs, Mapping):
        return Inputs(
            contents=tuple((_checked_name(name), _checked(content)) for name, content in inputs.items())
        )
    listed = (inputs,) if isinstance(inputs, str | Path) else inputs
    paths = tuple(_existing(path) for path in listed)
    _check_unique(paths)
    return Inputs(paths)


def _checked(content: str | Path | bytes) -> bytes | Path:
    return content if isinstance(content, bytes) else _existing(content)


def _existing(path: str | Path) -> Path:
    path = Path(path).expanduser()
    if not path.exists():
        raise InputError(f"The input {path} does not exist: check the name, relative to {Path.cwd()}.")
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


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()][:_NAMED]
