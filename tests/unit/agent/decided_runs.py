"""Runs of a loop without a sandbox, with decisions at their halts."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_scripts import check_messages
from memory_sandbox import MemorySandbox, spec_of, workspace_of
from support import run
from talking_replies import with_calls

from llm_sandbox_nb.agent.control.decisions import Held
from llm_sandbox_nb.agent.control.pause_rules import PauseRules, pause_rules
from llm_sandbox_nb.agent.control.run_control import RunControl
from llm_sandbox_nb.agent.control.settings_change import Changer
from llm_sandbox_nb.agent.errors import StopRun
from llm_sandbox_nb.agent.loop import Loop
from llm_sandbox_nb.agent.recorder import Recorder
from llm_sandbox_nb.agent.run_limits import Meter, RunLimits
from llm_sandbox_nb.model.contract import DeltaCallback, ModelError, ModelSettings, Reply, ToolCall
from llm_sandbox_nb.sandbox.contract import CommandResult
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.journal import read_journal
from llm_sandbox_nb.trajectory.trajectory import Trajectory

Turn = list[tuple[str, str]]
Decide = Callable[[RunControl, Held], None]


class EchoSandbox(MemorySandbox):
    """Runs nothing, and says what it was asked to run."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: list[str] = []
        self.timeouts: list[float | None] = []

    async def run(self, command: str, **options: Any) -> CommandResult:
        self.ran.append(command)
        self.timeouts.append(options["timeout"])
        return CommandResult(len(command) % 2, f"ran {command}".encode("utf-8", "replace"), b"")


class Player:
    """Replies with these calls, turn by turn, then with submit; keeps what it was shown."""

    scripted = True

    def __init__(self, turns: list[Turn], name: str = "player") -> None:
        self.name = name
        self.turns = turns
        self.requests: list[str] = []
        self.asked: list[ModelSettings] = []

    async def reply(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]],
        settings: ModelSettings,
        on_delta: DeltaCallback | None = None,
    ) -> Reply:
        self.requests.append(json.dumps(messages))
        self.asked.append(settings)
        step = len(self.requests)
        wanted = self.turns[step - 1] if step <= len(self.turns) else [("submit", "{}")]
        calls = tuple(ToolCall(f"{self.name}{step}.{i}", name, raw) for i, (name, raw) in enumerate(wanted))
        return with_calls(*calls, text="x")


@dataclass
class Played:
    """What came of a run."""

    loop: Loop
    box: EchoSandbox
    player: Player
    reason: str
    events: list[ev.Event]
    held: list[Held] = field(default_factory=list)

    @property
    def observations(self) -> list[str]:
        return [
            message["content"] for message in self.loop.conversation.messages if message["role"] == "tool"
        ]


def play(
    folder: Path, turns: list[Turn], decide: Decide, rules: PauseRules | None = None, **options: Any
) -> Played:
    """Play the turns; `decide` is called at every halt at a call. Options: see `_play`."""
    return run(_play(folder, turns, decide, rules or PauseRules(), **options))


async def _play(
    folder: Path,
    turns: list[Turn],
    decide: Decide,
    rules: PauseRules,
    *,
    limits: RunLimits | None = None,
    others: dict[str, Player] | None = None,
    on_event: Callable[[RunControl, ev.Event], None] = lambda control, event: None,
    clock: Callable[[], float] = time.monotonic,
    command_timeout: float = 60.0,
) -> Played:
    """`others` are models to change to; `on_event` is called at every event; `clock` is that of the limits."""
    box, player, control = EchoSandbox(), Player(turns), RunControl(clock)
    held: list[Held] = []

    def listen(event: ev.Event) -> None:
        on_event(control, event)
        if isinstance(event, ev.CallHeld):
            now = control.held
            assert now is not None
            held.append(now)
            decide(control, now)

    recorder = Recorder(folder, [listen])
    meter, workspace = (
        Meter(limits or RunLimits(steps=20), clock),
        workspace_of(box, recorder, command_timeout),
    )
    loop = Loop(spec_of(player, pause_rules=rules), recorder, meter, workspace, control)

    def make(name: str) -> Player:
        if others is None or name not in others:
            raise ModelError(f"There is no model {name}.", kind="not_found")
        return others[name]

    control.stepping = rules.step
    loop.start([{"role": "system", "content": "s"}, {"role": "user", "content": "u"}])
    control.begin(recorder.emit, Changer(loop, make))
    reason = "interrupted"
    try:
        await control.interruptible(loop.run())
    except StopRun as stop:
        reason = stop.reason
    except asyncio.CancelledError:
        assert control.stopped
    control.close()
    loop.close_open_calls()
    recorder.close()
    played = Played(loop, box, player, reason, list(read_journal(folder)), held)
    check(played)
    return played


def check(played: Played) -> None:
    loaded = Trajectory(played.events)
    messages = list(loaded.messages())
    check_messages(messages)
    assert json.dumps(messages) == json.dumps(played.loop.conversation.messages)
    for seen in played.player.requests:
        assert json.dumps(messages)[: len(seen) - 1] == seen[:-1], (
            "what the model saw is in the record, byte for byte"
        )
    halts = [event for event in played.events if isinstance(event, ev.CallHeld)]
    decisions = [event for event in played.events if isinstance(event, ev.CallDecided)]
    assert len(halts) - len(decisions) in ((0, 1) if played.reason == "interrupted" else (0,))
    for halt, decision in zip(halts, decisions, strict=False):
        assert (halt.call_id, halt.step) == (decision.call_id, decision.step)
        assert decision.source == "test"
    proposed = {event.call_id for event in played.events if isinstance(event, ev.CallProposed)}
    finished = [event.call_id for event in played.events if isinstance(event, ev.CallFinished)]
    assert sorted(finished) == sorted(proposed)
    assert not loaded.held
    assert not loaded.paused


def bash(command: str) -> tuple[str, str]:
    return "execute_bash", json.dumps({"command": command})


STEP = pause_rules(step=True)
SUBMIT = ("submit", "{}")


def one_by_one(*decisions: Callable[[RunControl], None]) -> Decide:
    """Each halt gets the next decision; after the last one, the run goes on."""
    left = list(decisions)

    def decide(control: RunControl, held: Held) -> None:
        (left.pop(0) if left else (lambda control: control.resume(source="test")))(control)

    return decide


def resume(control: RunControl) -> None:
    control.resume(source="test")


def step(control: RunControl) -> None:
    control.step(source="test")
