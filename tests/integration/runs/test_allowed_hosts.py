"""Runs with the network `allow`: their connections are events, a person allows hosts, and no record allows any."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from agent_scripts import SUBMIT, bash, outputs, script, turn
from network_attacks import SECRET, SECRETS, Outside
from secret_search import in_folder, in_processes
from support import require, run

from llm_sandbox_nb.agent.errors import InputError
from llm_sandbox_nb.card.card import Card
from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.runs.solve import solve
from llm_sandbox_nb.sandbox.network import attach
from llm_sandbox_nb.trajectory import events as ev

pytestmark = pytest.mark.bubblewrap
USED = 'curl -sSi -H "X-Key: $API_TOKEN" https://api.example/'


def test_connections_are_recorded_and_a_person_allows_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole way: refused, held, allowed once and for the run, said to the model; the secret in no file of it."""
    require("bubblewrap")
    monkeypatch.setenv("API_TOKEN", SECRET)
    before = in_processes(SECRET)
    held: list[Any] = []

    def decide(one: Run) -> str | None:
        waiting = one.control.held
        if waiting is None or waiting.at != "observation":
            return "continue"
        held.append(waiting.hosts)
        one.control.change(**({"allow_once": waiting.hosts} if len(held) == 1 else {"allow": waiting.hosts}))
        return "continue"

    async def whole() -> Run:
        async with Outside() as outside:
            monkeypatch.setattr(attach, "Internet", lambda *_: outside)
            get = bash("curl -sS http://later.example/")
            return await solve(
                "Fetch a page.",
                model=script(tmp_path, turn(bash(USED), get), turn(get, get), turn(get, get), SUBMIT),
                isolation="bubblewrap",
                network="allow",
                allow=["allowed.example"],
                secrets=SECRETS,
                approve="ask",
                on_pause=decide,
                output_dir=tmp_path / "runs",
            )

    done = run(whole())
    assert held == [("later.example:80",), ("later.example:80",)]
    fetched = ["ECHO" in text for text in outputs(done)]
    assert fetched == [
        True,
        False,
        True,
        False,
        True,
        True,
        False,
    ]  # allowed once, refused again, then for the run
    lines = [one.line for one in done.connections]
    assert lines[0].startswith("api.example:443 · ")
    assert lines[0].endswith(" · with API_TOKEN")
    assert lines[1] == "refused: later.example:80, it is not in the list"
    assert [one.decision for one in done.connections[2:]] == ["allowed", "refused", "allowed", "allowed"]
    assert [step.number for step in done.trajectory.steps for _ in step.connections] == [1, 1, 2, 2, 3, 3]
    changes = [event.network for event in done.trajectory.changed]
    assert changes == [{"allow_once": ["later.example:80"]}, {"allow": ["later.example:80"]}]
    said = str(list(done.trajectory.messages()))
    assert "From now on the sandbox may also reach later.example:80 (one connection)." in said
    card = Card(folder=done.folder)
    for event in done.trajectory.events:
        card.add(event)
    assert "Network: api.example:443" in card.final()["text/plain"]
    (tmp_path / "card").write_text(str(card.final()) + str(card.live()))
    done.to_html(tmp_path / "exported.html")
    assert in_folder(tmp_path, SECRET) == []
    assert in_processes(SECRET) == before

    with pytest.raises(InputError, match="network='none' takes no list"):
        run(solve("x", model="scripted/strawberry", network="none", allow=["pypi"], isolation="bubblewrap"))
    loaded = Run.load(
        done.folder
    )  # of somebody else: its record may open no host, and name no secret of mine
    from llm_sandbox_nb.runs.recorded_spec import sandbox_options

    options = sandbox_options(loaded, {})
    assert options["network"] == "allow"
    assert not {"allow", "secrets"} & set(options)
    assert isinstance(loaded.connections[0], ev.ConnectionMade)


def test_a_network_that_ends_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require("bubblewrap")

    async def whole() -> Run:
        async with Outside() as outside:
            monkeypatch.setattr(attach, "Internet", lambda *_: outside)

            async def end(one: Run) -> str:
                assert one.context.box is not None
                assert one.context.box.network is not None
                await one.context.box.network.close()
                return "continue"

            return await solve(
                "Fetch a page.",
                model=script(tmp_path, turn(bash("true"), bash("curl -sS http://allowed.example/")), SUBMIT),
                isolation="bubblewrap",
                network="allow",
                allow="allowed.example",
                breakpoints="'curl' in command",
                on_pause=end,
                output_dir=tmp_path / "runs",
            )

    done = run(whole())
    assert "ECHO" not in outputs(done)[1]
    assert done.connections[-1].line == "nothing was let through any more: it was closed"
