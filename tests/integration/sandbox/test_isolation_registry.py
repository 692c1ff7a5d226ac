"""A new isolation needs one row in the registry and one module: everything else reads these."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

import pytest
from support import module_at, run

from llm_sandbox_nb.cli import ENDED_WELL
from llm_sandbox_nb.cli.setup_commands import doctor_command
from llm_sandbox_nb.sandbox import process
from llm_sandbox_nb.sandbox.client import ChannelSandbox
from llm_sandbox_nb.sandbox.contract import ResourceUsage, Sandbox
from llm_sandbox_nb.sandbox.isolations import ISOLATIONS, Isolation
from llm_sandbox_nb.sandbox.open import open_sandbox, resource_usage
from llm_sandbox_nb.sandbox.options import SandboxOptions
from llm_sandbox_nb.server import policy

NAME = "jail"


@pytest.fixture(autouse=True)
def jail(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """An isolation that is isolation `process` under another name, and takes images."""
    module = ModuleType("fake_jail")
    problems: list[str] = []

    async def start(options: SandboxOptions, *, labels: Mapping[str, str] | None = None) -> ChannelSandbox:
        box = await process.start(options)
        object.__setattr__(box.protection, "isolation", NAME)
        box.history.scope = ISOLATIONS[NAME].checkpoints
        return box

    async def why_unavailable(image: str | None) -> str:
        return problems[0] if problems else ""

    def usage(sandbox: Sandbox) -> ResourceUsage:
        return ResourceUsage(7, 8)

    def remove_leftovers() -> None:
        problems[:] = [problem for problem in problems if problem != "left over"]

    vars(module).update(
        start=start,
        why_unavailable=why_unavailable,
        resource_usage=usage,
        remove_leftovers=remove_leftovers,
        problems=problems,
    )
    monkeypatch.setitem(sys.modules, module.__name__, module)
    row = Isolation(
        NAME, module.__name__, "build a jail", "It covers everything.", takes_images=True, own_root=True
    )
    others = dict(ISOLATIONS)
    ISOLATIONS.clear()
    ISOLATIONS.update({NAME: row, **others})
    yield module
    ISOLATIONS.clear()
    ISOLATIONS.update(others)


@pytest.mark.parametrize("asked", [NAME, "auto"])
def test_it_is_opened_measured_and_forked(asked: str) -> None:
    async def body() -> None:
        async with open_sandbox(asked) as box:
            assert (await box.run("echo hello")).text == "hello\n"
            assert box.protection.isolation == NAME
            assert box.history.scope == "It covers everything."
            assert await resource_usage(box) == ResourceUsage(7, 8)
            await box.write_file("kept", b"content")
            async with await box.fork(await box.checkpoint()) as fork:
                assert fork.protection.isolation == NAME
                assert await fork.read_file("kept") == b"content"

    run(body())


def test_options_know_its_name_and_its_limits() -> None:
    assert SandboxOptions(NAME, image="any").image == "any"
    with pytest.raises(ValueError, match=r"Unknown isolation 'jial' \(did you mean 'jail'\?\)"):
        SandboxOptions("jial")


def test_doctor_knows_it(jail: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    jail.problems.append("left over")  # what a killed owner has left is removed first
    assert doctor_command(argparse.Namespace()) == ENDED_WELL
    shown = capsys.readouterr().out
    assert "jail        works\n" in shown
    assert "runs here use jail." in shown
    jail.problems.append("there is no jail")
    doctor_command(argparse.Namespace())
    shown = capsys.readouterr().out
    assert "jail        does not work here: there is no jail" in shown
    assert "what to do: build a jail" in shown


def test_a_policy_knows_it() -> None:
    """Settings are declared when a server loads them, so they are loaded once more here."""
    site = module_at(Path(policy.__file__), "policy_of_a_new_server").SandboxPolicy()
    assert NAME in site.allowed_isolations
    assert site.resolve(site.read_request({"isolation": NAME, "image": "any"})).isolation == NAME
