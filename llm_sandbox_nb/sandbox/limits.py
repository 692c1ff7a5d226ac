"""Limits of a sandbox: time and output of a command, size of the history, memory and other resources.

`mcp_server/tools.py`, which must not import this package, repeats the time-out. Pages and the docstring of
`Checkpointing.keep_history` repeat the numbers too. Tests compare them. The limits of a run are in
`agent/run_limits.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_COMMAND_TIMEOUT = 120.0
"""Time limit of a command in seconds, unless the caller or the option `command_timeout` sets another limit."""
OUTPUT_LIMIT = 10 * 1024 * 1024
"""Maximum bytes of each output stream of a command. A longer stream is cut in the middle."""
HISTORY_LIMIT = 4 * 1024**3
"""Maximum bytes of a history on disk. If a history becomes larger, its oldest checkpoints are dropped."""


@dataclass(frozen=True)
class Limits:
    """Limits on the resources of a sandbox. None means no limit."""

    memory_bytes: int | None = 2 * 1024**3
    pids: int | None = 512
    cpus: float | None = 2.0
    disk_bytes: int | None = 10 * 1024**3
    """Maximum bytes of all files that commands make or change."""
    files: int | None = 250_000
    """Maximum number of files and folders that commands make or change."""

    @property
    def disk(self) -> list[int | None]:
        """`disk_bytes` and `files` as a list, for the greeting to the executor."""
        return [self.disk_bytes, self.files]
