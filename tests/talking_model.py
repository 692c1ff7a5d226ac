"""A model without a provider: each reply appends a line to a file, so that files tell which calls were executed."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from talking_replies import with_calls

from llm_sandbox_nb.model.contract import DeltaCallback, ModelSettings, Reply, ToolCall
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.trajectory import Trajectory


class TalkingModel:
    """Appends `turn N` to log.txt in its Nth reply, then submits."""

    scripted = True

    def __init__(
        self, turns: int, delay: float = 0.0, command: str = "echo turn {number} >> log.txt"
    ) -> None:
        self.name = "talking"
        self._turns = turns
        self._delay = delay
        self._command = command

    async def reply(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]],
        settings: ModelSettings,
        on_delta: DeltaCallback | None = None,
    ) -> Reply:
        await asyncio.sleep(self._delay)
        number = sum(message["role"] == "assistant" for message in messages) + 1
        command = self._command.replace("{number}", str(number))
        call = ToolCall(f"call{number}", "execute_bash", json.dumps({"command": command}))
        if number > self._turns:
            call = ToolCall(f"call{number}", "submit", "{}")
        return with_calls(call)


def lines_by_talk(run: Trajectory) -> list[str]:
    """What log.txt has to hold where talk and files agree: a line of each call that was executed up to there."""
    lines = []
    for event in run.path:
        if isinstance(event, ev.CallStarted) and event.tool == "execute_bash":
            lines.append(str(event.arguments["command"]).removeprefix("echo ").removesuffix(" >> log.txt"))
        if event.id == run.uncovered:
            break
    return lines
