"""Prompts of the paper's package. They are read from an installed copy, because this package does not contain them."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Literal

from llm_sandbox_nb.agent.errors import InputError
from llm_sandbox_nb.agent.prompts import PromptConfig, load_prompts

WhosePrompts = Literal["own", "original"]
_PACKAGE, _MODULE, _VERSION = "llm-in-sandbox", "llm_in_sandbox", "0.2.0"
ORIGINAL = f"{_PACKAGE} {_VERSION}"
"""Name and version of the original package. Records contain this text."""
_INSTALL = "run `pip install 'llm-sandbox-nb[original]'`"


def original_folder() -> Path:
    """Find the folder of the original package without importing the package.

    Raises:
        InputError: if the package is not installed, or has another version.
    """
    spec = importlib.util.find_spec(_MODULE)
    try:
        version = metadata.version(_PACKAGE)
    except metadata.PackageNotFoundError:
        version = ""
    if not version or spec is None or not spec.submodule_search_locations:
        raise InputError(f"The original prompts are those of {ORIGINAL}, which is not installed: {_INSTALL}.")
    if version != _VERSION:
        raise InputError(
            f"The original prompts are those of {ORIGINAL}, and {version} is installed: {_INSTALL}."
        )
    return Path(next(iter(spec.submodule_search_locations)))


def original_prompts() -> PromptConfig:
    """Load the prompts that the original package's `run` command uses.

    Raises:
        InputError: if the package is not installed, or has another version.
    """
    return as_original(load_prompts(original_folder() / "config" / "general.yaml"))


def as_original(prompts: PromptConfig) -> PromptConfig:
    """Return the prompts, marked as prompts of the original package, in which `{{` stands for `{`."""
    return replace(prompts, braces="doubled", source=ORIGINAL)


def chosen_prompts(whose: str, source: str | Path | PromptConfig | None = None) -> PromptConfig:
    """Load the prompts of this package or of the original package. `whose` is `own` or `original`.

    If `source` is given, it replaces the prompts of this package, as in `load_prompts`.

    Raises:
        InputError: if the prompts are missing, or if `source` is given together with `original`.
    """
    if whose == "own":
        return load_prompts(source)
    if whose != "original":
        raise InputError(f"prompts is own or original, not {whose!r:.80}.")
    if source is not None:
        raise InputError(
            "prompt_config and prompts=original choose different prompts: leave out one of them."
        )
    return original_prompts()
