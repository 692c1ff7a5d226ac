"""The body of a request: bytes at hand, or pieces that come as they are made."""

from __future__ import annotations

from collections.abc import AsyncIterator

Body = bytes | AsyncIterator[bytes]


def with_head(head: bytes, body: Body | None) -> Body:
    """The body with something before it."""
    if body is None or isinstance(body, bytes):
        return head + (body or b"")
    return _joined(head, body)


async def _joined(head: bytes, body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield head
    async for piece in body:
        yield piece


async def pieces(body: Body) -> AsyncIterator[bytes]:
    """A body of either kind, piece by piece."""
    if isinstance(body, bytes):
        yield body
        return
    async for piece in body:
        yield piece
