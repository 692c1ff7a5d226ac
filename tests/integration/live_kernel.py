"""A kernel that a test talks to message by message, as a notebook does while a cell runs."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager
from support import PATIENCE
from warm_kernels import connected, kernel_environment, warm_kernel

from notebooks import LOAD

Message = dict[str, Any]


class LiveKernel:
    """Runs cells and keeps every message that a front end would see."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient) -> None:
        self.manager = manager
        self.client = client

    def start(self, code: str, *, console: bool = False) -> str:
        """Begin a cell; gives its id. `console`: as one that can be asked, and shows no updates of outputs."""
        return str(self.client.execute(code, allow_stdin=console))

    def messages(
        self, cell: str, *, until: Callable[[Message], bool] | None = None, timeout: float = PATIENCE
    ) -> list[Message]:
        seen: list[Message] = []
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            try:
                message = self.client.get_iopub_msg(timeout=left)
            except queue.Empty:
                break
            if message["parent_header"].get("msg_id") != cell:
                continue
            seen.append(message)
            if until and until(message):
                return seen
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                return seen
        kinds = [message["msg_type"] for message in seen[-20:]]
        raise AssertionError(f"nothing as asked came in {timeout} s; last seen: {kinds}")

    def run(self, code: str, timeout: float = PATIENCE) -> list[Message]:
        return self.messages(self.start(code), timeout=timeout)

    def printed(self, code: str) -> str:
        return "".join(m["content"]["text"] for m in self.run(code) if m["msg_type"] == "stream")


@contextmanager
def live_kernel(tmp_path: Path, *, keep: bool = True, **environment: str) -> Iterator[LiveKernel]:
    """A kernel in `tmp_path` with the extension loaded. `keep=False` for a test that ends it."""
    with (
        warm_kernel(tmp_path, kernel_environment(tmp_path, **environment), keep=keep) as manager,
        connected(manager) as client,
    ):
        kernel = LiveKernel(manager, client)
        kernel.run(LOAD)
        yield kernel


def cards_of(messages: list[Message]) -> list[Message]:
    return [m for m in messages if m["msg_type"] in ("display_data", "update_display_data")]
