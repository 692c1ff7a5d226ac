"""Calls of MCP servers outside the sandbox, which a rewind cannot undo."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.trajectory import Trajectory


def recorded_servers(start: ev.RunStarted | None) -> dict[str, Mapping[str, Any]]:
    """Return the recorded MCP servers of a run by name. The record may come from anyone."""
    servers = start.settings.get("mcp") if start else None
    found = servers.items() if isinstance(servers, Mapping) else ()
    return {str(name): server for name, server in found if isinstance(server, Mapping)}


def outside_tools(start: ev.RunStarted | None) -> set[str]:
    """Return the names of tools that act outside the sandbox."""
    listed = [
        server.get("tools") for server in recorded_servers(start).values() if server.get("inside") is not True
    ]
    tools = [tool for tools in listed if isinstance(tools, list) for tool in tools]
    return {str(tool.get("name")) for tool in tools if isinstance(tool, Mapping)}


def calls_not_undone(trajectory: Trajectory, to: str) -> tuple[str, ...]:
    """Return the outside calls that a rewind to the event `to` cannot undo, in the form `step 3: time__now`."""
    tools = outside_tools(trajectory.start)
    if not tools:
        return ()
    kept = {event.id for event in trajectory.at(to).path}
    return tuple(
        f"step {event.step}: {event.tool}"
        for event in trajectory.path
        if isinstance(event, ev.CallStarted) and event.tool in tools and event.id not in kept
    )
