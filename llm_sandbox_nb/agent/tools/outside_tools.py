"""Tools of a run whose calls come from an outside agent over MCP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from llm_sandbox_nb.agent.run_options import RunOptions
from llm_sandbox_nb.agent.tools.execute_bash import ExecuteBash, clean, save_stream
from llm_sandbox_nb.agent.tools.file_tools import FILE_TOOLS, MAX_RESULT_LENGTH
from llm_sandbox_nb.agent.tools.tool import Outcome, Tool, ToolContext
from llm_sandbox_nb.agent.tools.toolbox import Toolbox
from llm_sandbox_nb.sandbox.contract import CommandResult, Sandbox

_MIN_STDERR_LENGTH = 6_000
"""Number of characters of stderr that are kept even if stdout is long."""


class OutsideBash(ExecuteBash):
    """Tool that executes a command, and cuts its output to `MAX_RESULT_LENGTH` characters."""

    async def outcome(self, box: Sandbox, result: CommandResult) -> Outcome:
        streams = {"stdout": result.stdout, "stderr": result.stderr}
        room_err = max(_MIN_STDERR_LENGTH, MAX_RESULT_LENGTH - len(result.stdout))
        err, err_cut = cut_output(result.stderr, min(room_err, MAX_RESULT_LENGTH))
        out, out_cut = cut_output(result.stdout, MAX_RESULT_LENGTH - len(err))
        cut = [name for name, is_cut in (("stdout", out_cut), ("stderr", err_cut)) if is_cut]
        files: dict[str, str] = {}
        for name in cut:
            path = result.full_output or await save_stream(box, streams[name], name)
            if path is not None:
                files[name] = path
        data = {
            "exit_code": result.exit_code,
            "stdout": out,
            "stderr": err,
            "timed_out": result.timed_out,
            "interrupted": result.interrupted,
            "truncated": bool(cut) or result.truncated,
            "duration": round(result.duration, 3),
            **({"output_files": files} if files else {}),
            **({"notice": result.notice} if result.notice else {}),
            **({"background": cut_output(result.background, 2000)[0]} if result.background else {}),
        }
        return Outcome(described_output(data), result=result, data=data)


def cut_output(data: bytes, room: int) -> tuple[str, bool]:
    """Convert output to text of about `room` characters. The second value is True if the middle was left out."""
    if len(data) <= 4 * room:
        text = clean(data)
        if len(text) <= room:
            return text, False
        head = tail = text
    else:
        head, tail = clean(data[: 2 * room]), clean(data[-2 * room :])
    note = f"\n[... {len(data)} bytes in all; the middle is left out here ...]\n"
    half = max(0, (room - len(note)) // 2)
    return head[:half].rstrip("\ufffd") + note + tail[len(tail) - half :].lstrip("\ufffd"), True


def described_output(data: Mapping[str, Any]) -> str:
    """Describe the result of a command as text."""
    if data["timed_out"]:
        ending = f"Timed out after {data['duration']:g} s: the command and all it started were ended."
    elif data["interrupted"]:
        ending = f"Ended from outside after {data['duration']:g} s; this is the output so far."
    else:
        ending = f"Exit code: {data['exit_code']}"
    files = data.get("output_files", {})
    sections = [
        f"[{name}]{f' (cut; all of it is in {files[name]})' if name in files else ''}\n{data[name]}".rstrip(
            "\n"
        )
        for name in ("background", "stdout", "stderr")
        if data.get(name)
    ]
    notice = [f"[{data['notice']}]"] if data.get("notice") else []
    return "\n".join([ending, *notice, *(sections or ["(no output)"])])


class KeepingTool(Tool):
    """Wrapper of a tool. It keeps the newest outcome for each sandbox, from which the answer to the agent is made."""

    def __init__(self, tool: Tool) -> None:
        self._tool = tool
        self.name, self.description, self.required = tool.name, tool.description, tool.required
        self.view, self.in_sandbox, self.only_edits = tool.view, tool.in_sandbox, tool.only_edits
        self._newest: WeakKeyDictionary[Sandbox, Outcome] = WeakKeyDictionary()

    def newest(self, box: Sandbox) -> Outcome | None:
        """Return the outcome of the newest call in a sandbox. None if the call has not ended, or has failed."""
        return self._newest.get(box)

    def properties(self, options: RunOptions) -> dict[str, dict[str, Any]]:
        return self._tool.properties(options)

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> Outcome:
        self._newest.pop(context.box, None)
        self._newest[context.box] = outcome = await self._tool.execute(arguments, context)
        return outcome


def outside_toolbox() -> Toolbox:
    """Make the tools for a run whose calls come from an outside agent."""
    return Toolbox(KeepingTool(tool) for tool in (OutsideBash(), *FILE_TOOLS))
