"""Examples. Each has a task, a check of the result and, if the task needs them, input files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from llm_sandbox_nb.examples import checks

TASKS = Path(__file__).with_name("tasks")
Check = Callable[[Mapping[str, bytes]], str]
"""Function that checks the files of the output folder. The keys of its argument are file names, and the values are the
contents. The function returns a sentence about a fault, or an empty text.
"""


@dataclass(frozen=True)
class Example:
    """Example of a task. The scripted model `scripted/NAME` makes a mistake, and then finds the solution."""

    name: str
    title: str
    check: Check

    @property
    def task(self) -> str:
        """The task for the model."""
        return (TASKS / self.name / "task.md").read_text("utf-8").strip()

    @property
    def inputs(self) -> Path | None:
        """Folder of the input files, or None if the example has no input files."""
        folder = TASKS / self.name / "input"
        return folder if folder.is_dir() else None

    @property
    def model(self) -> str:
        """Name of the scripted model that solves the example."""
        return f"scripted/{self.name}"


EXAMPLES: Final[Mapping[str, Example]] = {
    example.name: example
    for example in (
        Example("math", "count numbers by the digits they have", checks.math),
        Example("physics", "the period of a pendulum that swings far", checks.physics),
        Example("chemistry", "the molar mass of caffeine", checks.chemistry),
        Example("biomedicine", "the protein in a piece of DNA", checks.biomedicine),
        Example("long-context", "a sum over four long reports", checks.long_context),
        Example("instructions", "a poem under constraints", checks.instructions),
        Example("map", "an interactive map (HTML)", checks.city_map),
        Example("poster", "a poster (SVG and PNG)", checks.poster),
        Example("countdown", "a video that counts down (MP4)", checks.countdown),
        Example("piano", "a piano piece (MIDI and WAV)", checks.piano),
    )
}
