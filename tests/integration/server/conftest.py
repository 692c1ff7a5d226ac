"""Jupyter server that all tests of the folder share, with kernels that are as new; or a server in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from jupyter_process import JupyterProcess, jupyter
from served import Served
from support import KEPT_PIDS

SHARED_OPTIONS = (
    "--SandboxManager.watch_interval=0.2",
    "--RunRegistry.away_grace=0.5",
    "--RunRegistry.unknown_grace=20",
    "--SandboxPolicy.allow_mcp_runs=True",
    "--SandboxPolicy.mcp_run_models=scripted/str*",
)


@contextmanager
def _kept(folder: Any, *options: str) -> Iterator[JupyterProcess]:
    with jupyter(folder, *options) as running:
        assert running.process is not None
        KEPT_PIDS.add(running.process.pid)
        yield running


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JupyterProcess]:
    with _kept(tmp_path_factory.mktemp("shared"), *SHARED_OPTIONS) as running:
        yield running


@pytest.fixture(scope="module")
def module_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[JupyterProcess]:
    with _kept(tmp_path_factory.mktemp("jupyter"), *request.module.OPTIONS) as running:
        yield running


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[JupyterProcess]:
    """The server of the folder; in a module with `OPTIONS`, one that was started with these."""
    name = "module_server" if hasattr(request.module, "OPTIONS") else "shared_server"
    running: JupyterProcess = request.getfixturevalue(name)
    assert running.process is not None
    if running.process.poll() is not None:  # a test has killed it
        running.start()
        KEPT_PIDS.add(running.process.pid)
    yield running
    if running.process.poll() is None:
        running.clear()


@pytest.fixture
def kernel(server: JupyterProcess) -> Iterator[str]:
    with server.warm_kernel() as kernel_id:
        yield kernel_id


@pytest.fixture
def served(
    jp_serverapp: Any, jp_fetch: Any, jp_ws_fetch: Any, jp_asyncio_loop: asyncio.AbstractEventLoop
) -> Served:
    return Served(jp_serverapp, jp_fetch, jp_ws_fetch, jp_asyncio_loop)
