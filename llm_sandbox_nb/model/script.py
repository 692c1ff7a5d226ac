"""Scripts: the assistant's turns of a conversation, written down in YAML, that a scripted model plays.

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

A turn has `text`, `reasoning`, `calls` (`tool` with `arguments`, or with `raw_arguments` when the text is not
to be JSON), `usage` (`prompt_tokens`, `completion_tokens`; else counted, four characters to a token), `delay`
(seconds before its first piece) and `error`. The turn that is played is the one whose number is the number of
assistant messages in the history, so forks and replays of a conversation work. Commands start in the working
directory whatever the isolation, so scripts name files by relative paths.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from llm_sandbox_nb.model.contract import ModelError

SCRIPTS = Path(__file__).with_name("scripts")
"""Folder of the packaged scripts: `scripted/strawberry` plays `strawberry.yaml`."""

ErrorKind = Literal[
    "authentication", "not_found", "rate_limit", "quota", "context", "bad_request", "server", "timeout"
]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ScriptCall(_Part):
    """A tool call. `id` is made from the turn when it is not given; an empty one is sent as it is."""

    tool: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    raw_arguments: str | None = None
    id: str | None = None

    @property
    def text(self) -> str:
        """The arguments as the model writes them."""
        return json.dumps(self.arguments) if self.raw_arguments is None else self.raw_arguments


class ScriptUsage(_Part):
    """What the turn is said to have cost in tokens."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class ScriptError(_Part):
    """A failure in place of the turn. `times`: how many requests of the turn fail; None: all of them."""

    kind: ErrorKind = "server"
    message: str = "The script says that this request fails."
    retry_after: float | None = None
    times: int | None = None

    @property
    def status(self) -> int:
        """The HTTP status such a failure has."""
        return _STATUS[self.kind]


_STATUS: dict[str, int] = {
    "authentication": 401, "not_found": 404, "rate_limit": 429, "quota": 429, "context": 400,
    "bad_request": 400, "server": 500, "timeout": 408,
}  # fmt: skip


class ScriptTurn(_Part):
    """One reply of the assistant."""

    text: str = ""
    reasoning: str = ""
    calls: list[ScriptCall] = Field(default_factory=list)
    usage: ScriptUsage | None = None
    delay: float = 0.0
    error: ScriptError | None = None

    def usage_for(self, characters: int) -> ScriptUsage:
        """The usage given, else four characters to a token; the prompt has so many characters."""
        if self.usage is not None:
            return self.usage
        said = self.reasoning + self.text + "".join(call.tool + call.text for call in self.calls)
        return ScriptUsage(
            prompt_tokens=_tokens(characters),
            completion_tokens=_tokens(len(said)),
            reasoning_tokens=_tokens(len(self.reasoning)),
        )


class Script(_Part):
    """All turns of the assistant, and how they are streamed."""

    turns: list[ScriptTurn]
    chunk: int = Field(default=24, ge=1)
    delay: float = Field(default=0.0, ge=0)

    def turn(self, number: int) -> ScriptTurn:
        """The turn that follows so many replies.

        Raises:
            ModelError: the script has no such turn.
        """
        if number >= len(self.turns):
            raise ModelError(
                f"The script ends after {len(self.turns)} turns and the conversation asks for turn "
                f"{number + 1}: let its last turn call submit, or add turns.",
                kind="script",
            )
        return self.turns[number]

    def pieces(self, text: str) -> Iterator[str]:
        """The text as it is streamed."""
        return (text[start : start + self.chunk] for start in range(0, len(text), self.chunk))


class Player:
    """Plays a script: knows which turn comes next, and how often each failing turn has failed."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self._failed: Counter[int] = Counter()

    def next_turn(self, number: int) -> tuple[ScriptTurn, ScriptError | None]:
        """The turn that follows `number` replies, and the error to raise in its place.

        Raises:
            ModelError: the script has ended.
        """
        turn = self.script.turn(number)
        if turn.error is None or (turn.error.times is not None and self._failed[number] >= turn.error.times):
            return turn, None
        self._failed[number] += 1
        return turn, turn.error


def call_id(turn: int, index: int, call: ScriptCall) -> str:
    """The id of a call: the script's own, or one made of its place."""
    return f"call_{turn + 1}_{index + 1}" if call.id is None else call.id


def parse_script(text: str, origin: str = "the script") -> Script:
    """A script from its YAML text.

    Raises:
        ModelError: it is not YAML or not a script; says where.
    """
    try:
        return Script.model_validate(yaml.safe_load(text) or {})
    except yaml.YAMLError as error:
        raise ModelError(
            f"{origin} is not valid YAML: {' '.join(str(error).split())}.", kind="script"
        ) from error
    except ValidationError as error:
        raise ModelError(
            f"{origin} is not a script of turns: {_first_problem(error)}.", kind="script"
        ) from error


def load_script(name: str) -> Script:
    """The script `name`: a packaged one, or the path of a YAML file.

    Raises:
        ModelError: there is no such script, or it is not one.
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
    """Where the script `name` is.

    Raises:
        ModelError: nowhere; names the packaged ones.
    """
    is_path = "/" in name or "\\" in name or name.endswith((".yaml", ".yml"))
    path = Path(name).expanduser() if is_path else SCRIPTS / f"{name}.yaml"
    if path.is_file():
        return path
    packaged = ", ".join(sorted(script.stem for script in SCRIPTS.glob("*.yaml")))
    raise ModelError(
        f"There is no script {name!r}: use scripted/NAME with one of {packaged}, or scripted/PATH.yaml.",
        kind="not_found",
    )


def _tokens(characters: int) -> int:
    return -(-characters // 4)


def _first_problem(error: ValidationError) -> str:
    problem = error.errors()[0]
    place = ".".join(str(part) for part in problem["loc"]) or "top level"
    return f"{place}: {problem['msg'][:1].lower()}{problem['msg'][1:]}"
