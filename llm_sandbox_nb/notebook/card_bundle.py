"""The durable part of the card: all events and files as JSON, within bounds, for the trajectory view."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from typing import Any

from llm_sandbox_nb.notebook.artifacts import Artifact
from llm_sandbox_nb.notebook.caps import Caps
from llm_sandbox_nb.notebook.card_text import clip
from llm_sandbox_nb.notebook.tables import parquet_preview
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.trajectory import Trajectory

MIME = "application/vnd.llm-sandbox.trajectory+json"
_TEXT_LEVELS = (100_000, 20_000, 4_000, 1_000, 200)
"""Characters a text within an event may have; the first with which all events fit is taken."""


def trajectory_json(
    trajectory: Trajectory, artifacts: Iterable[Artifact], caps: Caps, places: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """`events` as in the journal, except that what it says several times is said once, and `artifacts` by path.

    `text_limit` says when texts are clipped. The files in `places` are on the card's page, in the figure of that
    number: they are not held here again.
    """
    places = places or {}
    events, limit = _events(trajectory.events, caps.events)
    return {
        "schema_version": ev.SCHEMA_VERSION,
        "run_id": trajectory.start.run_id if trajectory.start else None,
        "events": events,
        "text_limit": limit,
        "artifacts": {one.path: artifact_json(one, places.get(one.path)) for one in artifacts},
    }


def live_json(run_id: str, folder: str | None) -> dict[str, Any]:
    """In the place of a record while a run goes on that can be watched at the server: a few bytes.

    `folder` is where the record is being written, relative to the notebook, when it is near it.
    """
    live = {"run_id": run_id, "server": True, "folder": folder}
    bare = {"schema_version": ev.SCHEMA_VERSION, "run_id": run_id, "events": [], "text_limit": None}
    return {**bare, "artifacts": {}, "live": live}


def artifact_json(artifact: Artifact, place: int | None = None) -> dict[str, Any]:
    """A file with its content, or with the place where that is, or why it is nowhere."""
    entry: dict[str, Any] = {"mime": artifact.mime, "size": artifact.size}
    if artifact.href:
        entry["href"] = artifact.href
    if artifact.data is None:
        return {**entry, "omitted": artifact.omitted}
    if artifact.suffix == ".parquet" and (preview := parquet_preview(artifact.data)):
        entry["preview"] = preview
    if place is not None:
        return {**entry, "figure": place}
    try:
        return {**entry, "text": artifact.data.decode("utf-8")}
    except UnicodeDecodeError:
        return {**entry, "data": base64.b64encode(artifact.data).decode("ascii")}


def _events(events: list[ev.Event], cap: int) -> tuple[list[dict[str, Any]], int | None]:
    started = {event.call_id: event.arguments for event in events if isinstance(event, ev.CallStarted)}
    whole = [_said_once(json.loads(ev.dump_event(event)), started) for event in events]
    if _size(whole) <= cap:
        return whole, None
    for limit in _TEXT_LEVELS:
        clipped = [_clipped(event, limit) for event in whole]
        if _size(clipped) <= cap:
            break
    return clipped, limit


def _size(events: list[dict[str, Any]]) -> int:
    return sum(len(json.dumps(event, ensure_ascii=False)) for event in events)


def _said_once(event: dict[str, Any], started: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The event without what another says: a reply's calls, a call's arguments, the streams in an observation."""
    match event["kind"]:
        case "model.requested":
            del event["settings"]
        case "model.replied":
            event["message"].pop("tool_calls", None)
        case "call.proposed" if event["arguments"] is not None:
            event["raw_arguments"] = ""
            if event["arguments"] == started.get(event["call_id"]):
                event["arguments"] = None
        case "call.finished":
            for stream in ("stdout", "stderr"):
                if _within(event[stream], event["observation"]):
                    del event[stream]
    return event


def _within(text: str | dict[str, Any], observation: str) -> bool:
    return isinstance(text, str) and text.strip() in observation


def _clipped(value: Any, limit: int) -> Any:
    if isinstance(value, str):
        return clip(value, limit)
    if isinstance(value, dict):
        return {key: _clipped(item, limit) for key, item in value.items()}
    if isinstance(value, list):
        return [_clipped(item, limit) for item in value]
    return value
