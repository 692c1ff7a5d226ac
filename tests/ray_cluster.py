"""A Ray cluster of two nodes on this machine, small, and each node with a temporary folder of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_process import free_port
from support import QUICK_IMPORTS

ROOT = Path(__file__).parents[1]
_PORTS = (
    "metrics_agent_port",
    "metrics_export_port",
    "dashboard_agent_listen_port",
    "runtime_env_agent_port",
)
_STORE = 80_000_000
_STARTS = 3


def ray_environment() -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": f"{QUICK_IMPORTS}:{ROOT}",
        "RAY_USAGE_STATS_ENABLED": "0",
        "LLM_NAME": "",
    }


@dataclass(frozen=True)
class RayCluster:
    """`address` is for `--ray`; the nodes' temporary folders tell which node did what."""

    address: str
    folders: tuple[Path, Path]
    cluster: Any

    @contextmanager
    def node_to_die(self, folder: Path) -> Iterator[Callable[[], None]]:
        node = _add_node(self.cluster, folder)
        gone = False

        def die() -> None:
            nonlocal gone
            gone = True
            self.cluster.remove_node(node, allow_graceful=False)

        try:
            yield die
        finally:
            if not gone:
                die()

    def hosts(self, folder: Path) -> list[int]:
        return [
            pid
            for pid, words, mark in _processes()
            if words.startswith(("ray::Host", "ray::RolloutHost")) and str(folder) in mark
        ]

    def left(self) -> list[str]:
        """What a benchmark has left: actors, and files in the temporary folders."""
        actors = [str(pid) for folder in self.folders for pid in self.hosts(folder)]
        return actors + [str(path) for folder in self.folders for path in folder.iterdir()]

    def wait_until_clean(self, seconds: float = 60) -> None:
        """Wait until nothing is left; fail when something stays."""
        deadline = time.monotonic() + seconds
        while left := self.left():
            assert time.monotonic() < deadline, left
            time.sleep(0.2)


def _processes() -> Iterator[tuple[int, str, str]]:
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().decode("utf-8", "replace")
            yield int(entry.name), words, (entry / "environ").read_bytes().decode("utf-8", "replace")
        except OSError:
            continue


@contextmanager
def ray_cluster(folder: Path) -> Iterator[RayCluster]:
    """Two nodes, each with a folder below `folder`."""
    from ray.cluster_utils import Cluster

    folders = (folder / "a", folder / "b")
    kept = dict(os.environ)
    os.environ.update(ray_environment())
    cluster = Cluster(shutdown_at_exit=True)
    try:
        for one in folders:
            one.mkdir()
            _add_node(cluster, one)
        yield RayCluster(cluster.address, folders, cluster)
    finally:
        os.environ.clear()
        os.environ.update(kept)
        cluster.shutdown()


def _add_node(cluster: Any, folder: Path) -> Any:
    """Ray gives a node half a minute to start, which a busy machine may need more than once."""
    for left in reversed(range(_STARTS)):
        try:
            return cluster.add_node(
                num_cpus=1, include_dashboard=False, object_store_memory=_STORE,
                env_vars={"TMPDIR": str(folder)}, **{port: free_port() for port in _PORTS},
            )  # fmt: skip
        except Exception:
            if not left:
                raise
    return None
