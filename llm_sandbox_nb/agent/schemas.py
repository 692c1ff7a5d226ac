"""What the model is told of its tools, and the check of what it sends against that."""

from __future__ import annotations

import json
from typing import Any, Final

from llm_sandbox_nb.trajectory.events import clean_text

EXECUTE_BASH: Final = "execute_bash"
STR_REPLACE_EDITOR: Final = "str_replace_editor"
SUBMIT: Final = "submit"

_BASH = """Run a command in the sandbox's bash and get its exit code, stdout and stderr.
* The shell lasts from call to call: directory, variables, functions and activated environments stay.
* stdin is empty, so nothing can be typed in; answer prompts with flags, pipes or here-documents.
* A command that takes too long is ended with all it started, and its output so far is kept. Start what is \
to go on running in the background, with its output sent to a file.
* Long output is cut in the middle; the whole is then in a file that the result names."""

_EDITOR = """View, create and edit text files, exact to the byte.
* `view`: a file with line numbers, whole or `view_range`; a directory two levels deep without hidden names.
* `create`: a new file with `file_text`. It never overwrites.
* `str_replace`: replace `old_str` by `new_str`. `old_str` has to be in the file exactly once, blanks and \
tabs included; take in lines around it until it is unique.
* `insert`: put `new_str` in as whole lines after line `insert_line`."""

_SUBMIT = (
    """End the task. Call it when the task is done and all results are saved; nothing can be done after it."""
)


def _tool(name: str, description: str, required: list[str], **properties: dict[str, Any]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": required}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


TOOLS: Final[list[dict[str, Any]]] = [
    _tool(
        EXECUTE_BASH,
        _BASH,
        ["command"],
        command={"type": "string", "description": "The command, of any length; several lines are fine."},
        timeout={"type": "number", "description": "Seconds after which it is ended. Default 120."},
    ),
    _tool(
        STR_REPLACE_EDITOR,
        _EDITOR,
        ["command", "path"],
        command={
            "type": "string",
            "enum": ["view", "create", "str_replace", "insert"],
            "description": "What to do.",
        },
        path={"type": "string", "description": "Full path of the file or directory, such as /testbed/a.py."},
        file_text={"type": "string", "description": "For `create`: the whole content."},
        old_str={"type": "string", "description": "For `str_replace`: the text to replace."},
        new_str={"type": "string", "description": "For `str_replace`: what replaces it, nothing if left out. "
                 "For `insert`: the lines to put in."},
        insert_line={"type": "integer", "description": "For `insert`: the line after which; 0 is the top."},
        view_range={
            "type": "array",
            "items": {"type": "integer"},
            "description": "For `view` of a file: [first_line, last_line], from 1; -1 as last is the end.",
        },
    ),
    _tool(SUBMIT, _SUBMIT, []),
]  # fmt: skip

_PARAMETERS: Final[dict[str, dict[str, Any]]] = {
    tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS
}
_ALSO_REQUIRED: Final = {
    "create": ["file_text"],
    "str_replace": ["old_str"],
    "insert": ["insert_line", "new_str"],
}
_SHOWN = 80
_LARGEST = 2**53


class ArgumentsError(Exception):
    """A call cannot be carried out as it was written. The message is for the model."""

    def __init__(self, message: str, kind: str = "bad_arguments") -> None:
        super().__init__(message)
        self.kind = kind


def parse_arguments(raw: str) -> dict[str, Any]:
    """The arguments of a call from their JSON text; none at all count as `{}`.

    Raises:
        ArgumentsError: it is not JSON, or not an object.
    """
    if not raw.strip():
        return {}
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ArgumentsError(
            f"The arguments are not valid JSON ({_json_reason(error)}). Nothing was done: send it again.",
            "malformed_json",
        ) from error
    if not isinstance(value, dict):
        raise ArgumentsError(
            f"The arguments have to be a JSON object, not {_name(value)}. Nothing was done.", "malformed_json"
        )
    cleaned: dict[str, Any] = clean_text(value)
    return cleaned


def check_arguments(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments that `tool` knows, of the right types; null counts as left out, others are ignored.

    Raises:
        ArgumentsError: the tool is unknown, an argument is missing or of a wrong type.
    """
    if tool not in _PARAMETERS:
        raise ArgumentsError(
            f"There is no tool {_quoted(tool)}: the tools are {', '.join(_PARAMETERS)}.", "unknown_tool"
        )
    schema = _PARAMETERS[tool]
    known = {key: arguments[key] for key in schema["properties"] if arguments.get(key) is not None}
    for key, value in known.items():
        _check_type(key, value, schema["properties"][key])
    required = schema["required"] + (
        _ALSO_REQUIRED.get(known.get("command", ""), []) if tool == STR_REPLACE_EDITOR else []
    )
    if missing := [key for key in required if key not in known]:
        sent = f"it has {', '.join(arguments)}" if arguments else "it has no arguments"
        raise ArgumentsError(f"{tool} needs `{'` and `'.join(missing)}`, but {sent:.200}. Nothing was done.")
    return known


def _check_type(key: str, value: Any, schema: dict[str, Any]) -> None:
    if not _fits(value, schema):
        raise ArgumentsError(f"`{key}` has to be {_wanted(schema)}, not {_name(value)}. Nothing was done.")
    if "enum" in schema and value not in schema["enum"]:
        raise ArgumentsError(
            f"`{key}` has to be one of {', '.join(schema['enum'])}, not {_quoted(value)}. Nothing was done."
        )


def _fits(value: Any, schema: dict[str, Any]) -> bool:
    match schema["type"]:
        case "string":
            return isinstance(value, str)
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool) and abs(value) < _LARGEST
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST
        case _:
            return isinstance(value, list) and all(_fits(item, schema["items"]) for item in value)


def _wanted(schema: dict[str, Any]) -> str:
    names = {
        "string": "text",
        "integer": "a whole number",
        "number": "a number",
        "array": "a list of whole numbers",
    }
    return names[schema["type"]]


def _name(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case str():
            return f"the text {_quoted(value)}"
        case int() | float():
            return f"the number {str(value)[:_SHOWN]}"
        case list():
            return f"the list {_quoted(json.dumps(value))}"
    return "an object"


def _quoted(value: str) -> str:
    return json.dumps(value if len(value) <= _SHOWN else value[:_SHOWN] + "...", ensure_ascii=False)


def _json_reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos + 1}"
    return "nested too deeply"
