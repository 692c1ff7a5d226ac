"""The record in a saved card for the trajectory view: all events and files as compressed JSON, within size limits.

`labextension/src/packed.ts` and `embedded.ts` read the record.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from llm_sandbox_nb.card.artifacts import Artifact
from llm_sandbox_nb.formatting import clip
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.saved_events import saved_events
from llm_sandbox_nb.trajectory.trajectory import Trajectory

MIME = "application/vnd.llm-sandbox.trajectory+json"
_CLIP_CHARACTERS = (100_000, 20_000, 4_000, 1_000, 200)
"""Maximum characters of each text in an event: tried in this order, until all events together fit `Caps.events`."""


@dataclass(frozen=True)
class Caps:
    """Size limits of the saved card. Data above a limit stays in the run's folder, and the card reports this.

    The limits count the bytes of the files themselves. In a notebook, base64 makes incompressible data a third larger.
    """

    artifact: int = 1_000_000
    """Maximum bytes of one embedded file."""
    run: int = 10_000_000
    """Maximum bytes of all embedded files of a run."""
    events: int = 5_000_000
    """Maximum characters of all events in the bundle. Long texts in the events are clipped until the events fit."""
    text: int = 20_000
    """Maximum shown characters of the task, and of the answer, once the run is over."""
    live_text: int = 4_000
    """Maximum shown characters of one text during the run."""
    live_files: int = 300_000
    """Maximum bytes of the files that are shown during the run."""


def trajectory_json(
    trajectory: Trajectory, artifacts: Iterable[Artifact], caps: Caps, places: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """Return the record: `events` as in the journal, but without repetitions, and `artifacts` by path.

    `text_limit` is None if no text is clipped. `places` maps a file to the number of a figure on the card's page. This
    figure holds the content of the file, so the record does not store the content again.
    """
    places = places or {}
    events, limit = _events(trajectory.events, caps.events)
    return {
        "schema_version": ev.SCHEMA_VERSION,
        "run_id": trajectory.start.run_id if trajectory.start else None,
        "events": events,
        "text_limit": limit,
        "artifacts": {
            artifact.path: artifact_json(artifact, places.get(artifact.path)) for artifact in artifacts
        },
    }


def live_json(run_id: str, folder: str | None) -> dict[str, Any]:
    """Return a short reference to the record of a live run. The page gets the events from the server.

    `folder` is the record's folder relative to the notebook's folder, or None if the record is elsewhere.
    """
    live = {"run_id": run_id, "server": True, "folder": folder}
    bare = {"schema_version": ev.SCHEMA_VERSION, "run_id": run_id, "events": [], "text_limit": None}
    return {**bare, "artifacts": {}, "live": live}


def artifact_json(artifact: Artifact, place: int | None = None) -> dict[str, Any]:
    """Return a file with its content, the number of the figure with the content, or the reason for its absence."""
    entry: dict[str, Any] = {"mime": artifact.mime, "size": artifact.size}
    if artifact.href:
        entry["href"] = artifact.href
    if artifact.data is None:
        return {**entry, "omitted": artifact.omitted}
    if artifact.suffix == ".parquet" and not isinstance(artifact.table, str):
        entry["preview"] = artifact.table
    if place is not None:
        return {**entry, "figure": place}
    try:
        return {**entry, "text": artifact.data.decode("utf-8")}
    except UnicodeDecodeError:
        return {**entry, "data": base64.b64encode(artifact.data).decode("ascii")}


def _events(events: list[ev.Event], cap: int) -> tuple[list[dict[str, Any]], int | None]:
    whole = saved_events(events)
    if _size(whole) <= cap:
        return whole, None
    for limit in _CLIP_CHARACTERS:
        clipped = [_clipped(event, limit) for event in whole]
        if _size(clipped) <= cap:
            break
    return clipped, limit


def _size(events: list[dict[str, Any]]) -> int:
    return sum(len(json.dumps(event, ensure_ascii=False)) for event in events)


def _clipped(value: Any, limit: int) -> Any:
    if isinstance(value, str):
        return clip(value, limit)
    if isinstance(value, dict):
        return {key: _clipped(item, limit) for key, item in value.items()}
    if isinstance(value, list):
        return [_clipped(item, limit) for item in value]
    return value


MAX_UNPACKED_BYTES = 64 * 1024 * 1024
"""Maximum bytes of a record that a page unpacks; a larger record is stored uncompressed."""


def packed(bundle: dict[str, Any]) -> dict[str, Any]:
    """Compress the events and files of a bundle into one text: their JSON, compressed with zlib, as base64.

    A bundle that is larger than `MAX_UNPACKED_BYTES` is returned unchanged.
    """
    whole = {name: bundle[name] for name in ("events", "artifacts")}
    data = json.dumps(whole, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    if len(data) > MAX_UNPACKED_BYTES:
        return bundle
    rest = {name: value for name, value in bundle.items() if name not in whole}
    return {**rest, "packed": base64.b64encode(zlib.compress(data, 9)).decode("ascii")}


def unpacked(bundle: dict[str, Any]) -> dict[str, Any]:
    """Return the bundle of a saved notebook with its events and files unpacked."""
    if "packed" not in bundle:
        return bundle
    whole = json.loads(zlib.decompress(base64.b64decode(bundle["packed"])))
    return {**{name: value for name, value in bundle.items() if name != "packed"}, **whole}
