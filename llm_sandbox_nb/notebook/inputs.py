"""Inputs named by `-i`: files, folders, and Python variables, whose values become files of the sandbox."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from llm_sandbox_nb.agent.inputs import EMPTY_NAME, frame_content, is_frame
from llm_sandbox_nb.formatting import plural
from llm_sandbox_nb.notebook.errors import SandboxInputError
from llm_sandbox_nb.own_folder import expanded

FrameFormat = Literal["csv", "parquet"]
MAX_INPUT_FILES = 5_000
"""Maximum number of files in an input folder."""


def collect_inputs(
    names: Iterable[str], namespace: Mapping[str, Any], frame_format: FrameFormat = "csv"
) -> dict[str, Path | bytes]:
    """Return the inputs by their name in the sandbox's input folder: a path on this machine, or the content.

    A name that is both a variable and a file is refused; `./name` always means the file.

    Raises:
        SandboxInputError: if a name is unknown, two names are equal, or a value cannot be written.
    """
    inputs: dict[str, Path | bytes] = {}
    for name in names:
        try:
            found = _named(name, namespace, frame_format)
        except OSError as error:
            raise SandboxInputError(f"{name[:200]!r} cannot be read ({error.strerror}): check -i.") from error
        for label, content in found:
            if label in inputs:
                raise SandboxInputError(f"Two inputs are called {label!r}: rename one of them.")
            inputs[label] = content
    return inputs


def _named(
    name: str, namespace: Mapping[str, Any], frame_format: FrameFormat
) -> Iterable[tuple[str, Path | bytes]]:
    if not name:
        raise SandboxInputError(EMPTY_NAME)
    path = expanded(name)
    is_variable = name.isidentifier() and name in namespace
    if path.exists():
        if is_variable:
            raise SandboxInputError(
                f"{name!r} is both a variable and a file: write ./{name} for the file, or rename one of them."
            )
        return [_file(path)]
    if not is_variable:
        return _matching(name, path)
    value = namespace[name]
    if isinstance(value, Path):
        return _matching(str(value), value)
    return [_written(name, value, frame_format)]


def _matching(name: str, path: Path) -> list[tuple[str, Path]]:
    found = [path] if path.exists() else []
    if not found and any(character in name for character in "*?["):
        root = Path(path.anchor)  # empty where the path is relative
        found = sorted(root.glob(str(path.relative_to(root))))
    if not found:
        kind = "file, folder or variable" if name.isidentifier() else "file or folder"
        raise SandboxInputError(
            f"There is no {kind} {name!r} for the sandbox: check -i (relative paths start at {Path.cwd()})."
        )
    return [_file(one) for one in found]


def _file(path: Path) -> tuple[str, Path]:
    """Return the name in the input folder of the sandbox, and the path on this machine."""
    name = path.resolve().name or "input"
    if path.is_file():
        return path.name or name, path
    if not path.is_dir():
        raise SandboxInputError(
            f"{path} is neither a file nor a folder: leave it out, or hand in the folder it is in."
        )
    files = list(
        islice((found for found in path.resolve().rglob("*") if not found.is_dir()), MAX_INPUT_FILES + 1)
    )
    if not files or len(files) > MAX_INPUT_FILES:
        has = "no files" if not files else f"more than {plural(MAX_INPUT_FILES, 'file')}"
        raise SandboxInputError(f"The folder {path} has {has}: hand in single files, or an archive.")
    return name, path.resolve()


def _written(name: str, value: Any, frame_format: FrameFormat) -> tuple[str, bytes]:
    """Return the name and the content of the file that a variable becomes."""
    try:
        if is_frame(value):
            label = f"{name}.{frame_format}"
            return label, frame_content(label, value)
        if isinstance(value, bytes | bytearray):
            return f"{name}.bin", bytes(value)
        if isinstance(value, str):
            return f"{name}.txt", value.encode()
        return f"{name}.json", json.dumps(value, ensure_ascii=False, default=_plain_value).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise SandboxInputError(
            f"The variable {name!r} ({type(value).__name__}) cannot be written as a file ({error}): "
            "save it yourself and hand in the file."
        ) from error
    except ImportError as error:
        raise SandboxInputError(
            f"The variable {name!r} cannot be written as Parquet: install pyarrow, or "
            "set %config SandboxMagics.dataframe_format = 'csv'."
        ) from error


def _plain_value(value: Any) -> Any:
    """Convert a value that `json` cannot write: arrays and numbers of numpy, dates, paths, sets, dataclasses."""
    for method in ("tolist", "isoformat", "model_dump", "_asdict"):
        if callable(convert := getattr(value, method, None)):
            return convert()
    if isinstance(value, set | frozenset | tuple | Mapping):
        return dict(value) if isinstance(value, Mapping) else sorted(value, key=repr)
    if hasattr(value, "__dataclass_fields__"):
        return vars(value)
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not JSON")
