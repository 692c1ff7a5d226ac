"""The written events of one run, on the server's disk rather than in its memory."""

from __future__ import annotations

import json
import tempfile
from array import array
from typing import IO, Any

_CLIPPED = 2000
"""Characters of each text of an event that comes when the store is full."""


class EventStore:
    """Lines in a file that has no name and is gone with this process; in memory only where each one ends."""

    def __init__(self, full_at: int) -> None:
        """From `full_at` bytes on, long texts of further events are clipped."""
        self._full_at = full_at
        self._ends = array("Q", [0])
        self._file: IO[bytes] | None = None

    def __len__(self) -> int:
        return len(self._ends) - 1

    @property
    def size(self) -> int:
        """Bytes."""
        return self._ends[-1]

    def append(self, event: dict[str, Any]) -> None:
        """Keep one more event. Raises OSError when the disk is full."""
        kept = clip_texts(event, _CLIPPED) if self.size > self._full_at else event
        data = json.dumps(kept, separators=(",", ":")).encode()
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="llm-sandbox-nb-")  # noqa: SIM115 - closed in `close`
        self._file.seek(self.size)
        self._file.write(data)
        self._ends.append(self.size + len(data))

    def read(self, start: int, most: int) -> list[str]:
        """Events from number `start` on, as JSON: at least one when there is one, not many more bytes than `most`."""
        if self._file is None or start >= len(self):
            return []
        end = start + 1
        while end < len(self) and self._ends[end + 1] - self._ends[start] <= most:
            end += 1
        self._file.seek(self._ends[start])
        data = self._file.read(self._ends[end] - self._ends[start])
        base = self._ends[start]
        return [
            data[self._ends[n] - base : self._ends[n + 1] - base].decode("ascii") for n in range(start, end)
        ]

    def close(self) -> None:
        """Forget all."""
        if self._file is not None:
            self._file.close()
        self._file, self._ends = None, array("Q", [0])


def clip_texts(value: Any, limit: int) -> Any:
    """`value` with each long text cut, saying so."""
    if isinstance(value, str):
        return value if len(value) <= limit else f"{value[:limit]} [... {len(value) - limit} more characters]"
    if isinstance(value, dict):
        return {key: clip_texts(item, limit) for key, item in value.items()}
    if isinstance(value, list):
        return [clip_texts(item, limit) for item in value]
    return value
