"""A model server is asked directly: a request takes half of LiteLLM's CPU at most, so the first reply comes soon."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from best_of import best_of

from llm_sandbox_nb.agent.tools.toolbox import TOOLS
from llm_sandbox_nb.model.contract import ModelSettings
from llm_sandbox_nb.model.litellm_transport import LiteLLMTransport
from llm_sandbox_nb.model.model_names import make_model
from llm_sandbox_nb.model.remote_model import RemoteModel

REQUESTS = 200
SETTINGS = ModelSettings(temperature=0.7, max_tokens=1000)
MESSAGES = [{"role": "system", "content": "You work."}, {"role": "user", "content": "Look."}]
CALL = '{tool: execute_bash, arguments: {command: "ls -la && cat README.md"}}'
SCRIPT = f"""
chunk: 16
turns:
  - text: I look at the files of this folder first, and read the text that describes it.
    calls: [{CALL}]
  - {{text: Done., calls: [{{tool: submit}}]}}
"""
_FIRST_STEP = """
import asyncio, sys, time
import llm_sandbox_nb
start = time.process_time()
replied = []
def listen(event):
    if event.kind == "model.replied" and not replied:
        replied.append(time.process_time() - start)
asyncio.run(llm_sandbox_nb.solve("Look.", model="my-model", api_base=sys.argv[1], api_key="key", isolation="process",
                                 output_dir=sys.argv[2], listeners=[listen]))
assert "litellm" not in sys.modules
print(replied[0])
"""


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Address of a server in a process of its own, whose CPU does not count."""
    script = tmp_path / "script.yaml"
    script.write_text(SCRIPT)
    tests = Path(__file__).parents[1]
    command = [sys.executable, str(tests / "scripted_server.py"), str(script)]
    environment = os.environ | {"PYTHONPATH": f"{tests}:{tests.parent}"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.kill()


def milliseconds_of_a_request(model: RemoteModel) -> float:
    async def ask() -> float:
        await model.reply(MESSAGES, TOOLS.schemas(), SETTINGS)
        begun = time.process_time()
        for _ in range(REQUESTS):
            reply = await model.reply(MESSAGES, TOOLS.schemas(), SETTINGS)
            assert reply.calls
        return time.process_time() - begun

    return asyncio.run(ask()) / REQUESTS * 1000


def test_a_request_takes_half_of_the_cpu_that_litellm_takes(
    address: str, measured: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In turns in one process, against one server."""

    def both() -> tuple[float, float]:
        made = make_model("my-model", api_base=address, api_key="key")
        assert isinstance(made, RemoteModel)
        direct = milliseconds_of_a_request(made)
        with monkeypatch.context() as patch:
            patch.setattr(RemoteModel, "_direct_route", lambda *_: None)
            assert isinstance(asyncio.run(made._transport()), LiteLLMTransport)
            return direct, milliseconds_of_a_request(made)

    direct, litellm = best_of(3, both, bar=0.5, by=lambda pair: pair[0] / pair[1])
    note = f"{direct:.1f} against {litellm:.1f} ms; {REQUESTS} requests, one process, in turns"
    measured("a request's CPU, direct / LiteLLM", direct / litellm, "x", bar="at most 0.5 x", note=note)
    assert direct / litellm <= 0.5


def test_the_first_reply_of_a_run_needs_a_second_and_a_half_of_cpu(
    address: str, measured: Callable[..., None], tmp_path: Path
) -> None:
    """From the call of `solve` in a fresh interpreter, with its imports and the sandbox's start."""

    def once() -> float:
        command = [sys.executable, "-c", _FIRST_STEP, address, str(tmp_path)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
        return float(done.stdout.split()[-1])

    seconds = best_of(3, once, bar=1.5)
    note = "from the call of solve in a fresh interpreter, isolation process"
    measured("first reply of a model server, CPU", seconds, "s", bar="at most 1.5 s", note=note)
    assert seconds <= 1.5
