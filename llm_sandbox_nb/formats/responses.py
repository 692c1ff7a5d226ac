"""Each request to the model and its reply as a JSON file of its own, as the paper's package keeps them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.trajectory import Trajectory, tool_message

RESPONSES = "litellm"
"""The folder, in the folder of a run."""


def save_responses(trajectory: Trajectory, folder: Path) -> None:
    """Write `request_001.json`, `response_001.json`, ... into `folder`: the record, request by request."""
    folder.mkdir(parents=True, exist_ok=True)
    tools = trajectory.start.tools if trajectory.start else []
    messages: list[dict[str, Any]] = []
    number = 0
    for event in trajectory.events:
        match event:
            case ev.ModelRequested():
                number += 1
                request = {"messages": messages, "tools": tools, **event.settings}
                _write(folder / f"request_{number:03}.json", request)
            case ev.ModelFailed() | ev.ModelReplied():
                _write(folder / f"response_{number:03}.json", event.model_dump(mode="json"))
        messages.extend(_messages(event))


def _messages(event: ev.Event) -> list[dict[str, Any]]:
    match event:
        case ev.MessageAdded() | ev.ModelReplied():
            return [event.message]
        case ev.CallFinished():
            return [tool_message(event.call_id, event.observation)]
    return []


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False), encoding="utf-8")
