"""Tools of MCP servers: the places where their calls are executed, and the calls that a rewind cannot undo."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.trajectory import Trajectory

_HOST_PATTERN = re.compile(r"https?://([^/?#\s]{1,200})")


def recorded_servers(start: ev.RunStarted | None) -> dict[str, Mapping[str, Any]]:
    """Map the name of each MCP server of a run to its record. Invalid parts of the record are skipped."""
    servers = start.settings.get("mcp") if start else None
    found = servers.items() if isinstance(servers, Mapping) else ()
    return {str(name): server for name, server in found if isinstance(server, Mapping)}


def tool_places(start: ev.RunStarted | None) -> dict[str, str]:
    """Map each MCP tool to words such as `server time on the host`. Empty for a replay, which calls no server."""
    if start is None or {"replay_of", "rebuilt_from"} & start.settings.keys():
        return {}
    found = dict[str, str]()
    for name, server in recorded_servers(start).items():
        listed, url = server.get("tools"), server.get("url")
        address = _HOST_PATTERN.match(url) if isinstance(url, str) else None
        place = "in the sandbox" if server.get("inside") is True else "on the host"
        place = f"server {name} at {address[1]}" if address else f"server {name} {place}"
        for tool in listed if isinstance(listed, list) else []:
            if isinstance(tool, Mapping):
                found.setdefault(str(tool.get("name")), place)
    return found


def outside_tools(start: ev.RunStarted | None) -> set[str]:
    """Return the names of MCP tools that act outside the sandbox."""
    listed = [
        server.get("tools") for server in recorded_servers(start).values() if server.get("inside") is not True
    ]
    tools = [tool for tools in listed if isinstance(tools, list) for tool in tools]
    return {str(tool.get("name")) for tool in tools if isinstance(tool, Mapping)}


def calls_not_undone(trajectory: Trajectory, to: str) -> tuple[str, ...]:
    """Return the calls outside the sandbox that a rewind to the event `to` cannot undo, such as `step 3: time__now`."""
    tools = outside_tools(trajectory.start)
    if not tools:
        return ()
    kept = {event.id for event in trajectory.at(to).path}
    return tuple(
        f"step {event.step}: {event.tool}"
        for event in trajectory.path
        if isinstance(event, ev.CallStarted) and event.tool in tools and event.id not in kept
    )
