"""What the way through the Jupyter server costs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from best_of import best_of
from jupyter_process import jupyter
from support import run

from llm_sandbox_nb.notebook.server_client.address import ServerAddress
from llm_sandbox_nb.notebook.server_client.keeper import ServerKeeper
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.open import open_sandbox
from llm_sandbox_nb.sandbox.options import SandboxOptions

ROUNDS = 200


@pytest.mark.docker
def test_a_round_trip_through_the_server(
    docker_engine: str, tmp_path: Path, measured: Callable[..., None]
) -> None:
    """Measured by turns with the same command in a sandbox that is spoken to directly, on the same engine."""
    with jupyter(tmp_path) as server:
        keeper = ServerKeeper(ServerAddress(server.url, server.token), server.start_kernel())

        async def go() -> tuple[list[float], list[float]]:
            through = await keeper.acquire(SandboxOptions("docker"))
            times: tuple[list[float], list[float]] = ([], [])
            async with open_sandbox("docker") as direct:
                for _ in range(ROUNDS):
                    for kept, box in zip(times, (direct, through), strict=True):
                        kept.append(await _timed(box))
            await keeper.stop()
            return times

        def once() -> tuple[float, float]:
            direct, through = (1000 * statistics.median(one) for one in run(go(), timeout=120))
            return direct, through

        direct, through = best_of(3, once, bar=3, by=lambda pair: pair[1] - pair[0])
    more = through - direct
    note = f"{through:.2f} ms against {direct:.2f} ms, p50"
    measured(
        "tool call through the server, Docker: more than direct", more, "ms", bar="at most 3 ms", note=note
    )
    assert more <= 3


async def _timed(box: Sandbox) -> float:
    begun = time.perf_counter()
    result = await box.run("true")
    assert result.exit_code == 0
    return time.perf_counter() - begun
