"""Options of a run that have a number or a word as their value.

A new option needs a row in `options.table` with `sets="NAME"`, a field in `RunOptions`, and code that uses it as
`spec.NAME` in the session, or as `context.options.NAME` in a tool. Command line, cells, settings files, help and
reference read the row. `solve`, the journal, a resume and a benchmark read the field.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from llm_sandbox_nb.agent.errors import InputError
from llm_sandbox_nb.options.table import option

ContextMode = Literal["full", "mask", "summary"]
"""Form of a long conversation. `full`: the conversation is complete. `mask`: one line replaces each old output.
`summary`: a summary replaces old steps."""
ToolCalls = Literal["auto", "native", "text"]
"""Form of calls. `auto` uses native calls, and text mode if native calls do not work."""
Nudges = int | Literal["all"]
"""Number of replies in a row without a call that the run answers with a nudge. `all` stands for every such reply."""
USUAL_NUDGES = 2
"""Default of `nudges`. The table does not contain this default, because a benchmark has another default."""
_ALWAYS_RECORDED = ("command_timeout", "context")
"""Options that are recorded even with their default values, because the first version of the journal had them."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of a run. Each field has the name and the type of an option in the table."""

    command_timeout: float = option("command_timeout").default
    """Default command timeout in seconds."""
    context: ContextMode = option("context").default
    """Form of a conversation that fills three quarters of the model's context."""
    tool_calls: ToolCalls = option("tool_calls").default
    """Form of calls: `native`, `text`, or `auto`."""
    same_failures: int = option("same_failures").default
    """Number of times in a row that the same call can fail before the run ends. 0 stands for no limit."""
    nudges: Nudges = USUAL_NUDGES
    """Number of replies in a row without a call that the run answers with a nudge; `all` for no limit."""

    def __post_init__(self) -> None:
        for name, value in self.by_name().items():
            _checked(name, value)

    def call_seconds(self, left: float | None) -> float:
        """Return the maximum seconds of a call. `left` is the remaining seconds of the run, or None without a limit."""
        return self.command_timeout if left is None else min(self.command_timeout, left)

    def by_name(self) -> dict[str, Any]:
        """Return the options as arguments of `solve`."""
        return {name: getattr(self, name) for name in OPTION_DEFAULTS}

    def recorded(self) -> dict[str, Any]:
        """Return the options for the journal. Options with their default are omitted, except `_ALWAYS_RECORDED`."""
        return {
            name: value
            for name, value in self.by_name().items()
            if name in _ALWAYS_RECORDED or value != OPTION_DEFAULTS[name]
        }


OPTION_DEFAULTS: Mapping[str, Any] = {field.name: field.default for field in dataclasses.fields(RunOptions)}
"""Defaults of the options, by name."""


def valid_options(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return the valid options in a record. Another person or another version may have written the record."""
    found = {}
    for name in OPTION_DEFAULTS.keys() & recorded.keys():
        try:
            found[name] = _checked(name, recorded[name])
        except InputError:
            continue
    return found


def _checked(name: str, value: Any) -> Any:
    if value is None and OPTION_DEFAULTS[name] is None:
        return None
    try:
        converted = option(name).convert(value)
    except ValueError as error:
        raise InputError(f"{name} {error}, not {value!r:.80}.") from error
    if converted != value:  # a text, such as "2m", that only the command line accepts
        raise InputError(f"{name} must be {converted!r:.80}, not {value!r:.80}.")
    return converted


DEFAULT_OPTIONS = RunOptions()
