"""One output of a cell: shown once, then updated in place."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any


class UpdatedOutput:
    """Publishes bundles, each in the place of the one before."""

    def __init__(self) -> None:
        self._id = uuid.uuid4().hex
        self._shown = False

    def publish(self, bundle: Mapping[str, Any], metadata: Mapping[str, Any] | None = None) -> None:
        """Show `bundle`. Metadata goes with every one, for an update without it erases what was there."""
        from IPython import display

        publish: Any = display.publish_display_data
        options: dict[str, Any] = {"transient": {"display_id": self._id}, "update": self._shown}
        publish(bundle, metadata or {}, **options)
        self._shown = True


def has_front_end(shell: Any) -> bool:
    """Whether somebody may be looking while a cell runs; plain IPython only prints."""
    return getattr(shell, "kernel", None) is not None
