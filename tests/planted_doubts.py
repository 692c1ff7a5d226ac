"""Plays planted runs (tests/data/planted_doubts.yaml) with a scripted model in a `process` sandbox."""

from __future__ import annotations

import asyncio
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.runs.solve import solve

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True)
class Planted:
    """A run; `guilty` is its faulty step, None in a right run."""

    name: str
    task: str
    steps: list[Any]
    guilty: int | None = None
    rule: str = ""
    inputs: str = "true"
    bin: dict[str, str] = field(default_factory=dict)
    connections: list[dict[str, Any]] = field(default_factory=list)
    """What a proxy would have recorded: fields of the event `connection`, by the step."""

    def script(self, bin: Path) -> str:
        """The turns of the model. The programs in `bin` are found by its commands."""
        *steps, last = self.steps
        turns = [{"text": said, "calls": [_call(what)]} for said, what in steps]
        if self.bin:
            first = turns[0]["calls"][0]["arguments"]
            first["command"] = f"export PATH={bin}:$PATH\n{first['command']}"
        return yaml.safe_dump({"turns": [*turns, {"text": last, "calls": [{"tool": "submit"}]}]})


def _call(what: Any) -> dict[str, Any]:
    if isinstance(what, str):
        return {"tool": "execute_bash", "arguments": {"command": what}}
    if "create" in what:
        arguments = {"command": "create", "path": what["create"], "file_text": what["text"]}
    else:
        arguments = {
            "command": "str_replace",
            "path": what["replace"],
            "old_str": what["old"],
            "new_str": what["new"],
        }
    return {"tool": "str_replace_editor", "arguments": arguments}


def planted(table: str) -> list[Planted]:
    rows = yaml.safe_load((DATA / table).read_text("utf-8"))
    return [Planted(name=name, **row) for name, row in rows.items()]


def play(one: Planted, folder: Path, **options: Any) -> Run:
    """The run; `folder` keeps its inputs, its script and the run."""
    inputs, bin = folder / "input", folder / "bin"
    inputs.mkdir(parents=True)
    bin.mkdir()
    subprocess.run(["bash", "-ec", one.inputs], cwd=inputs, check=True, timeout=60)
    for name, text in one.bin.items():
        (bin / name).write_text(f"#!/bin/bash\n{text}\n")
        (bin / name).chmod(0o755)
    script = folder / "script.yaml"
    script.write_text(one.script(bin), "utf-8")
    has_inputs = any(inputs.iterdir())
    return asyncio.run(
        solve(
            one.task,
            model=f"scripted/{script}",
            isolation="process",
            inputs=inputs if has_inputs else None,
            output_dir=folder / "runs",
            **options,
        )
    )
