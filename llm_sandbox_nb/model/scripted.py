"""Scripted model, whose replies are the turns of a YAML script. No request is sent, and LiteLLM is not imported.

    chunk: 12              # characters of one streamed piece (default 24)
    delay: 0.02            # seconds before each further piece (default 0)
    turns:
      - reasoning: Counting by eye goes wrong.
        text: I count the letters with a program.
        calls:
          - tool: execute_bash
            arguments: {command: "echo strawberry | tr -cd r | wc -c"}
      - error: {kind: rate_limit, retry_after: 1, times: 2}      # fails twice, then the same turn is played
        text: There are 3.
        calls: [{tool: submit, arguments: {}}]

A turn has `text`, `reasoning`, `calls` (`tool` with `arguments`, or with `raw_arguments` for text that is not JSON),
`usage` (`prompt_tokens` and `completion_tokens`), `delay` (seconds before its first piece) and `error`. Without
`usage`, four characters count as one token. After N assistant messages in the history, turn N + 1 is played, so forks
and replays of a conversation work. Commands start in the working directory in every isolation, so scripts name files
by relative paths.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import httpx
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from llm_sandbox_nb.errors import LLMSandboxError
from llm_sandbox_nb.formatting import plural
from llm_sandbox_nb.model.contract import DeltaCallback, ModelError, ModelSettings, Reply
from llm_sandbox_nb.model.errors import Target, to_model_error
from llm_sandbox_nb.model.known_history import KnownHistories
from llm_sandbox_nb.model.request import assistant_message
from llm_sandbox_nb.model.stream import Assembly
from llm_sandbox_nb.own_folder import expanded
from llm_sandbox_nb.trajectory.events import Usage

SCRIPTS = Path(__file__).with_name("scripts")
"""Folder of the packaged scripts: `scripted/strawberry` plays `strawberry.yaml`."""

ErrorKind = Literal[
    "authentication", "not_found", "rate_limit", "quota", "context", "bad_request", "server", "timeout"
]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ScriptCall(_Part):
    """Tool call of a turn. If the script gives no `id`, the id is made from the numbers of turn and call."""

    tool: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    raw_arguments: str | None = None
    id: str | None = None

    @property
    def text(self) -> str:
        """Arguments as the model writes them."""
        return json.dumps(self.arguments) if self.raw_arguments is None else self.raw_arguments


class ScriptUsage(_Part):
    """Token counts that the turn reports."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class ScriptError(_Part):
    """Failure in place of the turn. `times` is the number of requests that fail. If `times` is None, all fail."""

    kind: ErrorKind = "server"
    message: str = "The script says that this request fails."
    retry_after: float | None = None
    times: int | None = None

    @property
    def status(self) -> int:
        """HTTP status of the failure."""
        return _STATUS[self.kind]


_STATUS: dict[str, int] = {
    "authentication": 401, "not_found": 404, "rate_limit": 429, "quota": 429, "context": 400,
    "bad_request": 400, "server": 500, "timeout": 408,
}  # fmt: skip


class ScriptTurn(_Part):
    """Reply of the assistant."""

    text: str = ""
    reasoning: str = ""
    calls: list[ScriptCall] = Field(default_factory=list)
    usage: ScriptUsage | None = None
    delay: float = 0.0
    error: ScriptError | None = None

    def usage_for(self, characters: int) -> ScriptUsage:
        """Return the token counts in the script, or an estimate with four characters per token.

        `characters` is the number of characters in the prompt.
        """
        if self.usage is not None:
            return self.usage
        reply = self.reasoning + self.text + "".join(call.tool + call.text for call in self.calls)
        return ScriptUsage(
            prompt_tokens=_tokens(characters),
            completion_tokens=_tokens(len(reply)),
            reasoning_tokens=_tokens(len(self.reasoning)),
        )


class Script(_Part):
    """Script with the turns of the assistant, and with the size and delay of streamed pieces."""

    turns: list[ScriptTurn]
    chunk: int = Field(default=24, ge=1)
    delay: float = Field(default=0.0, ge=0)

    def turn(self, number: int) -> ScriptTurn:
        """Return the turn after `number` replies. A last turn that calls `submit` is repeated for all further requests.

        Raises:
            ModelError: if the script has no such turn.
        """
        if number >= len(self.turns):
            if self.turns and any(call.tool == "submit" for call in self.turns[-1].calls):
                return self.turns[-1]
            raise ModelError(
                f"The script ends after {plural(len(self.turns), 'turn')}, but the conversation needs turn "
                f"{number + 1}: let its last turn call submit, or add turns.",
                kind="script",
            )
        return self.turns[number]

    def pieces(self, text: str) -> Iterator[str]:
        """Split a text into streamed pieces."""
        return (text[start : start + self.chunk] for start in range(0, len(text), self.chunk))


class Player:
    """Player of a script. It counts how often each turn has failed."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self._failed: Counter[int] = Counter()

    def next_turn(self, number: int) -> tuple[ScriptTurn, ScriptError | None]:
        """Return the turn after `number` replies, and the error that replaces this turn, or None for no error.

        Raises:
            ModelError: if the script has ended.
        """
        turn = self.script.turn(number)
        if turn.error is None or (turn.error.times is not None and self._failed[number] >= turn.error.times):
            return turn, None
        self._failed[number] += 1
        return turn, turn.error


def call_id(turn: int, index: int, call: ScriptCall) -> str:
    """Return the id of a call: from the script, or made from the numbers of turn and call."""
    return f"call_{turn + 1}_{index + 1}" if call.id is None else call.id


def parse_script(text: str, origin: str = "the script") -> Script:
    """Parse a script from YAML.

    Raises:
        ModelError: if the text is not YAML, or not a script. The message names the place of the problem.
    """
    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ModelError(
            f"{origin} is not valid YAML: {' '.join(str(error).split())}.", kind="script"
        ) from error
    try:
        return Script.model_validate(content or {})
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(str(part) for part in problem["loc"]) or "top level"
        reason = f"{place}: {problem['msg'][:1].lower()}{problem['msg'][1:]}"
        raise ModelError(f"{origin} is not a script of turns: {reason}.", kind="script") from error


def load_script(name: str) -> Script:
    """Load a packaged script, or the script in a YAML file.

    Raises:
        ModelError: if the script does not exist or is invalid.
    """
    path = find_script(name)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ModelError(f"The script {path} is not UTF-8 text: save it as UTF-8.", kind="script") from error
    except OSError as error:
        raise ModelError(
            f"The script {path} cannot be read: {error.strerror or error}.", kind="script"
        ) from error
    return parse_script(text, f"The script {path}")


def find_script(name: str) -> Path:
    """Return the path of the script `name`.

    Raises:
        ModelError: if there is no such script. The message lists the packaged scripts.
    """
    is_path = "/" in name or "\\" in name or name.endswith((".yaml", ".yml"))
    path = expanded(name) if is_path else SCRIPTS / f"{name}.yaml"
    if path.is_file():
        return path
    packaged = ", ".join(sorted(script.stem for script in SCRIPTS.glob("*.yaml")))
    raise ModelError(
        f"There is no script {name!r}: use scripted/NAME with one of {packaged}, or scripted/PATH.yaml.",
        kind="not_found",
    )


def _tokens(characters: int) -> int:
    return -(-characters // 4)


class ScriptedModel:
    """Model that plays a script, piece by piece, with the delays and errors of the script."""

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
        """Return the turn that follows `messages` as a reply. Of the settings, only the timeout has an effect.

        Raises:
            ContextOverflowError: if the turn has an error of the kind `context`.
            ModelError: if the turn has another error, or the script has ended.
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
        """Stream the pieces of a turn. Pieces of calls are not streamed, but have the same delay."""
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
        yield "", ""  # the call's name
        yield from (("", "") for _ in script.pieces(call.text))


class _ServerError(LLMSandboxError):
    """Error in a script, in the form of a server's error answer."""

    def __init__(self, error: ScriptError) -> None:
        super().__init__(error.message)
        headers = {} if error.retry_after is None else {"retry-after": f"{error.retry_after:g}"}
        self.response = httpx.Response(error.status, headers=headers)
