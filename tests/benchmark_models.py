"""Models for tests of the benchmark: what they say is a function of what they are asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from talking_replies import with_calls

from llm_sandbox_nb.model.contract import DeltaCallback, ModelError, ModelSettings, Reply, ToolCall
from llm_sandbox_nb.trajectory.events import Usage

Speaker = Callable[[list[dict[str, Any]]], Reply]


class FunctionModel:
    """Answers with what a function makes of the messages; `delay` seconds later, or once `meet` are asked at once."""

    scripted = True

    def __init__(
        self, speak: Speaker, name: str = "test/function", delay: float = 0.0, meet: int = 0
    ) -> None:
        self.name, self.speak, self.delay, self.meet = name, speak, delay, meet
        self._met = asyncio.Event()
        self.asked: list[list[dict[str, Any]]] = []
        self.now = self.most = 0

    async def reply(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]],
        settings: ModelSettings,
        on_delta: DeltaCallback | None = None,
    ) -> Reply:
        self.asked.append(messages)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            if self.now >= self.meet:
                self._met.set()
            await self._met.wait()
            await asyncio.sleep(self.delay)
            return self.speak(messages)
        finally:
            self.now -= 1


def says(text: str, prompt: int = 10, completion: int = 5, cost: float | None = 0.01) -> Reply:
    usage = Usage(prompt_tokens=prompt, completion_tokens=completion, cost=cost)
    return Reply({"role": "assistant", "content": text}, text, usage=usage, finish_reason="stop")


def calls(tool: str, arguments: str, prompt: int = 10, completion: int = 5, number: int = 0) -> Reply:
    """A reply with one tool call; `arguments` is JSON."""
    usage = Usage(prompt_tokens=prompt, completion_tokens=completion, cost=0.01)
    call = ToolCall(f"call_{number}", tool, arguments)
    return with_calls(call, usage=usage, finish_reason="tool_calls")


def fails(kind: str, retryable: bool = False) -> Reply:
    raise ModelError(f"The model fails with {kind}.", kind=kind, retryable=retryable)


def turn_of(messages: list[dict[str, Any]]) -> int:
    return sum(message["role"] == "assistant" for message in messages)
