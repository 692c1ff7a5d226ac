"""A new isolation that does not isolate: everything that tells of a run says so, whatever the isolation's name."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml
from card_runs import card_of, start_event, step_events
from pages import ROOT

from llm_sandbox_nb.agent.control.decisions import Held
from llm_sandbox_nb.agent.control.question import question
from llm_sandbox_nb.agent.session import protection_json
from llm_sandbox_nb.notebook.server_client.sandbox import _protection
from llm_sandbox_nb.sandbox.contract import Protection, Sandbox
from llm_sandbox_nb.sandbox.isolations import ISOLATIONS, Isolation, isolation_choices
from llm_sandbox_nb.sandbox.open import AdoptingImplementation, OwnedImplementation
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.protection import ISOLATION_WORDS, NOT_ISOLATED, is_isolated, protection_chip
from llm_sandbox_nb.trajectory.trajectory import Trajectory

HELD = Held(1, "c", "call", "approval", "", "execute_bash", {"command": "ls"})


def recorded(name: str) -> dict[str, Any]:
    """Protection that a run records for a sandbox of this isolation."""
    protection = Protection(name, "standard", "0", (), False, "none", "open", False, None, None, None)
    assert _protection(json.loads(json.dumps(asdict(protection)))) == protection, (
        "the server tells it to the kernel"
    )
    return protection_json(cast(Sandbox, SimpleNamespace(protection=protection)))


@pytest.mark.parametrize("isolates", [False, True])
def test_question_and_card_say_whether_an_isolation_isolates(
    isolates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ISOLATIONS, "bare", replace(ISOLATIONS["docker"], name="bare", isolates=isolates))
    protection = recorded("bare")
    monkeypatch.undo()  # as in a reader that does not know this isolation
    opened = ev.SandboxReady(sandbox_id="s", protection=protection, start_time=0.1)
    events = [start_event(), opened, ev.Checkpointed(checkpoint="a")]
    asked = question(HELD, Trajectory(events))
    assert ("Not isolated: it runs on this machine." in asked) == (not isolates)
    assert ("ou can rewind afterwards" in asked) == isolates
    assert protection_chip(protection) == (
        "bare, network: open" if isolates else "No isolation, network: open"
    )
    html = str(card_of([*events, *step_events(1)]).final()["text/html"])
    assert ("lsn-chip lsn-r" in html) == (not isolates)


@pytest.mark.parametrize("name", ISOLATIONS)
def test_records_without_the_field_are_read_as_before(name: str) -> None:
    protection = recorded(name)
    assert protection.pop("isolates") == is_isolated(protection) == ISOLATIONS[name].isolates


def test_names_for_people_and_settings_are_those_of_the_table() -> None:
    assert ISOLATIONS.keys() <= ISOLATION_WORDS.keys()
    assert all((ISOLATION_WORDS[row.name] != NOT_ISOLATED) == row.isolates for row in ISOLATIONS.values())
    schema = json.loads((ROOT / "labextension" / "schema" / "plugin.json").read_text("utf-8"))
    option = schema["properties"]["isolation"]
    assert option["enum"] == ["", *isolation_choices()]
    rest = yaml.safe_load((ROOT / "llm_sandbox_nb" / "server" / "rest-api.yml").read_text("utf-8"))
    assert rest["components"]["schemas"]["Request"]["properties"]["isolation"]["enum"] == [
        *isolation_choices()
    ]
    named = [name for name in ISOLATIONS if f"'{name}' protects nothing" in option["description"]]
    assert named == [row.name for row in ISOLATIONS.values() if not row.isolates]


@pytest.mark.parametrize("row", ISOLATIONS.values(), ids=ISOLATIONS)
def test_module_of_an_isolation_has_every_function(row: Isolation) -> None:
    protocol = AdoptingImplementation if row.survives_owner else OwnedImplementation
    module = import_module(row.implementation)
    names = [name for base in protocol.__mro__ for name in vars(base) if not name.startswith("_")]
    assert "start" in names
    assert [name for name in names if not callable(getattr(module, name, None))] == []
