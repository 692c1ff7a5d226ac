"""Whether the engine's storage can bound what a container writes: `overlay2` over XFS with project quotas can."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from llm_sandbox_nb.sandbox.docker.engine import one_line

if TYPE_CHECKING:
    from llm_sandbox_nb.sandbox.docker.api import DockerClient

_has_quotas: dict[str, bool] = {}
"""For each engine (its URL), whether its storage may have quotas, as far as it is known."""


def with_quota(client: DockerClient, make: Callable[[bool], dict[str, Any]]) -> dict[str, Any]:
    """Make a container with `make(True)` where its storage can have a quota, else with `make(False)`.

    Other drivers than `overlay2` count the image too, so a quota there would not be the sandbox's own.
    """
    from llm_sandbox_nb.sandbox.docker.api import APIError

    engine = str(client.api.base_url)
    if engine not in _has_quotas:
        info = client.info()
        filesystem = dict(info.get("DriverStatus") or []).get("Backing Filesystem")
        _has_quotas[engine] = (info.get("Driver"), filesystem) == ("overlay2", "xfs")
    if not _has_quotas[engine]:
        return make(False)
    try:
        return make(True)
    except APIError as error:
        text = one_line(error).lower()
        if "storage-opt" not in text and "quota" not in text:
            raise
        _has_quotas[engine] = False
        return make(False)
