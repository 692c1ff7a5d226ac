"""`doctor`: an isolation works when a sandbox with the defaults opens in it; front ends that are too old are named."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from types import ModuleType

import pytest

from llm_sandbox_nb.cli import SANDBOX_ERROR
from llm_sandbox_nb.cli.setup_commands import doctor_command, old_front_ends
from llm_sandbox_nb.sandbox.client import ChannelSandbox
from llm_sandbox_nb.sandbox.errors import IsolationUnavailableError
from llm_sandbox_nb.sandbox.isolations import ISOLATIONS, Isolation
from llm_sandbox_nb.sandbox.options import SandboxOptions

REFUSED = "The network could not be made: it lets sandboxes reach each other."


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[SandboxOptions]]:
    """The only isolation answers, but opens no sandbox; gives what was asked of it."""
    asked: list[SandboxOptions] = []
    module = ModuleType("answers_only")

    async def why_unavailable(image: str | None) -> str:
        return ""

    async def start(options: SandboxOptions, *, labels: Mapping[str, str] | None = None) -> ChannelSandbox:
        asked.append(options)
        raise IsolationUnavailableError(REFUSED)

    vars(module).update(start=start, why_unavailable=why_unavailable, remove_leftovers=list)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    others = dict(ISOLATIONS)
    ISOLATIONS.clear()
    ISOLATIONS["answers"] = Isolation("answers", module.__name__, "mend the network", "")
    yield asked
    ISOLATIONS.clear()
    ISOLATIONS.update(others)


def test_an_engine_that_answers_but_opens_no_sandbox_does_not_work(
    asked: list[SandboxOptions], capsys: pytest.CaptureFixture[str]
) -> None:
    assert doctor_command(argparse.Namespace()) == SANDBOX_ERROR
    shown = capsys.readouterr()
    assert f"answers     does not work here: {REFUSED.rstrip('.')}\n" in shown.out
    assert "what to do: mend the network" in shown.out
    assert "No isolation works here" in shown.err
    assert [(one.network, one.profile, one.image) for one in asked] == [(None, "standard", None)]


@pytest.mark.parametrize(
    ("installed", "old"),
    [
        ({"jupyterlab": "4.3.6", "notebook": "7.4.0"}, ["JupyterLab 4.3.6"]),
        ({"jupyterlab": "4.4.0a1", "notebook": "6.5.7"}, ["Notebook 6.5.7"]),
        ({"jupyterlab": "4.10.0", "notebook": "10.0"}, []),
        ({"jupyterlab": "3"}, ["JupyterLab 3"]),
        ({}, []),
    ],
    ids=str,
)
def test_front_ends_that_are_too_old_are_named(
    installed: dict[str, str], old: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(metadata, "version", version)
    assert [sentence.partition(" is too old")[0] for sentence in old_front_ends()] == old
