"""Warm kernels: a kernel that has served one test is made as new for the next, so that few are started."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager
from nbclient.exceptions import CellExecutionError
from support import KEPT_PIDS, PATIENCE

ROOT = Path(__file__).parents[1]

_RENEW = """
def _renew(folder, environment):
    import atexit, os, sys
    first = sys.__dict__.setdefault("_first_environment", dict(os.environ))
    started_with = {line.partition("=")[0] for line in open("/proc/self/environ").read().split("\\0")}
    set_here = {name: value for name, value in first.items() if name not in started_with}
    shell = get_ipython()
    magics = shell.magics_manager
    old = magics.registry.pop("SandboxMagics", None)
    if old is not None:
        if old._sandboxes._keeper is not None:
            old._background.run(old._sandboxes.stop(), timeout=120)
        old._close()
        atexit.unregister(old._close)
        shell.configurables.remove(old)
        for kind in ("line", "cell"):
            magics.magics[kind].pop("sandbox")
    shell.config.pop("SandboxMagics", None)
    shell.extension_manager.loaded.discard("llm_sandbox_nb")
    os.environ.clear()
    os.environ.update(first if environment is None else {**set_here, **environment})
    if folder is not None:
        os.chdir(folder)
    shell.reset(new_session=True)
_renew(FOLDER, ENVIRONMENT)
"""
"""Ends the notebook's sandbox, unloads the extension, and forgets settings, variables and history; modules stay."""


def kernel_environment(tmp_path: Path, **more: str) -> dict[str, str]:
    """What a kernel gets: this package, nothing of the user's own configuration."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "IPYTHONDIR": str(tmp_path / "ipython"), **more}
    for name in ("JPY_SESSION_NAME", "JPY_PARENT_PID", "LLM_SANDBOX_SERVER_URL"):
        environment.pop(name, None)
    return environment


def renew(
    client: BlockingKernelClient, folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> None:
    """Make a kernel as new, in this folder and with this environment; without them it has those of its start."""
    code = _RENEW.replace("FOLDER", repr(folder and str(folder)))
    code = code.replace("ENVIRONMENT", repr(environment and dict(environment)))
    reply: dict[str, Any] = client.execute_interactive(
        code,
        silent=True,
        store_history=False,
        allow_stdin=False,
        timeout=PATIENCE,
        output_hook=lambda _: None,
    )
    assert reply["content"]["status"] == "ok", reply["content"]


_idle: list[KernelManager] = []


@contextmanager
def warm_kernel(
    folder: Path, environment: Mapping[str, str], *, keep: bool = True
) -> Iterator[KernelManager]:
    """A kernel in `folder`, as new. It is kept for later tests unless this one fails or says `keep=False`."""
    manager = _idle.pop() if _idle else _started(folder, environment)
    healthy = False
    try:
        with connected(manager) as client:
            renew(client, folder, environment)
        yield manager
        healthy = True
    except CellExecutionError:
        healthy = True
        raise
    finally:
        if healthy and keep and manager.is_alive():
            _idle.append(manager)
        else:
            _end(manager)


@contextmanager
def connected(manager: KernelManager) -> Iterator[BlockingKernelClient]:
    client = BlockingKernelClient(parent=manager, **manager.get_connection_info(session=True))
    client.start_channels()
    try:
        client.wait_for_ready(timeout=PATIENCE)
        yield client
    finally:
        client.stop_channels()


def _started(folder: Path, environment: Mapping[str, str]) -> KernelManager:
    manager = KernelManager(
        kernel_name="python3", client_class="jupyter_client.asynchronous.AsyncKernelClient"
    )
    manager.start_kernel(cwd=str(folder), env=dict(environment))
    KEPT_PIDS.add(manager.provisioner.pid)
    return manager


def _end(manager: KernelManager) -> None:
    if manager.has_kernel:
        manager.shutdown_kernel()
    manager.cleanup_resources()


@atexit.register
def _end_all() -> None:
    while _idle:
        _end(_idle.pop())
