"""The model server of the measurement: that of `local/NAME`, a child of this process, or one that runs already."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from llm_sandbox_nb.model.contract import ModelError
from llm_sandbox_nb.model.local.gguf import read_header
from llm_sandbox_nb.model.local.server import serve
from llm_sandbox_nb.model.local.source import PREFIX, find_source, missing_extra
from llm_sandbox_nb.model.local.store import Stop


@dataclass(frozen=True)
class Server:
    """A server that answers."""

    model: str
    """The model's name in tables."""
    url: str
    key: str = "none"
    process: int | None = None
    """Its process; None for one that somebody else has started."""
    sha256: str = ""
    threads: int | None = None


@contextmanager
def served(name: str) -> Iterator[Server]:
    """The server of `local/NAME` or of a GGUF file, fetched where it is not there yet.

    Raises:
        ModelError: something is missing, and the message says how to get it.
    """
    source, stop = find_source(name.removeprefix(PREFIX)), Stop()
    source.check()
    if problem := missing_extra():
        raise ModelError(problem, kind="setup")
    file = source.fetch(stop)
    server = serve(file, name, read_header(file), stop)
    with file.open("rb") as data:
        sha256 = hashlib.file_digest(data, "sha256").hexdigest()
    try:
        url = f"{server.address.rstrip('/')}/v1"
        yield Server(file.stem, url, server.key, server.process_id, sha256, server.plan.threads)
    finally:
        server.close()
