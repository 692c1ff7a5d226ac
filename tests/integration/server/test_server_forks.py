"""Checkpoints, restores and forks of a sandbox that a Jupyter server keeps: the history is on the client's side."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from jupyter_process import STUB, JupyterProcess
from pytest_jupyter.jupyter_server import *  # noqa: F403 - fixtures, for this module alone
from served import Served
from support import run, until

from llm_sandbox_nb.agent.checks import Check, ResultCheck
from llm_sandbox_nb.agent.inputs import check_inputs
from llm_sandbox_nb.agent.prompts import load_prompts
from llm_sandbox_nb.agent.recorder import Recorder
from llm_sandbox_nb.agent.run_record import RunRecord
from llm_sandbox_nb.notebook.server_client.address import ServerAddress
from llm_sandbox_nb.notebook.server_client.keeper import ServerKeeper
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.errors import PolicyError
from llm_sandbox_nb.sandbox.options import SandboxOptions
from llm_sandbox_nb.trajectory import events as ev

pytestmark = [pytest.mark.bubblewrap, pytest.mark.usefixtures("bubblewrap_engine")]


def keeper_of(server: JupyterProcess, kernel: str) -> ServerKeeper:
    return ServerKeeper(ServerAddress(server.url, server.token), kernel)


async def checked(box: Sandbox, folder: Path) -> ev.Checked:
    recorder = Recorder(folder)
    check = Check("grep -f mine.txt $WORKSPACE/f", check_inputs({"mine.txt": b"mine"}))
    return await ResultCheck(check, recorder, RunRecord(folder, recorder.trajectory), load_prompts(None)).run(
        box, None
    )


def test_forks_live_beside_their_sandbox_and_end_with_the_kernel(
    server: JupyterProcess, tmp_path: Path
) -> None:
    async def body(keeper: ServerKeeper) -> None:
        box = await keeper.acquire(SandboxOptions("bubblewrap"))
        await box.keep_history(tmp_path / "history")
        await box.run("echo one > f; export WHO=me; mkdir d; cd d")
        one = await box.checkpoint()
        await box.run("echo two > ../f; unset WHO; cd /; echo more > /tmp/more")
        two = await box.checkpoint()
        assert one != two
        assert {change.path for change in (await box.changes(one, two)).files} == {"/testbed/f", "/tmp/more"}
        fork = await box.fork(one, history=tmp_path / "fork")
        assert fork.id != box.id
        assert (await fork.run("cat ../f; echo $WHO; pwd; ls /tmp/more")).stdout == b"one\nme\n/testbed/d\n"
        assert (await box.run("cat testbed/f")).stdout == b"two\n"
        told = server.sandboxes()
        assert [one["fork_of"] for one in told] == [None, told[0]["id"]]
        await fork.run("echo forked > ../f")
        assert (await box.restore(one)).problems == ()
        assert await box.read_file("f") == b"one\n"
        assert await box.read_file("f", at=two) == b"two\n"
        assert await fork.read_file("f") == b"forked\n"
        again = await keeper.acquire(SandboxOptions("bubblewrap"))
        assert again.id == box.id
        await fork.close()
        assert len(server.sandboxes()) == 1
        await box.fork(two)
        assert len(server.sandboxes()) == 2
        await box.run("echo mine > /testbed/f")
        found = await checked(box, tmp_path / "run")
        assert (found.verdict.outcome, found.verdict.protected, found.output) == ("passed", True, "mine")
        assert len(server.sandboxes()) == 2, "the sandbox of the check has ended"
        await keeper.close()

    kernel = server.start_kernel(STUB)
    run(body(keeper_of(server, kernel)), timeout=120)
    server.ask(f"api/kernels/{kernel}", "DELETE")
    until(lambda: server.sandboxes() == [])


@pytest.fixture
def jp_server_config() -> dict[str, Any]:
    return {
        "ServerApp": {"jpserver_extensions": {"llm_sandbox_nb": True}},
        "SandboxManager": {"max_sandboxes": 1},
    }


def test_a_site_has_the_last_word_on_forks(served: Served, tmp_path: Path) -> None:
    """As many sandboxes as the site allows; the refusal costs nothing and says what to do."""

    async def body(keeper: ServerKeeper) -> None:
        box = await keeper.acquire(SandboxOptions("bubblewrap"))
        await box.run("echo mine > f")
        checkpoint = await box.checkpoint()
        with pytest.raises(PolicyError, match="as many as its site allows"):
            await box.fork(checkpoint)
        assert await box.read_file("f") == b"mine\n"
        verdict = (await checked(box, tmp_path / "run")).verdict
        assert (verdict.outcome, "as many as its site allows" in verdict.summary) == ("error", True)
        assert len(served.manager.in_use()) == 1
        await keeper.close()

    app = served.app
    address = ServerAddress(app.connection_url, app.identity_provider.token)
    served.run(asyncio.wait_for(body(ServerKeeper(address, served.kernel())), 120))


def test_a_broken_connection_costs_no_checkpoint(server: JupyterProcess, kernel: str) -> None:
    """The connection is made again, and the whole is told once more."""

    async def body(keeper: ServerKeeper) -> None:
        box = await keeper.acquire(SandboxOptions("bubblewrap"))
        await box.run("head -c 3000000 /dev/urandom > big")
        before = await box.checkpoint()
        size = box.history.size
        link = await box.connect()  # type: ignore[attr-defined]
        link.channel.fail("the test has cut it")
        assert await box.checkpoint() == before
        await box.run("echo other > big")
        link = await box.connect()  # type: ignore[attr-defined]
        link.channel.fail("the test has cut it")
        restored = await box.restore(before)
        assert restored.problems == ()
        assert len(await box.read_file("big")) == 3_000_000
        assert box.history.size < size + 1000
        await keeper.close()

    run(body(keeper_of(server, kernel)), timeout=120)
