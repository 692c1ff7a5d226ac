"""A run that somebody else made reaches no network, and no address that it names, unless a person names it too."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_scripts import SUBMIT, bash, script, turn

from llm_sandbox_nb import Run, solve
from llm_sandbox_nb.agent.errors import InputError
from llm_sandbox_nb.runs.recorded_spec import sandbox_options

WAYS: dict[str, Callable[..., Any]] = {
    "replay": lambda run, **options: run.replay(**options),
    "rebuild": lambda run, **options: run.rebuild(**options),
    "resume": lambda run, **options: run.resume("Once more.", **options),
    "fork": lambda run, **options: run.fork(0, **options).resume().close(),
}


class Listener:
    """A service on this machine's loopback; counts who connects."""

    def __init__(self) -> None:
        self.visits = 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.visits += 1
            connection.close()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener()
    yield made
    made.close()


@pytest.fixture
def received(bubblewrap_engine: str, listener: Listener, tmp_path: Path) -> Run:
    """A run in bubblewrap with an open network, whose commands, also those of its next turns, visit the loopback."""
    visit = bash(f"timeout 5 bash -c 'echo > /dev/tcp/127.0.0.1/{listener.port}'")
    model = script(tmp_path, *[turn(visit), SUBMIT] * 4)
    work = solve("A task.", model=model, isolation="bubblewrap", network="open", output_dir=tmp_path / "runs")
    run = asyncio.run(work)
    assert listener.visits == 1
    listener.visits = 0
    return Run.load(run.folder)


@pytest.mark.bubblewrap
@pytest.mark.parametrize("way", WAYS)
def test_the_record_alone_does_not_open_the_network(
    way: str, received: Run, listener: Listener, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match='network="open" if you trust its commands') as caught:
        WAYS[way](received)
    assert "\n" not in str(caught.value)
    assert listener.visits == 0
    assert len(list((tmp_path / "runs").iterdir())) == 1
    WAYS[way](Run.load(received.folder), network="none")
    assert listener.visits == 0
    WAYS[way](Run.load(received.folder), network="open")
    assert listener.visits > 0, "the canary: without the protection the commands visit this machine"


@pytest.mark.bubblewrap
def test_whoever_chose_an_open_network_is_not_asked(received: Run, listener: Listener) -> None:
    received.context.network_setting = "open"
    received.replay()
    assert listener.visits == 1


@pytest.mark.bubblewrap
@pytest.mark.parametrize(("named", "network"), [(None, "public"), ("open", "open"), ("none", "none")])
def test_an_open_network_of_a_container_becomes_the_public_one(
    named: str | None, network: str, received: Run
) -> None:
    """The default of containers is `public`: it is there without being named, and the record names no wider one."""
    assert received.trajectory.sandbox is not None
    received.trajectory.sandbox.protection["isolation"] = "docker"
    assert sandbox_options(received, {"network": named})["network"] == network


def recorded(folder: Path, **changed: Any) -> Run:
    model = script(folder, SUBMIT, SUBMIT)
    run = asyncio.run(solve("A task.", model=model, isolation="process", output_dir=folder / "runs"))
    lines = run.journal.read_text("utf-8").splitlines()
    first = json.loads(lines[0])
    first["settings"].setdefault("sampling", {}).update(changed.pop("sampling", {}))
    run.journal.write_text("\n".join([json.dumps(first | changed), *lines[1:]]) + "\n", "utf-8")
    return Run.load(run.folder)


@pytest.mark.engine
@pytest.mark.parametrize(
    "body",
    [
        {"api_base": "203.0.113.1"},
        {"extra": [{"server_url": "x"}]},
        {"tools": [{"type": "mcp", "where": "https://attacker.example"}]},
    ],
)
def test_what_a_record_adds_to_requests_does_not_send_them_elsewhere(
    body: dict[str, Any], tmp_path: Path
) -> None:
    run = recorded(tmp_path, sampling={"extra_body": body})
    with pytest.raises(InputError, match="may send the request elsewhere"):
        run.resume("More.", isolation="process")
    assert run.resume("More.", isolation="process", settings={"extra_body": body}).stop_reason == "submitted"


@pytest.mark.engine
def test_what_names_no_address_is_sent_as_before(tmp_path: Path) -> None:
    run = recorded(tmp_path, sampling={"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}})
    assert run.resume("More.", isolation="process").stop_reason == "submitted"


@pytest.mark.engine
def test_a_model_at_an_address_must_be_named(tmp_path: Path) -> None:
    run = recorded(tmp_path, model="huggingface/https://attacker.example/v1")
    with pytest.raises(InputError, match="names the address of the model"):
        run.resume("More.", isolation="process")
