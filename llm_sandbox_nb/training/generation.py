"""Sources of a policy's replies. A `BatchGenerator` samples replies for many rollouts at once."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class Generated:
    """Token ids of one reply. A complete reply ends with the end id. `logprobs` are the ids' log-probabilities."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None = None


class Generator(Protocol):
    """Source of replies."""

    async def generate(self, prompt: Sequence[int], limit: int, order: int = 0) -> Generated:
        """Return a reply of at most `limit` ids to `prompt`. `order` is the place of the request in its batch."""
        ...


BatchFunction = Callable[[list[list[int]], list[int]], list[Generated]]
"""Function that gets prompts and the maximum number of ids of each reply, and returns a `Generated` for each prompt."""


@dataclass
class _Request:
    order: int
    prompt: list[int]
    limit: int
    answer: asyncio.Future[Generated]
    loop: asyncio.AbstractEventLoop


@dataclass
class BatchGenerator:
    """Generator that collects the requests of rollouts. The thread in which `serve` runs answers them together.

    A batch is complete when every `active` rollout waits for a reply, or when the oldest request has waited for
    `patience` seconds. Thus one slow command does not stop the other rollouts. If all commands end within `patience`,
    each batch has the same rows in the same order, so equal seeds give equal samples.
    """

    patience: float = 30.0
    seconds: float = 0.0
    """Seconds spent in generation."""
    batches: int = 0
    _waiting: list[_Request] = field(default_factory=list)
    _active: int = 0
    _since: float = 0.0
    _closed: bool = False
    _changed: threading.Condition = field(default_factory=threading.Condition)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Count a rollout as active within the block, so that batches wait for its request."""
        with self._changed:
            self._active += 1
        try:
            yield
        finally:
            with self._changed:
                self._active -= 1
                self._changed.notify_all()

    async def generate(self, prompt: Sequence[int], limit: int, order: int = 0) -> Generated:
        loop = asyncio.get_running_loop()
        request = _Request(order, list(prompt), limit, loop.create_future(), loop)
        with self._changed:
            if not self._waiting:
                self._since = time.monotonic()
            self._waiting.append(request)
            self._changed.notify_all()
        try:
            return await request.answer
        finally:
            with self._changed:
                if request in self._waiting:
                    self._waiting.remove(request)
                    self._changed.notify_all()

    def close(self) -> None:
        """End `serve`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def serve(self, answer: BatchFunction) -> None:
        """Answer requests in this thread until `close` is called.

        An exception of `answer` is raised here and by each request of the batch.
        """
        while batch := self._next_batch():
            started = time.monotonic()
            try:
                made = answer([request.prompt for request in batch], [request.limit for request in batch])
            except BaseException as error:
                for request in batch:
                    request.loop.call_soon_threadsafe(_fail, request.answer, error)
                raise
            finally:
                self.seconds += time.monotonic() - started
                self.batches += 1
            for request, reply in zip(batch, made, strict=True):
                request.loop.call_soon_threadsafe(_fulfil, request.answer, reply)

    def _next_batch(self) -> list[_Request]:
        with self._changed:
            while not self._closed:
                late = self._since + self.patience - time.monotonic()
                if self._waiting and (len(self._waiting) >= self._active or late <= 0):
                    batch, self._waiting = sorted(self._waiting, key=lambda request: request.order), []
                    return batch
                self._changed.wait(max(0.01, late) if self._waiting else None)
            return []


def _fulfil(answer: asyncio.Future[Generated], reply: Generated) -> None:
    if not answer.done():
        answer.set_result(reply)


def _fail(answer: asyncio.Future[Generated], error: BaseException) -> None:
    if not answer.done():
        answer.set_exception(RuntimeError(f"Generation failed: {error}"))
