"""A run in Python's hands: live while it goes on, or loaded from its folder."""

from __future__ import annotations

import mimetypes
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_sandbox_nb.agent.control import ControlError, RunControl
from llm_sandbox_nb.agent.decision import Held
from llm_sandbox_nb.agent.place import Place
from llm_sandbox_nb.agent.run_in_time import RunInTime
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.journal import FILE_NAME, read_journal
from llm_sandbox_nb.trajectory.seed_format import read_seed
from llm_sandbox_nb.trajectory.trajectory import Step, Trajectory

if TYPE_CHECKING:
    import pandas

    from llm_sandbox_nb.agent.replaying import Report

FILES_FOLDER = "files"


class RunFile(os.PathLike[str]):
    """One file the model left. Give it to anything that takes a path, or read it."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path

    @property
    def mime(self) -> str:
        """The media type its name tells."""
        return mimetypes.guess_type(self.name)[0] or "application/octet-stream"

    @property
    def size(self) -> int:
        """Bytes."""
        return self.path.stat().st_size

    def read_bytes(self) -> bytes:
        """The content."""
        return self.path.read_bytes()

    def read_text(self, encoding: str = "utf-8") -> str:
        """The content as text."""
        return self.path.read_text(encoding)

    def __fspath__(self) -> str:
        return str(self.path)

    def __bytes__(self) -> bytes:
        return self.read_bytes()

    def __repr__(self) -> str:
        return f"<RunFile {self.name}: {self.size} bytes at {self.path}>"


class RunFiles(Mapping[str, RunFile]):
    """The files of a run by their names below the output folder. Never leads outside of the run's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __getitem__(self, name: str) -> RunFile:
        path = self._folder / name
        inside = Path(os.path.normpath(path)).is_relative_to(self._folder) and not Path(name).is_absolute()
        if (
            not inside
            or not path.is_file()
            or path.resolve() != self._folder.resolve() / Path(os.path.normpath(name))
        ):
            raise KeyError(
                f"{name!r} is not among the files of this run: {', '.join(self) or 'there are none'}"
            )
        return RunFile(name, path)

    def __iter__(self) -> Iterator[str]:
        names = []
        for folder, _, files in os.walk(self._folder):
            names += [str((Path(folder) / file).relative_to(self._folder)) for file in files]
        return iter(sorted(name for name in names if not (self._folder / name).is_symlink()))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"<RunFiles {', '.join(self) or 'none'}>"


class Run(RunInTime):
    """One run.

    >>> run = await solve("How many r's are in strawberry?", model="openai/gpt-5")
    >>> run.answer, run.stop_reason, run.files["poster.png"], run.steps[3].calls[0].output
    """

    def __init__(
        self,
        folder: Path,
        trajectory: Trajectory,
        control: RunControl | None = None,
        *,
        has_journal: bool = True,
    ) -> None:
        self.folder = folder
        """Everything of the run on disk: journal, files, the trajectory in the paper's form."""
        self.trajectory = trajectory
        self.has_journal = has_journal
        """Whether the folder is this run's own, so that the run can be changed."""
        self.place = Place()
        self.rebuilt: Report | None = None
        """Of a run made by `rebuild`: what came out otherwise than it was recorded."""
        self._control = control

    @classmethod
    def load(cls, path: str | Path) -> Run:
        """A run from its folder or journal, or from a `trajectory.json` in the paper's form.

        Raises:
            FileNotFoundError: there is none.
            JournalError: the journal is damaged before its last line.
            ValueError: the file is no trajectory.
        """
        path = Path(path).expanduser().resolve()
        if path.suffix == ".json":
            return cls(path.parent, read_seed(path), has_journal=False)
        if not path.exists() or (path.is_dir() and not (path / FILE_NAME).exists()):
            raise FileNotFoundError(f"There is no run at {path}: a run is a folder with a {FILE_NAME} in it.")
        return cls(path if path.is_dir() else path.parent, Trajectory(read_journal(path)))

    @property
    def journal(self) -> Path:
        """The journal: one event in each line."""
        return self.folder / FILE_NAME

    @property
    def id(self) -> str | None:
        """The run's own id."""
        return self.trajectory.start.run_id if self.trajectory.start else None

    @property
    def task(self) -> str:
        """What was asked."""
        return self.trajectory.start.task if self.trajectory.start else ""

    @property
    def model(self) -> str:
        """The model's name."""
        return self.trajectory.start.model if self.trajectory.start else ""

    @property
    def answer(self) -> str | None:
        """The final answer: the answer file if the model wrote one, else what it said last."""
        return self.trajectory.answer

    @property
    def stop_reason(self) -> str | None:
        """Why it ended; None while it goes on, or when it was killed."""
        return self.trajectory.stop_reason

    @property
    def error(self) -> str | None:
        """What went wrong, in one sentence."""
        return self.trajectory.finish.error if self.trajectory.finish else None

    @property
    def steps(self) -> list[Step]:
        """The steps in order: `steps[0]` is the first."""
        return self.trajectory.steps

    @property
    def usage(self) -> ev.Usage:
        """Tokens and cost so far."""
        return self.trajectory.usage

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation exactly as the model saw it."""
        return list(self.trajectory.messages())

    @property
    def files(self) -> RunFiles:
        """What the model left in the output folder."""
        return RunFiles(self.folder / FILES_FOLDER)

    @property
    def control(self) -> RunControl:
        """The controls of the run while it goes on. Raises ControlError for one that was loaded."""
        if self._control is None:
            raise ControlError("This run was loaded from its record, so there is nothing to control.")
        return self._control

    def pause(self) -> None:
        """Halt before the next request or call. Raises ControlError when the run is over."""
        self.control.pause()

    def step(self) -> None:
        """Go on to the next call or observation. Raises ControlError when the run is not under way."""
        self.control.step()

    def change(self, **changed: Any) -> None:
        """What follows is done with another `model`, `settings`, `limits`, `breakpoints` or `approve`.

        >>> run.change(model="openai/gpt-5-mini", settings={"temperature": 0}, limits={"steps": 20})

        Raises:
            ControlError: something in it makes no sense, or the run is not under way; nothing changed.
        """
        self.control.change(**changed)

    @property
    def held(self) -> Held | None:
        """The call or observation at which the run under way has halted; None while it goes on."""
        return self._control.held if self._control else None

    def say(self, text: str) -> None:
        """Tell the model something. Raises ControlError when there is no text, or the run is over."""
        self.control.say(text)

    def stop(self) -> None:
        """End the run and what it executes. Raises ControlError when it is over."""
        self.control.stop()

    def to_html(self, path: str | Path) -> Path:
        """Write the run with its files as one HTML file that opens anywhere, without a network.

        Raises:
            ExportError: the file cannot be written, or this installation lacks the page's script.
        """
        from llm_sandbox_nb import export_html

        return export_html(self, path)

    def to_dataframe(self) -> pandas.DataFrame:
        """One row for each tool call, and one for each step without any. Needs pandas."""
        try:
            import pandas
        except ImportError as error:
            raise ImportError("to_dataframe needs pandas: run `pip install pandas`.") from error
        rows = [row for step in self.steps for row in _rows(step)]
        return pandas.DataFrame(rows, columns=_COLUMNS)

    def __repr__(self) -> str:
        state = self.stop_reason or "not finished"
        answer = f", answer {_short(self.answer)!r}" if self.answer else ""
        files = f", {len(self.files)} files" if len(self.files) else ""
        state = f"{state} after {len(self.steps)} steps{answer}{files}"
        return f"<Run {_short(self.task)!r}: {state}, in {self.folder}>"


_COLUMNS = [
    "step", "call", "tool", "arguments", "output", "exit_code", "timed_out", "error", "duration",
    "changed_files", "thought", "reasoning", "prompt_tokens", "completion_tokens", "cost", "model_time",
    "finish_reason",
]  # fmt: skip


def _rows(step: Step) -> Iterator[dict[str, Any]]:
    usage = step.usage or ev.Usage()
    of_step = {
        "step": step.number,
        "thought": step.thought,
        "reasoning": step.reasoning,
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "cost": usage.cost,
        "model_time": step.model_time,
        "finish_reason": step.finish_reason,
    }
    if not step.calls:
        yield of_step
    for number, call in enumerate(step.calls):
        result = call.result
        yield of_step | {
            "call": number,
            "tool": call.tool,
            "arguments": call.arguments,
            "output": call.output,
            "exit_code": call.exit_code,
            "timed_out": bool(result and result.timed_out),
            "error": result.error if result else None,
            "duration": result.duration if result else None,
            "changed_files": [change.path for change in call.changes],
        }


def _short(text: str | None, length: int = 60) -> str:
    text = " ".join((text or "").split())
    return text if len(text) <= length else text[: length - 3] + "..."
