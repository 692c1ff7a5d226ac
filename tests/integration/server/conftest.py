"""One Jupyter server for all tests of a module, and kernels of it that are as new; or a server in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from jupyter_process import JupyterProcess, jupyter
from served import Served
from support import KEPT_PIDS


@pytest.fixture(scope="module")
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[JupyterProcess]:
    """A server that is started with the `OPTIONS` of the module."""
    with jupyter(tmp_path_factory.mktemp("jupyter"), *getattr(request.module, "OPTIONS", ())) as running:
        assert running.process is not None
        KEPT_PIDS.add(running.process.pid)
        yield running


@pytest.fixture
def kernel(server: JupyterProcess) -> Iterator[str]:
    with server.warm_kernel() as kernel_id:
        yield kernel_id


@pytest.fixture
def served(
    jp_serverapp: Any, jp_fetch: Any, jp_ws_fetch: Any, jp_asyncio_loop: asyncio.AbstractEventLoop
) -> Served:
    return Served(jp_serverapp, jp_fetch, jp_ws_fetch, jp_asyncio_loop)
