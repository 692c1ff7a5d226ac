"""The tool `execute_bash`, which executes a command in the sandbox's persistent shell, and the form of the results."""

from __future__ import annotations

import posixpath
import re
import shlex
import unicodedata
import uuid
from collections.abc import Mapping
from typing import Any

from llm_sandbox_nb.agent.run_options import RunOptions
from llm_sandbox_nb.agent.tools.tool import CallView, Outcome, Tool, ToolContext
from llm_sandbox_nb.sandbox.contract import CommandResult, Sandbox
from llm_sandbox_nb.sandbox.errors import SandboxLostError

MAX_TIMEOUT = 3600.0
"""Maximum seconds that a model may request for one command."""


class ExecuteBash(Tool):
    """Tool that executes a command, and returns its exit code, stdout and stderr."""

    name = "execute_bash"
    description = """Run a command in the sandbox's bash and get its exit code, stdout and stderr.
* The shell lasts from call to call: directory, variables, functions and activated environments stay.
* stdin is empty, so nothing can be typed in; answer prompts with flags, pipes or here-documents.
* A command that takes too long is ended with all it started, and its output so far is kept. Start what is \
to go on running in the background, with its output sent to a file.
* Long output is cut in the middle; the whole is then in a file that the result names."""
    required = ("command",)
    view = CallView(command="command", hide_observation=True)

    def properties(self, options: RunOptions) -> dict[str, dict[str, Any]]:
        return {
            "command": {
                "type": "string",
                "description": "The command, of any length; several lines are fine.",
            },
            "timeout": {
                "type": "number",
                "description": f"Seconds after which it is ended. Default {options.command_timeout:g}.",
            },
        }

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> Outcome:
        box, timeout = context.box, context.options.command_timeout
        if (asked := arguments.get("timeout")) is not None:
            # Zero or less means no timeout. Then only `MAX_TIMEOUT` and the run's remaining time limit the command.
            timeout = min(max(asked, 1.0), MAX_TIMEOUT) if asked > 0 else MAX_TIMEOUT
        if context.time_left is not None:
            timeout = max(0.1, min(timeout, context.time_left))
        try:
            result = await box.run(arguments["command"], timeout=timeout, on_output=context.on_output)
        except ValueError as error:
            return Outcome(f"Error: {error}", error="bad_arguments")
        return await self.outcome(box, result)

    async def outcome(self, box: Sandbox, result: CommandResult) -> Outcome:
        """Return the outcome of a finished command. If a stream is too long for the model, save it to a file."""
        files = {
            stream: await save_stream(box, data, stream)
            for stream, data in (("stdout", result.stdout), ("stderr", result.stderr))
            if not result.full_output and needs_cut(data)
        }
        return Outcome(describe(result, files.get("stdout"), files.get("stderr")), result=result)


class BashInNewShell(ExecuteBash):
    """Tool `execute_bash` that executes each command in a new shell, as in the records of the paper's package."""

    description = ExecuteBash.description.replace(
        "* The shell lasts from call to call: directory, variables, functions and activated environments stay.",
        "* Each call gets a new shell: directory, variables, functions and activated environments do not stay.",
    )

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> Outcome:
        root, command = shlex.quote(context.box.directories.root), shlex.quote(arguments["command"])
        return await super().execute(
            {**arguments, "command": f"(cd -- {root} && exec bash -c {command})"}, context
        )


async def save_stream(box: Sandbox, data: bytes, stream: str) -> str | None:
    """Save a stream to a file in the sandbox. Return the path, or None after a failure."""
    parent = posixpath.dirname(box.directories.root)
    path = posixpath.join(parent, "tmp/llm-sandbox", f"{uuid.uuid4().hex[:8]}.{stream}")
    try:
        await box.write_file(path, data)
    except SandboxLostError:
        raise
    except OSError:
        return None
    return path


HEAD_LINES = 40
TAIL_LINES = 40
HEAD_CHARACTERS = 8_000
TAIL_CHARACTERS = 8_000
_PIECE_BYTES = 128 * 1024
"""Number of bytes at each end of a long stream that `clean` converts. The model reads less than that. Converting the
whole stream would take longer."""

# ECMA-48 defines control sequences, strings (OSC, DCS, PM, APC, SOS) up to their terminator, and short escapes.
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"
    r"|\x1b[ -/]*[0-~]"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_JOINERS = frozenset("\u200d\ufe0e\ufe0f")


def clean(data: bytes) -> str:
    """Convert output to text. Mark undecodable bytes, and remove terminal codes and overwritten progress lines."""
    text = _ESCAPES.sub("", data.decode("utf-8", "replace")).replace("\r\n", "\n")
    text = _without_overwritten(text) if "\r" in text else text
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def _without_overwritten(text: str) -> str:
    """Keep the part of each line after the last carriage return. Note the number of overwritten parts."""
    kept, hidden = [], 0
    for line in text.split("\n"):
        states = [state for state in line.split("\r") if state]
        hidden += max(0, len(states) - 1)
        kept.append(states[-1] if states else "")
    note = f"[{hidden} overwritten states of progress lines left out]\n" if hidden else ""
    return note + "\n".join(kept)


def bound(data: bytes, where: str) -> tuple[str, bool]:
    """Return a stream as text for the model, and True if a part in the middle was left out.

    A long stream is cut to its first and last lines, and these lines to their first and last characters. The note at
    the cut contains `where`, which says how to read the missing part.
    """
    if len(data) > 2 * _PIECE_BYTES:
        head, tail = clean(_start_piece(data)), clean(_end_piece(data))
    else:
        head = tail = clean(data)
        few_lines = head.removesuffix("\n").count("\n") < HEAD_LINES + TAIL_LINES
        if few_lines and len(head) <= HEAD_CHARACTERS + TAIL_CHARACTERS:
            return head, False
    total = data.count(b"\n") + (not data.endswith(b"\n"))
    if total > HEAD_LINES + TAIL_LINES:
        head = "\n".join(head.split("\n")[:HEAD_LINES])
        tail = "\n".join(tail.removesuffix("\n").split("\n")[-TAIL_LINES:])
    head, tail = _first(head, HEAD_CHARACTERS), _last(tail, TAIL_CHARACTERS)
    left_out = total - head.count("\n") - tail.count("\n") - 2
    lines = f"{left_out} of {total} lines" if left_out > 0 else "the middle"
    return f"{head}\n[... {lines} left out here ({len(data)} bytes in all); {where} ...]\n{tail}", True


def _start_piece(data: bytes) -> bytes:
    end = _PIECE_BYTES
    while data[end] & 0xC0 == 0x80 and end > _PIECE_BYTES - 4:  # do not cut a UTF-8 character
        end -= 1
    return data[:end]


def _end_piece(data: bytes) -> bytes:
    """Return the end of a stream. If possible, begin at the start of a line, so that no terminal code is cut."""
    start = len(data) - _PIECE_BYTES
    line = data.find(b"\n", start, start + _PIECE_BYTES // 2)
    if line >= 0:
        return data[line + 1 :]
    while data[start] & 0xC0 == 0x80 and start < len(data) - _PIECE_BYTES + 4:
        start += 1
    return data[start:]


def _first(text: str, room: int) -> str:
    if len(text) <= room:
        return text
    while room and _continues(text, room):
        room -= 1
    return text[:room]


def _last(text: str, room: int) -> str:
    if len(text) <= room:
        return text
    start = len(text) - room
    while start < len(text) and _continues(text, start):
        start += 1
    return text[start:]


def _continues(text: str, place: int) -> bool:
    """Return True if the code point at `place` belongs to the previous character."""
    return (
        text[place] in _JOINERS
        or text[place - 1] == "\u200d"
        or unicodedata.combining(text[place]) != 0
        or "\U0001f3fb" <= text[place] <= "\U0001f3ff"
    )


def needs_cut(data: bytes) -> bool:
    """Return True if `bound` would cut this stream."""
    return len(data) > 2 * _PIECE_BYTES or bound(data, "")[1]


def describe(result: CommandResult, stdout_file: str | None = None, stderr_file: str | None = None) -> str:
    """Return the observation for a finished command.

    `stdout_file` and `stderr_file` are the paths of files with the complete streams. None if no such file was saved.
    """
    parts = [_ending(result)]
    if result.notice:
        parts.append(f"[{result.notice}]")
    if result.background:
        parts.append(_section("output of background jobs since the last call", result.background, None))
    if result.stdout:
        parts.append(_section("stdout", result.stdout, result.full_output or stdout_file))
    if result.stderr:
        parts.append(_section("stderr", result.stderr, result.full_output or stderr_file))
    if not result.stdout and not result.stderr:
        parts.append("(no output)")
    return "\n".join(parts)


def _ending(result: CommandResult) -> str:
    seconds = f"{result.duration:.0f} s" if result.duration >= 1 else "less than a second"
    if result.timed_out:
        return (
            f"Timed out after {seconds}: the command and all it started were ended; this is the output so "
            "far. Give a longer timeout, or run it in the background."
        )
    if result.interrupted:
        return f"Interrupted by the user after {seconds}; this is the output so far."
    return f"Exit code: {result.exit_code}"


def _section(name: str, data: bytes, file: str | None) -> str:
    where = f"all of it is in {file}" if file else "it was not kept"
    return f"[{name}]\n{bound(data, where)[0]}".removesuffix("\n")
