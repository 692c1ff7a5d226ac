"""Writes doubted_runs.json.gz: the journals of planted runs and of right ones, as the rules about doubts read them.

    python tests/data/make_doubted_runs.py

It plays planted_doubts.yaml and fresh_doubts.yaml, the examples, scripts of the course, and planted faults whose
faulty step is repaired, with a scripted model in a `process` sandbox. What no rule reads is left out, and so are
folders of this machine.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS))

import planted_doubts  # noqa: E402
import planted_faults  # noqa: E402

from llm_sandbox_nb.examples.gallery import EXAMPLES  # noqa: E402
from llm_sandbox_nb.runs.run import Run  # noqa: E402
from llm_sandbox_nb.runs.solve import solve  # noqa: E402
from llm_sandbox_nb.trajectory import events as ev  # noqa: E402

OUT = Path(__file__).with_name("doubted_runs.json.gz")
DATA = TESTS.parent / "notebooks" / "data"
COURSE = {
    "strawberry": ("How many r's are in strawberry?", None),
    "first-task": (
        "Draw a poster of the three largest cities, a map and a chime, and name the three.",
        "cities.csv",
    ),
    "isotopes": ("What is the molar mass of aspirin?", None),
    "sunlight": ("Which share of the Sun's radiation is visible light? Draw the spectrum too.", None),
    "exact-integral": ("Compute the integral exactly.", None),
}
REPAIRED = 15
_KEPT = ("run.started", "sandbox.ready", "model.requested", "model.replied", "call.proposed", "call.started",
         "call.finished", "artifact", "run.finished")  # fmt: skip


def kept(run: Run, folder: Path) -> list[dict[str, Any]]:
    found = []
    for event in run.trajectory.events:
        if event.kind not in _KEPT:
            continue
        value = json.loads(ev.dump_event(event))
        for name in ("tools", "versions", "usage", "raw_arguments", "observation", "protection"):
            if name in value:
                value[name] = type(value[name])()
        if isinstance(event, ev.RunStarted):
            prompts = event.settings["prompts"]
            folders = {name: prompts[name] for name in ("working_dir", "output_dir")}
            value |= {"settings": {"prompts": folders}, "model": "scripted/x"}
        if isinstance(event, ev.CallFinished) and event.exit_code is None:
            value["observation"] = event.observation
        if isinstance(event, ev.ModelReplied):
            value["message"] = {"role": "assistant", "content": event.message.get("content")}
        found.append(value)
    text = json.dumps(found)
    for place, name in ((run.trajectory.root, "/work"), (str(folder), "/given")):
        text = text.replace(place, name)
    return list(json.loads(text))


def with_connections(events: list[dict[str, Any]], made: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events with connections after the calls of their steps: this sandbox has no proxy that could record them."""
    found: list[dict[str, Any]] = []
    step, head = 0, None
    for event in events:
        found.append({**event, "parent": head} if head else event)
        head = None
        step = event.get("step") or step
        if event["kind"] == "call.finished":
            for one in (one for one in made if one["step"] == step):
                connection = ev.ConnectionMade(
                    line=f"{one['host']}:443", port=443, parent=found[-1]["id"], **one
                )
                found.append(json.loads(ev.dump_event(connection)))
                head = str(connection.id)
    return found


def rows(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def add(
        name: str,
        group: str,
        run: Run,
        rule: str = "",
        guilty: int | None = None,
        connections: Sequence[dict[str, Any]] = (),
    ) -> None:
        events = with_connections(kept(run, folder / name), [*connections])
        found[name] = {"group": group, "rule": rule, "guilty": guilty, "events": events}
        print(name, flush=True)

    for table, group in (("planted_doubts.yaml", "planted"), ("fresh_doubts.yaml", "fresh")):
        for one in planted_doubts.planted(table):
            run = planted_doubts.play(one, folder / one.name)
            group_of = group if one.guilty else {"planted": "right", "fresh": "fresh-right"}[group]
            add(one.name, group_of, run, one.rule, one.guilty, one.connections)
    tasks = {name: (one.task, one.inputs) for name, one in EXAMPLES.items()}
    tasks |= {name: (task, DATA / given if given else None) for name, (task, given) in COURSE.items()}
    for name, (task, given) in tasks.items():
        place = folder / name / "runs"
        coroutine = solve(task, model=f"scripted/{name}", isolation="process", inputs=given, output_dir=place)
        add(name, "right", asyncio.run(coroutine))
    for fault in planted_faults.faults()[:REPAIRED]:
        name = f"{fault.name}-repaired"
        add(name, "right", planted_faults.play(fault, folder / name, repair=True))
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        text = json.dumps(rows(Path(folder)))
    OUT.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    print(f"{OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
