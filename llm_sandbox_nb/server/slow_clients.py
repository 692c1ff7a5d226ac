"""How long a client may take to send a body, or to take an answer: a connection that hardly moves is closed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import Any

from tornado.iostream import StreamClosedError

PATIENCE = 60.0
"""Seconds that any client has."""
SLOWEST = 64 * 1024
"""Bytes in a second that it must manage beyond that."""


def seconds_for(size: int) -> float:
    """The longest that so many bytes may take."""
    return PATIENCE + size / SLOWEST


async def until_taken(written: Awaitable[Any], size: int) -> bool:
    """Wait until a client has taken what was written to it; False when it was too slow."""
    waiting = asyncio.ensure_future(written)
    with contextlib.suppress(StreamClosedError):
        await asyncio.wait({waiting}, timeout=seconds_for(size))
        if not waiting.done():
            waiting.add_done_callback(lambda late: late.cancelled() or late.exception())
            return False
        waiting.result()
    return True
