"""A user's own tool: a Python function that the model may call. It runs in the user's process, not in the sandbox."""

from __future__ import annotations

import asyncio
import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NotRequired, get_args, get_origin, get_type_hints

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import to_json
from typing_extensions import TypedDict

from llm_sandbox_nb.agent.errors import InputError
from llm_sandbox_nb.agent.tools.arguments import ArgumentsError, check_required, converted
from llm_sandbox_nb.agent.tools.execute_bash import bound
from llm_sandbox_nb.agent.tools.tool import Outcome, Tool, ToolContext
from llm_sandbox_nb.daemon_threads import in_daemon_thread
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.errors import SandboxLostError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
"""What every provider takes as the name of a tool."""
_EXAMPLE = 'as in `def lookup(word: str) -> str` with the docstring "Look up a word"'


class _Schema(GenerateJsonSchema):
    """Without a title for each argument, which only repeats its name."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


class OwnTool(Tool):
    """A function as a tool: its name, docstring and annotations are what the model reads.

    `Annotated[str, "what it means"]` describes an argument. A parameter with the annotation `Sandbox` is not shown to
    the model: it gets the run's sandbox. Other functions than coroutine functions are called in a thread.
    """

    in_sandbox = False

    def __init__(self, function: Callable[..., Any]) -> None:
        """Raises InputError when the function cannot be a tool: without a docstring or types, for example."""
        self.function = function
        self.name = _checked_name(function)
        self.description = _docstring(function, self.name)
        hints = _hints(function, self.name)
        parameters = _parameters(function, self.name)
        self._box = next((name for name in parameters if hints.get(name) is Sandbox), None)
        if self._box and not inspect.iscoroutinefunction(function):
            raise InputError(f"{self.name} takes the sandbox, so it has to wait for it: write `async def`.")
        shown = [one for name, one in parameters.items() if name != self._box]
        if untyped := [one.name for one in shown if one.name not in hints]:
            raise InputError(f"The parameter {untyped[0]} of {self.name} has no type: give one, {_EXAMPLE}.")
        self.required = tuple(one.name for one in shown if one.default is one.empty)
        fields = {
            one.name: hint if one.name in self.required else NotRequired[hint]
            for one, hint in ((one, _described(hints[one.name])) for one in shown)
        }
        try:
            self._arguments: TypeAdapter[dict[str, Any]] = TypeAdapter(TypedDict(self.name, fields))  # type: ignore[operator]
            self._schema = self._arguments.json_schema(schema_generator=_Schema)
        except PydanticUserError as error:
            raise InputError(
                f"A model cannot write the arguments of {self.name}: {' '.join(error.message.split())}"[:300]
            ) from error

    def properties(self, command_timeout: float) -> dict[str, dict[str, Any]]:
        """See `Tool.properties`."""
        return dict(self._schema.get("properties", {}))

    def parameters(self, command_timeout: float) -> dict[str, Any]:
        """See `Tool.parameters`; with the definitions that the arguments refer to."""
        definitions = {"$defs": self._schema["$defs"]} if "$defs" in self._schema else {}
        return super().parameters(command_timeout) | definitions

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """See `Tool.check`. Null for a required argument may be its value."""
        properties = self.properties(0)
        sent = {
            name: converted(arguments[name], properties[name]) for name in properties if name in arguments
        }
        known = {name: value for name, value in sent.items() if value is not None or name in self.required}
        check_required(self.name, self.required, known, arguments)
        try:
            self._arguments.validate_python(known)
        except ValidationError as error:
            problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
            place = ".".join(map(str, problem["loc"]))
            raise ArgumentsError(f"`{place:.80}`: {problem['msg']:.200}. Nothing was done.") from error
        return known

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> Outcome:
        """See `Tool.execute`. What the function raises is the result that the model reads."""
        values = dict(self._arguments.validate_python(dict(arguments)))
        if self._box:
            values[self._box] = context.box
        longest = min(context.command_timeout, context.time_left or context.command_timeout)
        timer = asyncio.timeout(longest)
        try:
            async with timer:
                if inspect.iscoroutinefunction(self.function):
                    value = await self.function(**values)
                else:
                    value = await in_daemon_thread(
                        functools.partial(self.function, **values), name="own-tool"
                    )
            text = value if isinstance(value, str) else to_json(value, fallback=str).decode()
        except SandboxLostError:
            raise
        except Exception as error:  # noqa: BLE001 - the user's own code
            late = f"it took longer than {longest:g} seconds" if timer.expired() else None
            return Outcome(
                _bounded(f"Error: {late or f'{type(error).__name__}: {error}'}"), error="tool_failed"
            )
        return Outcome(_bounded(text) or "(no output)")


class RecordedTool(Tool):
    """A user's own tool as a record describes it: its calls can be read and edited, and not executed."""

    in_sandbox = False

    def __init__(self, function: Mapping[str, Any]) -> None:
        """`function` is its schema, as the record has it."""
        self.name, self.description = str(function.get("name")), str(function.get("description", ""))
        parameters = function.get("parameters", {})
        self._properties, self.required = parameters.get("properties", {}), parameters.get("required", ())

    def properties(self, command_timeout: float) -> dict[str, dict[str, Any]]:
        """See `Tool.properties`."""
        return dict(self._properties)

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """See `Tool.check`. Types are not checked: the function does that when the run resumes."""
        known = {name: arguments[name] for name in self._properties if name in arguments}
        check_required(self.name, self.required, known, arguments)
        return known

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> Outcome:
        """See `Tool.execute`. Always raises InputError."""
        raise InputError(missing_tools([self.name]))


def missing_tools(names: list[str]) -> str:
    """What to do when a run cannot continue without tools of its own."""
    which = "the tool" if len(names) == 1 else "the tools"
    listed = ", ".join(names)
    return f"This run had {which} {listed} of your own: give the same again, as in tools=[{listed}]."


def _bounded(text: str) -> str:
    """As the output of a command: control characters shown, and the middle of a long text left out."""
    return bound(text.encode("utf-8", "replace"), "ask for less")[0]


def _checked_name(function: object) -> str:
    name = getattr(function, "__name__", "")
    if not inspect.isroutine(function) or not _NAME.fullmatch(name):
        raise InputError(
            f"A tool of your own is a function with a name, {_EXAMPLE}; it cannot be {function!r:.80}."
        )
    return name


def _docstring(function: Callable[..., Any], name: str) -> str:
    text = inspect.getdoc(function) or ""
    if not text.strip():
        raise InputError(
            f"{name} has no docstring, and the model reads it to know the tool: add one, {_EXAMPLE}."
        )
    return text


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise InputError(f"A type of {name} cannot be read ({error}): import or define it first.") from error


def _parameters(function: Callable[..., Any], name: str) -> dict[str, inspect.Parameter]:
    found = dict(inspect.signature(function).parameters)
    for one in found.values():
        if one.kind in (one.POSITIONAL_ONLY, one.VAR_POSITIONAL, one.VAR_KEYWORD):
            raise InputError(
                f"{name} takes {one.replace(annotation=one.empty)}, and a model gives each argument by its name: "
                "leave it out."
            )
    return found


def _described(hint: Any) -> Any:
    """A type with the text beside it, as in `Annotated[str, "a word"]`, as the description of the argument."""
    if get_origin(hint) is not Annotated:
        return hint
    texts = [one for one in get_args(hint)[1:] if isinstance(one, str)]
    return Annotated[hint, Field(description=texts[0])] if texts else hint
