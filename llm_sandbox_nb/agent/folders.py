"""Where a run is written, and what of its circumstances is written down."""

from __future__ import annotations

import functools
import platform
import re
import secrets
import time
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from llm_sandbox_nb import __version__
from llm_sandbox_nb.agent.failures import InputError

_SECRET = re.compile(r"key|token$|secret|password|passwd|authorization|credential|cookie", re.IGNORECASE)
_UNSAFE = re.compile(r"[/\\\x00-\x1f\x7f]+")


def new_run_folder(parent: Path, name: str | None) -> Path:
    """Make `<parent>/<name>/<YYYYmmdd-HHMMSS>-<id>`, without the middle when there is no name.

    Raises:
        InputError: it cannot be made there.
    """
    part = _UNSAFE.sub("-", name).strip(". ")[:120] if name else ""
    folder = (
        parent.expanduser().absolute() / part / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
    )
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise InputError(
            f"The run's folder cannot be made in {parent} ({error.strerror}): choose another output folder."
        ) from error
    return folder


def public_settings(value: Any) -> Any:
    """`value` with what looks like a secret left out."""
    if isinstance(value, Mapping):
        return {
            str(key): "(not recorded)"
            if _SECRET.search(str(key)) and isinstance(item, str)
            else public_settings(item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [public_settings(item) for item in value]
    return value


def versions() -> dict[str, str]:
    """Versions of what a run depends on."""
    found = {"llm-sandbox-nb": __version__, "python": platform.python_version()}
    if litellm := _installed("litellm"):
        found["litellm"] = litellm
    return found


@functools.cache
def _installed(package: str) -> str | None:
    """The version of a package; looking it up takes longer than much of a short run."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
