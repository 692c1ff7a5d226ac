"""Runs with one planted fault each, played by a scripted model in a real sandbox: tests/data/planted_faults."""

from __future__ import annotations

import asyncio
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.runs.solve import solve

FOLDER = Path(__file__).parent / "data" / "planted_faults"


@dataclass(frozen=True)
class Fault:
    """What a person knows (`task`, `wrong`, `symptom`), and what the person wants to find."""

    name: str
    task: str
    wrong: str
    """The output file that is wrong."""
    symptom: str
    inputs: str
    """A shell script that makes the given files."""
    faulty_step: int
    repaired: dict[str, Any]
    """Arguments with which the call of the faulty step would have been right."""
    right: str
    """What the wrong file holds in a run without the fault."""
    written: str
    """Whether the run was written `before the last rules` of docs/how-to/why-did-it-fail.md, or after."""

    def script(self, *, repair: bool = False) -> str:
        """The turns of the model, with or without the fault."""
        turns = yaml.safe_load((FOLDER / f"{self.name}.yaml").read_text("utf-8"))
        if repair:
            turns["turns"][self.faulty_step - 1]["calls"][0]["arguments"] = self.repaired
        return yaml.safe_dump(turns, allow_unicode=True)


def faults() -> list[Fault]:
    table = yaml.safe_load((FOLDER / "faults.yaml").read_text("utf-8"))
    return [Fault(name=name, **row) for name, row in table.items()]


def play(fault: Fault, folder: Path, *, repair: bool = False) -> Run:
    """The run, in a process sandbox; `folder` is empty and keeps the inputs, the script and the run."""
    inputs = folder / "input"
    inputs.mkdir(parents=True)
    subprocess.run(["bash", "-ec", fault.inputs], cwd=inputs, check=True, timeout=60)
    script = folder / "script.yaml"
    script.write_text(fault.script(repair=repair), "utf-8")
    return asyncio.run(
        solve(
            fault.task,
            model=f"scripted/{script}",
            isolation="process",
            inputs=inputs,
            output_dir=folder / "runs",
        )
    )


def wrong_file(fault: Fault, run: Run) -> str | None:
    """What the file that the person complains of holds; None when it does not exist."""
    path = run.folder / "files" / Path(fault.wrong).relative_to("output")
    return path.read_text("utf-8") if path.is_file() else None
