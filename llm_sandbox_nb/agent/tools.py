"""Carrying out one tool call. Whatever it holds, there is one outcome for the model to read."""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llm_sandbox_nb.agent import observation
from llm_sandbox_nb.agent.editor import Editor, EditorError
from llm_sandbox_nb.agent.schemas import EXECUTE_BASH, SUBMIT
from llm_sandbox_nb.sandbox.contract import DEFAULT_TIMEOUT, CommandResult, OutputCallback, Sandbox
from llm_sandbox_nb.sandbox.errors import SandboxLostError

LONGEST_TIMEOUT = 3600.0
"""Seconds that a model may ask for one command."""
SUBMITTED = "Submitted."


@dataclass(frozen=True)
class Outcome:
    """What came of a call: what the model reads, and the rest for the record."""

    observation: str
    error: str | None = None
    """Short name of what was wrong with the call."""
    result: CommandResult | None = None
    submitted: bool = False


@dataclass(frozen=True)
class Toolbox:
    """The three tools over one sandbox. `time_left` gives the seconds the run has, None without limit."""

    box: Sandbox
    time_left: Callable[[], float | None] = lambda: None
    default_timeout: float = DEFAULT_TIMEOUT

    async def execute(
        self, tool: str, arguments: dict[str, Any], on_output: OutputCallback | None = None
    ) -> Outcome:
        """Carry out a call whose arguments were checked.

        Raises:
            SandboxLostError: the sandbox died.
        """
        if tool == SUBMIT:
            return Outcome(SUBMITTED, submitted=True)
        if tool == EXECUTE_BASH:
            return await self._bash(arguments["command"], arguments.get("timeout"), on_output)
        try:
            return Outcome(await self._edit(arguments))
        except EditorError as error:
            return Outcome(f"Error: {error}", error="editor")

    async def _bash(self, command: str, timeout: float | None, on_output: OutputCallback | None) -> Outcome:
        try:
            result = await self.box.run(command, timeout=self._timeout(timeout), on_output=on_output)
        except ValueError as error:
            return Outcome(f"Error: {error}", error="bad_arguments")
        out = await self._spill(result, "stdout")
        err = await self._spill(result, "stderr")
        return Outcome(observation.describe(result, out, err), result=result)

    async def _edit(self, arguments: dict[str, Any]) -> str:
        editor, path = Editor(self.box), arguments["path"]
        if not path or "\x00" in path:
            raise EditorError("`path` has to name a file or directory.")
        match arguments["command"]:
            case "view":
                return await editor.view(path, arguments.get("view_range"))
            case "create":
                return await editor.create(path, arguments["file_text"])
            case "str_replace":
                return await editor.str_replace(path, arguments["old_str"], arguments.get("new_str", ""))
            case _:
                return await editor.insert(path, arguments["insert_line"], arguments["new_str"])

    def _timeout(self, asked: float | None) -> float:
        seconds = self.default_timeout if asked is None else min(max(asked, 1.0), LONGEST_TIMEOUT)
        left = self.time_left()
        return seconds if left is None else max(0.1, min(seconds, left))

    async def _spill(self, result: CommandResult, stream: str) -> str | None:
        """Leave a stream that the observation cuts in a file in the sandbox; its path, or None."""
        data: bytes = getattr(result, stream)
        if result.full_output or not observation.needs_cut(data):
            return None
        beside_root = posixpath.dirname(self.box.directories.root)
        path = posixpath.join(beside_root, "tmp/llm-sandbox", f"{uuid.uuid4().hex[:8]}.{stream}")
        try:
            await self.box.write_file(path, data)
        except SandboxLostError:
            raise
        except OSError:
            return None
        return path
