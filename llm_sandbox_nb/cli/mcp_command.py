"""`llm-sandbox-nb mcp`: MCP over stdin and stdout, for the sandbox of an open notebook or for a new sandbox."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from llm_sandbox_nb.cli import ENDED_WELL, INTERRUPTED, SANDBOX_ERROR, on_signals
from llm_sandbox_nb.cli.mcp_bridge import Bridge, OpenNotebook, open_notebooks
from llm_sandbox_nb.mcp_server.sessions import ClientFacts
from llm_sandbox_nb.mcp_server.stdio import StdioServer, line_writer, read_lines
from llm_sandbox_nb.options.table import GROUPS, QUERY, UsageError
from llm_sandbox_nb.options.values import resolve, sandbox_options
from llm_sandbox_nb.own_folder import expanded
from llm_sandbox_nb.plain_text import plain

_NEW_SANDBOX_OPTIONS = tuple(option.name for title in ("sandbox", "resources") for option in GROUPS[title])
_OPENING_ARGUMENTS = ("isolation", "profile", "image", "network")


class LocalHost:
    """A `ToolHost` that executes calls in a sandbox of this process."""

    principal = "stdio"

    def __init__(self, calls: Any) -> None:
        self._calls = calls

    async def call(
        self, tool: str, arguments: dict[str, Any], client: ClientFacts, agreed: str
    ) -> dict[str, Any]:
        found: dict[str, Any] = await self._calls.call(
            tool, arguments, f"{client.name} {client.version}".strip(), agreed, self.principal
        )
        return found


def mcp_command(arguments: argparse.Namespace) -> int:
    """Serve the MCP client until stdin ends, and return the exit code.

    Raises:
        UsageError: if the notebook is not open, or an option is wrong; nothing was started.
    """
    flags = vars(arguments)
    notebook = flags.pop("notebook", None)
    flags[QUERY.name] = "-"
    values = resolve(flags, os.environ)
    own = any(flags.get(name) is not None for name in _NEW_SANDBOX_OPTIONS)
    if notebook and own:
        raise UsageError(
            "--notebook uses the notebook's sandbox: leave out --isolation and other sandbox options."
        )
    # stdout is for messages only, so the output of libraries goes to stderr.
    messages, sys.stdout = sys.stdout.buffer, sys.stderr
    try:
        return asyncio.run(_serve(values, notebook, own, messages))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return INTERRUPTED


async def _serve(values: dict[str, Any], notebook: str | None, own: bool, messages: Any) -> int:
    task = asyncio.current_task()
    assert task is not None
    on_signals(task.cancel, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    if not own:
        opened = await open_notebooks(Path(notebook) if notebook else None)
        if len(opened) == 1:
            await _bridge(opened[0], messages)
            return ENDED_WELL
        if notebook and not expanded(notebook).exists():
            raise UsageError(f"--notebook: {notebook} does not exist; check the path.")
        if notebook:
            raise UsageError(
                f"{notebook} does not offer its sandbox: execute %sandbox mcp in it, then repeat this command."
            )
        if opened:
            names = ", ".join(notebook.notebook for notebook in opened)
            raise UsageError(f"Several notebooks offer their sandboxes: name one with --notebook: {names}.")
    return await _serve_own(values, messages)


async def _bridge(opened: OpenNotebook, messages: Any) -> None:
    print(f"Calls go to the sandbox of {opened.notebook}.", file=sys.stderr, flush=True)
    bridge = Bridge(opened, line_writer(messages))
    await bridge.serve(read_lines(sys.stdin.buffer))


async def _serve_own(values: dict[str, Any], messages: Any) -> int:
    from llm_sandbox_nb.agent.control.pause_rules import PauseRules
    from llm_sandbox_nb.agent.errors import InputError
    from llm_sandbox_nb.runs.outside_agent import start_agent
    from llm_sandbox_nb.runs.outside_calls import OutsideCalls
    from llm_sandbox_nb.sandbox.errors import SandboxError
    from llm_sandbox_nb.sandbox.open import open_sandbox

    named = {name: values[name] for name in _OPENING_ARGUMENTS if values[name] is not None}
    try:
        box = await open_sandbox(**named, **sandbox_options(values))
    except (ValueError, TypeError, FileNotFoundError) as error:
        raise UsageError(f"{str(error).rstrip('.')}.") from error
    except SandboxError as error:
        print(plain(str(error)), file=sys.stderr)
        return SANDBOX_ERROR
    try:
        try:
            agent = await start_agent(
                box, output_dir=values["output_dir"], name=None, rules=PauseRules(), owned=False
            )
        except InputError as error:
            raise UsageError(str(error)) from error
        calls = OutsideCalls(agent)
        print(f"Recorded in {agent.run.folder}", file=sys.stderr, flush=True)
        try:
            await StdioServer(LocalHost(calls), line_writer(messages)).serve(read_lines(sys.stdin.buffer))
        finally:
            await asyncio.shield(calls.close())
    finally:
        await asyncio.shield(box.close())
    return ENDED_WELL
