"""A model in Python that is no script: it gives these replies in order, the last one again and again."""

from __future__ import annotations

import json
from typing import Any

from llm_sandbox_nb.model.contract import DeltaCallback, ModelError, ModelSettings, Reply, ToolCall


def said(text: str = "", finish_reason: str | None = "stop", **more: Any) -> Reply:
    """A reply without a call."""
    return Reply({"role": "assistant", "content": text}, text, finish_reason=finish_reason, **more)


def called(number: int, name: str, text: str = "", **arguments: Any) -> Reply:
    call = ToolCall(f"c{number}", name, json.dumps(arguments))
    return with_calls(call, text=text, finish_reason="tool_calls")


def with_calls(*calls: ToolCall, text: str = "", **more: Any) -> Reply:
    """A reply with native calls, or with none. `more` are further fields of it."""
    written = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in calls
    ]
    message = {"role": "assistant", "content": text} | ({"tool_calls": written} if written else {})
    return Reply(message, text, calls=calls, **more)


class TalkingReplies:
    """See the module. `requests` has the messages of each request, `tools` and `settings` what came with them."""

    name = "talking"
    scripted = False

    def __init__(self, *replies: Reply | ModelError, takes_tools: bool = True) -> None:
        self.replies = replies
        self.takes_tools = takes_tools
        self.requests: list[list[dict[str, Any]]] = []
        self.tools: list[list[dict[str, Any]]] = []
        self.settings: list[ModelSettings] = []

    async def reply(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]],
        settings: ModelSettings,
        on_delta: DeltaCallback | None = None,
    ) -> Reply:
        """The next reply; a model that takes no tools refuses a request that has some."""
        if tools and not self.takes_tools:
            raise ModelError("This model does not support tools.", kind="tools")
        self.requests.append(json.loads(json.dumps(messages)))
        self.tools.append(tools)
        self.settings.append(settings)
        given = self.replies[min(len(self.requests), len(self.replies)) - 1]
        if isinstance(given, ModelError):
            raise given
        return given

    @property
    def newest(self) -> str:
        return str(self.requests[-1][-1]["content"])
