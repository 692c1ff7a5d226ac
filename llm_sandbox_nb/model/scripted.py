"""The scripted model: replies are the turns of a script. No request is sent, and LiteLLM is not imported."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx

from llm_sandbox_nb.model.contract import DeltaCallback, ModelSettings, Reply
from llm_sandbox_nb.model.errors import Target, to_model_error
from llm_sandbox_nb.model.known_history import KnownHistories
from llm_sandbox_nb.model.request import assistant_message
from llm_sandbox_nb.model.script import Player, Script, ScriptError, ScriptTurn, call_id
from llm_sandbox_nb.model.stream import Assembly
from llm_sandbox_nb.trajectory.events import Usage


class ScriptedModel:
    """Plays a script, see `model/script.py`: piece by piece, with the delays and the errors that the script says."""

    scripted = True

    def __init__(self, name: str, script: Script) -> None:
        self.name = name
        self._player = Player(script)
        self._histories = KnownHistories()

    async def reply(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]],
        settings: ModelSettings,
        on_delta: DeltaCallback | None = None,
    ) -> Reply:
        """The turn that follows `messages`. Of the settings only the timeout counts.

        Raises:
            ContextOverflowError: the script says that it does not fit.
            ModelError: the script says so, or it has ended.
        """
        history = self._histories.read(messages)
        turn, error = self._player.next_turn(history.replies)
        if error:
            raise to_model_error(_ServerError(error), self._target)
        timer = asyncio.timeout(settings.timeout)
        try:
            async with timer:
                await self._play(turn, on_delta)
        except TimeoutError as late:
            if not timer.expired():
                raise
            raise to_model_error(late, self._target) from late
        assembly = Assembly(text=turn.text, reasoning=turn.reasoning)
        for index, call in enumerate(turn.calls):
            assembly.add_whole_call(call_id(history.replies, index, call), call.tool, call.text)
        calls = assembly.calls(history.call_ids)
        return Reply(
            message=assistant_message(assembly, calls, "none"),
            text=turn.text,
            reasoning=turn.reasoning or None,
            calls=calls,
            usage=Usage(**turn.usage_for(history.characters).model_dump()),
            finish_reason="tool_calls" if calls else "stop",
        )

    @property
    def _target(self) -> Target:
        return Target(self.name, has_key=True)

    async def _play(self, turn: ScriptTurn, on_delta: DeltaCallback | None) -> None:
        """Tell the pieces of a turn. Those of its calls are not told, but take their time."""
        script = self._player.script
        await asyncio.sleep(turn.delay)
        for number, (text, reasoning) in enumerate(_pieces(script, turn)):
            if number:
                await asyncio.sleep(script.delay)
            if on_delta and (text or reasoning):
                on_delta(text, reasoning)


def _pieces(script: Script, turn: ScriptTurn) -> Iterator[tuple[str, str]]:
    yield from (("", piece) for piece in script.pieces(turn.reasoning))
    yield from ((piece, "") for piece in script.pieces(turn.text))
    for call in turn.calls:
        yield "", ""  # its name
        yield from (("", "") for _ in script.pieces(call.text))


class _ServerError(Exception):
    """An error of the script, in the form in which a server's own comes."""

    def __init__(self, error: ScriptError) -> None:
        super().__init__(error.message)
        headers = {} if error.retry_after is None else {"retry-after": f"{error.retry_after:g}"}
        self.response = httpx.Response(error.status, headers=headers)
