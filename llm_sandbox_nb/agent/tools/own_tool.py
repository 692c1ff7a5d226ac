"""User-defined tools, which are Python functions that the model can call. They run in this process, not in the
sandbox."""

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
from llm_sandbox_nb.agent.run_options import DEFAULT_OPTIONS, RunOptions
from llm_sandbox_nb.agent.tools.arguments import ArgumentsError, check_required, converted
from llm_sandbox_nb.agent.tools.execute_bash import bound
from llm_sandbox_nb.agent.tools.tool import Outcome, Tool, ToolContext
from llm_sandbox_nb.daemon_threads import in_daemon_thread
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.errors import SandboxLostError

_TOOL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
"""Matches tool names that every provider accepts."""
_EXAMPLE = 'as in `def lookup(word: str) -> str` with the docstring "Look up a word"'


class _Schema(GenerateJsonSchema):
    """Generator of JSON schemas without titles, because the titles of arguments only repeat their names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


class OwnTool(Tool):
    """Function as a tool. The model reads the function's name, docstring and annotations.

    `Annotated[str, "the meaning"]` describes an argument. A parameter with the annotation `Sandbox` is hidden from the
    model, and receives the run's sandbox. A function that is not a coroutine function is called in a thread.
    """

    in_sandbox = False
    outside = True

    def __init__(self, function: Callable[..., Any]) -> None:
        """Create the tool. Raises InputError if the function cannot be a tool, for example without a docstring."""
        self.function = function
        self.name = _checked_name(function)
        self.description = _docstring(function, self.name)
        hints = _hints(function, self.name)
        parameters = _parameters(function, self.name)
        self._box = next((name for name in parameters if hints.get(name) is Sandbox), None)
        if self._box and not inspect.iscoroutinefunction(function):
            raise InputError(
                f"{self.name} uses the sandbox, so it must be a coroutine function: write `async def`."
            )
        shown = [parameter for name, parameter in parameters.items() if name != self._box]
        if untyped := [parameter.name for parameter in shown if parameter.name not in hints]:
            raise InputError(f"The parameter {untyped[0]} of {self.name} has no type: add one, {_EXAMPLE}.")
        self.required = tuple(parameter.name for parameter in shown if parameter.default is parameter.empty)
        types = {parameter.name: _described(hints[parameter.name]) for parameter in shown}
        fields = {name: hint if name in self.required else NotRequired[hint] for name, hint in types.items()}
        try:
            self._arguments: TypeAdapter[dict[str, Any]] = TypeAdapter(TypedDict(self.name, fields))  # type: ignore[operator]
            self._schema = self._arguments.json_schema(schema_generator=_Schema)
        except PydanticUserError as error:
            raise InputError(
                f"A model cannot write the arguments of {self.name}: {' '.join(error.message.split())}"[:300]
            ) from error

    def properties(self, options: RunOptions) -> dict[str, dict[str, Any]]:
        return dict(self._schema.get("properties", {}))

    def parameters(self, options: RunOptions) -> dict[str, Any]:
        """Return the schema like `Tool.parameters`, with the definitions to which the arguments refer."""
        definitions = {"$defs": self._schema["$defs"]} if "$defs" in self._schema else {}
        return super().parameters(options) | definitions

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Check like `Tool.check`, but accept null as the value of a required argument."""
        properties = self.properties(DEFAULT_OPTIONS)
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
        """Call the function. If the function raises an exception, the model reads the exception as the result."""
        values = dict(self._arguments.validate_python(dict(arguments)))
        if self._box:
            values[self._box] = context.box
        longest = context.options.call_seconds(context.time_left)
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
        except (Exception, SystemExit, asyncio.CancelledError) as error:  # the user's own code
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling()):
                raise  # the run was stopped, and not only a task that the function awaits
            late = f"it took longer than {longest:g} seconds" if timer.expired() else None
            return Outcome(
                bounded(f"Error: {late or f'{type(error).__name__}: {error}'}"), error="tool_failed"
            )
        return Outcome(bounded(text) or "(no output)")


class RecordedTool(Tool):
    """User-defined tool from a record. Its calls can be read and edited, but not executed."""

    in_sandbox = False

    def __init__(self, function: Mapping[str, Any]) -> None:
        """Create the tool. `function` is the tool's schema in the record."""
        self.name, self.description = str(function.get("name")), str(function.get("description", ""))
        parameters = function.get("parameters")
        schema = parameters if isinstance(parameters, Mapping) else {}
        properties, required = schema.get("properties"), schema.get("required")
        self._properties = properties if isinstance(properties, Mapping) else {}
        self.required = [str(name) for name in required] if isinstance(required, list | tuple) else []

    def properties(self, options: RunOptions) -> dict[str, dict[str, Any]]:
        return dict(self._properties)

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Check like `Tool.check`, but ignore types. A resumed run has the tool's function and checks the types."""
        known = {name: arguments[name] for name in self._properties if name in arguments}
        check_required(self.name, self.required, known, arguments)
        return known

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> Outcome:
        """Raise InputError, because the function of the tool is not in the record."""
        raise InputError(missing_tools([self.name]))


def missing_tools(names: list[str]) -> str:
    """Return the error message for a run that cannot continue without user-defined tools."""
    which = "the tool" if len(names) == 1 else "the tools"
    listed = ", ".join(names)
    return (
        f"This run had {which} {listed} of your own: give the same functions again, as in tools=[{listed}]."
    )


def bounded(text: str) -> str:
    """Clean and cut a text like the output of a command."""
    return bound(text.encode("utf-8", "replace"), "ask for less")[0]


def _checked_name(function: object) -> str:
    name = getattr(function, "__name__", "")
    if not inspect.isroutine(function) or not _TOOL_NAME.fullmatch(name):
        raise InputError(
            f"A tool of your own is a function with a name, {_EXAMPLE}; it cannot be {function!r:.80}."
        )
    return name


def _docstring(function: Callable[..., Any], name: str) -> str:
    text = inspect.getdoc(function) or ""
    if not text.strip():
        raise InputError(
            f"{name} has no docstring, so the model cannot know what the tool does: add a docstring, {_EXAMPLE}."
        )
    return text


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise InputError(f"A type of {name} cannot be read ({error}): import or define it first.") from error


def _parameters(function: Callable[..., Any], name: str) -> dict[str, inspect.Parameter]:
    parameters = dict(inspect.signature(function).parameters)
    for parameter in parameters.values():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise InputError(
                f"{name} has the parameter {parameter.replace(annotation=parameter.empty)}, and a model gives each "
                "argument by its name: leave this parameter out."
            )
    return parameters


def _described(hint: Any) -> Any:
    """Use the text in an annotation such as `Annotated[str, "a word"]` as the description of the argument."""
    if get_origin(hint) is not Annotated:
        return hint
    texts = [text for text in get_args(hint)[1:] if isinstance(text, str)]
    return Annotated[hint, Field(description=texts[0])] if texts else hint
