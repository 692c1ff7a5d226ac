"""`execute_bash`: a command in the persistent shell of the sandbox."""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import Mapping
from typing import Any

from llm_sandbox_nb.agent.tools import observation
from llm_sandbox_nb.agent.tools.tool import CallView, Outcome, Tool, ToolContext
from llm_sandbox_nb.sandbox.contract import CommandResult, Sandbox
from llm_sandbox_nb.sandbox.errors import SandboxLostError

LONGEST_TIMEOUT = 3600.0
"""Seconds that a model may ask for one command."""


class ExecuteBash(Tool):
    """Executes a command and shows its exit code and both streams."""

    name = "execute_bash"
    description = """Run a command in the sandbox's bash and get its exit code, stdout and stderr.
* The shell lasts from call to call: directory, variables, functions and activated environments stay.
* stdin is empty, so nothing can be typed in; answer prompts with flags, pipes or here-documents.
* A command that takes too long is ended with all it started, and its output so far is kept. Start what is \
to go on running in the background, with its output sent to a file.
* Long output is cut in the middle; the whole is then in a file that the result names."""
    required = ("command",)
    view = CallView(command="command", hide_observation=True)

    def properties(self, command_timeout: float) -> dict[str, dict[str, Any]]:
        """See `Tool.properties`."""
        return {
            "command": {
                "type": "string",
                "description": "The command, of any length; several lines are fine.",
            },
            "timeout": {
                "type": "number",
                "description": f"Seconds after which it is ended. Default {command_timeout:g}.",
            },
        }

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> Outcome:
        """See `Tool.execute`."""
        box, timeout = context.box, context.command_timeout
        if (asked := arguments.get("timeout")) is not None:
            timeout = min(max(asked, 1.0), LONGEST_TIMEOUT)
        if context.time_left is not None:
            timeout = max(0.1, min(timeout, context.time_left))
        try:
            result = await box.run(arguments["command"], timeout=timeout, on_output=context.on_output)
        except ValueError as error:
            return Outcome(f"Error: {error}", error="bad_arguments")
        stdout_file = await _save_cut_stream(box, result, "stdout")
        stderr_file = await _save_cut_stream(box, result, "stderr")
        return Outcome(observation.describe(result, stdout_file, stderr_file), result=result)


async def _save_cut_stream(box: Sandbox, result: CommandResult, stream: str) -> str | None:
    """Save a stream that the observation cuts to a file in the sandbox; its path, or None."""
    data: bytes = getattr(result, stream)
    if result.full_output or not observation.needs_cut(data):
        return None
    beside_root = posixpath.dirname(box.directories.root)
    path = posixpath.join(beside_root, "tmp/llm-sandbox", f"{uuid.uuid4().hex[:8]}.{stream}")
    try:
        await box.write_file(path, data)
    except SandboxLostError:
        raise
    except OSError:
        return None
    return path
