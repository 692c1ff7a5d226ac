"""Folder of a training, with its configuration, a line for each step, and the rollouts, which are recorded as runs.

RUN/
  config.yaml         every key with its value
  inputs.json         digests of rows, prompts and reward
  lock                locked by the process that trains in this folder
  steps.jsonl         the figures of each step
  validations.jsonl   the score of each validation, a line for each task
  validation/         the runs of each validation
  rollouts/step-0001/ rollouts.jsonl (the table), and the folder of each rollout's run
  checkpoints/        weights, and states of optimizer and random numbers, from which a training resumes
  start/, end/        the policy before the first and after the last step
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from llm_sandbox_nb.analysis.behaviour import behaviour_of
from llm_sandbox_nb.analysis.capability_rules import CAPABILITIES
from llm_sandbox_nb.benchmark.results import ResultsError, append_line, read_lines
from llm_sandbox_nb.benchmark.results_folder import LOCK, FolderLock
from llm_sandbox_nb.errors import LLMSandboxError
from llm_sandbox_nb.own_folder import expanded
from llm_sandbox_nb.training.config import TrainingConfig, load_config
from llm_sandbox_nb.training.rollouts import LOST, Rollout
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.journal import Journal
from llm_sandbox_nb.trajectory.whole_file import write_whole

CONFIG = "config.yaml"
INPUTS = "inputs.json"
STEPS = "steps.jsonl"
VALIDATIONS = "validations.jsonl"
VALIDATION = "validation"
ROLLOUTS = "rollouts"
TABLE = "rollouts.jsonl"
CHECKPOINTS = "checkpoints"
START, END = "start", "end"
COMPLETE = "complete"
"""Name of the file that is written last. A checkpoint or policy with this file is complete."""
_STEP_FOLDER = re.compile(r"step-(\d+)$")


class RecordError(LLMSandboxError, ValueError):
    """Error for a training's folder that cannot be used. The message is one sentence with the remedy."""


@dataclasses.dataclass(frozen=True)
class RolloutRow:
    """Rollout as a row in the table of its step."""

    step: int
    place: int
    group: str
    reward: float | None
    advantage: float | None
    stop_reason: str
    turns: int
    model_tokens: int
    environment_tokens: int
    tool_time: float
    seconds: float
    attempts: int
    answer: str
    detail: str
    run: str
    """Folder of the run, relative to the training's folder. Empty if the rollout was lost."""


class TrainingRecord:
    """Reader and writer of a training's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock: FolderLock | None = None

    @classmethod
    def begin(cls, folder: Path, config: TrainingConfig, *, alone: bool = False) -> TrainingRecord:
        """Begin a training in a folder. If the folder has a training with the same configuration, resume that training.

        Only the number of steps, the options of validations and the options in `record` may differ.

        Args:
            folder: folder of the training. The folder need not exist.
            config: configuration of the training.
            alone: True to lock the folder against other starts until `release` or the end of this process.

        Raises:
            RecordError: if the folder holds another training or other files, or another start is using the folder.
        """
        record = cls(folder)
        file = folder / CONFIG
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RecordError(
                f"A training cannot be written to {folder} ({error.strerror or error}): choose another --out."
            ) from error
        # The processes of a training share its folder. Another of these processes may be writing these files now.
        allowed = (CONFIG, INPUTS, LOCK, f".{CONFIG}", f".{INPUTS}")
        if not file.is_file() and any(not one.name.startswith(allowed) for one in folder.iterdir()):
            raise RecordError(f"{folder} is not empty and does not hold a training: give another --out.")
        if alone:
            try:
                record._lock = FolderLock(folder)
            except ResultsError as error:
                raise RecordError(str(error)) from error
        try:
            record._write_config(config)
        except BaseException:
            record.release()
            raise
        return record

    def _write_config(self, config: TrainingConfig) -> None:
        folder = self.folder
        file = folder / CONFIG
        if file.is_file():
            before = load_config(file)
            same = dataclasses.replace(
                before, steps=config.steps, record=config.record, validation=config.validation
            )
            if same != config:
                raise RecordError(
                    f"{folder} holds a training with another configuration: give another --out, or resume that "
                    f"training with its own {CONFIG}."
                )
        write_whole(file, config.as_yaml().encode())

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def check_inputs(self, inputs: Mapping[str, str]) -> None:
        """Store digests of a training's inputs. If the training has begun, check that the digests are still the same.

        Raises:
            RecordError: if a digest has changed after the first step.
        """
        path = self.folder / INPUTS
        if path.is_file() and (self.steps() or self.newest_checkpoint()):
            before = json.loads(path.read_text("utf-8"))
            if changed := [name for name in inputs if before.get(name) != inputs[name]]:
                raise RecordError(
                    f"The {changed[0]} of the training in {self.folder} have changed since it began: give another "
                    f"--out, or restore the {changed[0]} to resume it."
                )
        write_whole(path, json.dumps(dict(inputs), indent=2).encode())

    @classmethod
    def load(cls, folder: str | Path) -> TrainingRecord:
        """Load the folder of an existing training. Raise RecordError if the folder contains no training."""
        path = expanded(folder)
        if not (path / CONFIG).is_file():
            raise RecordError(f"There is no training in {path}: give the folder that `train run` printed.")
        return cls(path)

    @classmethod
    def around(cls, path: str | Path) -> TrainingRecord:
        """Find the training that contains a folder, such as a checkpoint, a rollout or a fork of a rollout.

        Raises:
            RecordError: if no training contains the folder.
        """
        folder = expanded(path).absolute()
        for parent in (folder, *folder.parents[:5]):
            if (parent / CONFIG).is_file():
                return cls(parent)
        raise RecordError(
            f"{path} is not a training and not in the folder of one: give the folder that `train run` printed."
        )

    @property
    def config(self) -> TrainingConfig:
        return load_config(self.folder / CONFIG)

    @property
    def checkpoints(self) -> Path:
        return self.folder / CHECKPOINTS

    def newest_checkpoint(self) -> tuple[int, Path] | None:
        """Return the step and the folder of the newest complete checkpoint, or None if there is none."""
        found = [
            (int(path.name.rpartition("-")[2]), path)
            for path in self.checkpoints.glob("checkpoint-*")
            if (path / COMPLETE).is_file() and path.name.rpartition("-")[2].isdigit()
        ]
        return max(found, default=None)

    def newest_policy(self) -> Path:
        """Return the folder of the trained policy, or of the newest checkpoint if the training has not ended.

        Raises:
            RecordError: if there is no checkpoint yet.
        """
        if (self.folder / END / COMPLETE).is_file():
            return self.folder / END
        newest = self.newest_checkpoint()
        if newest is None:
            raise RecordError(f"The training in {self.folder} has no checkpoint yet: wait for one.")
        return newest[1]

    # --- steps ---

    def steps(self) -> list[dict[str, Any]]:
        return read_lines(self.folder / STEPS)

    def add_step(self, figures: Mapping[str, Any]) -> None:
        """Append the figures of a step to the file of all steps."""
        append_line(self.folder / STEPS, dict(figures))

    def forget_after(self, step: int) -> None:
        """Remove all figures and rollouts of the steps after `step`, because a resume repeats these steps.

        If the training continues after `step`, also remove the policy in `end/`. It belongs to an earlier start with
        fewer steps.
        """
        for file, figures in ((STEPS, self.steps()), (VALIDATIONS, self.validations())):
            lines = (json.dumps(line) + "\n" for line in figures if line["step"] <= step)
            write_whole(self.folder / file, "".join(lines).encode())
        for name in (ROLLOUTS, VALIDATION):
            for number, folder in self._step_folders(name):
                if number > step:
                    shutil.rmtree(folder, ignore_errors=True)
        if step < self.config.steps:
            shutil.rmtree(self.folder / END, ignore_errors=True)

    # --- validations ---

    def validations(self) -> list[dict[str, Any]]:
        return read_lines(self.folder / VALIDATIONS)

    def add_validation(self, figures: Mapping[str, Any]) -> None:
        append_line(self.folder / VALIDATIONS, dict(figures))

    def validation_folder(self, step: int, task: str) -> Path:
        return self.folder / VALIDATION / f"step-{step:04d}" / task

    # --- rollouts ---

    def step_folder(self, step: int) -> Path:
        return self.folder / ROLLOUTS / f"step-{step:04d}"

    def add_rollouts(
        self, step: int, rollouts: Sequence[Rollout], advantages: Sequence[float], first: int = 0
    ) -> list[RolloutRow]:
        """Write the reward and the advantage of each rollout to its journal and to the table of the step.

        Several processes may write the table of a step. `first` is the index in the table of the first of `rollouts`.
        """
        rows = []
        for place, (rollout, advantage) in enumerate(zip(rollouts, advantages, strict=True), first):
            used = None if rollout.reward is None else advantage
            if rollout.folder is not None:
                _reward_run(rollout, step, used)
            row = self._row(step, place, rollout, used)
            append_line(self.step_folder(step) / TABLE, dataclasses.asdict(row))
            rows.append(row)
        return rows

    def rollouts(self, step: int) -> list[RolloutRow]:
        """Return the table of a step. The table is empty if the rollouts of the step are no longer stored."""
        names = {field.name for field in dataclasses.fields(RolloutRow)}
        rows = read_lines(self.step_folder(step) / TABLE)
        return [RolloutRow(**{key: row[key] for key in names}) for row in rows]

    def prune(self, keep: int) -> None:
        """Remove the rollouts of all but the newest `keep` steps, and of all but the newest `keep` validations.

        If `keep` is 0, nothing is removed.
        """
        for name in (ROLLOUTS, VALIDATION):
            folders = sorted(self._step_folders(name))
            for _, folder in folders[: -keep or len(folders)] if keep else ():
                shutil.rmtree(folder, ignore_errors=True)

    def _step_folders(self, name: str) -> Iterator[tuple[int, Path]]:
        for path in (self.folder / name).glob("step-*"):
            if match := _STEP_FOLDER.search(path.name):
                yield int(match[1]), path

    def _row(self, step: int, place: int, rollout: Rollout, advantage: float | None) -> RolloutRow:
        mask = rollout.conversation.mask
        return RolloutRow(
            step=step,
            place=place,
            group=rollout.row.id,
            reward=rollout.reward,
            advantage=advantage,
            stop_reason=rollout.stop_reason,
            turns=rollout.turns,
            model_tokens=sum(mask),
            environment_tokens=len(mask) - sum(mask),
            tool_time=rollout.tool_time,
            seconds=rollout.seconds,
            attempts=rollout.attempts,
            answer=(rollout.answer or "")[:500],
            detail=rollout.detail[:500],
            run=""
            if rollout.folder is None
            else rollout.folder.relative_to(self.folder.absolute()).as_posix(),
        )


def _reward_run(rollout: Rollout, step: int, advantage: float | None) -> None:
    assert rollout.folder is not None
    event = ev.Rewarded(
        parent=rollout.trajectory.head if rollout.trajectory else None,
        training_step=step,
        group=rollout.row.id,
        reward=rollout.reward,
        advantage=advantage,
        detail=str(ev.clean_text(rollout.detail[:2000])),
    )
    journal = Journal(rollout.folder)
    try:
        journal.append(event)
    finally:
        journal.close()


def step_figures(step: int, rollouts: Sequence[Rollout]) -> dict[str, Any]:
    """Summarize the rollouts of a step: reward, turns, tokens, capability use and stop reasons."""
    rewards = [rollout.reward for rollout in rollouts if rollout.reward is not None]
    ended = [rollout for rollout in rollouts if rollout.stop_reason != LOST]
    groups: dict[str, list[float]] = {}
    for rollout in rollouts:
        if rollout.reward is not None:
            groups.setdefault(rollout.row.id, []).append(rollout.reward)
    figures: dict[str, Any] = {
        "step": step,
        "rollouts": len(rollouts),
        "reward": _mean(rewards),
        "reward_std": statistics.pstdev(rewards) if rewards else None,
        "reward_min": min(rewards, default=None),
        "reward_max": max(rewards, default=None),
        "groups": len(groups),
        "groups_alike": sum(len(set(group)) == 1 for group in groups.values()),
        "turns": _mean([rollout.turns for rollout in ended]),
        "turns_max": max((rollout.turns for rollout in ended), default=0),
        "model_tokens": _mean([sum(rollout.conversation.mask) for rollout in ended]),
        "environment_tokens": _mean(
            [len(rollout.conversation.mask) - sum(rollout.conversation.mask) for rollout in ended]
        ),
        "stops": dict(Counter(rollout.stop_reason for rollout in rollouts)),
        "lost": len(rollouts) - len(ended),
        "unscored": len(ended) - len(rewards),
        "tool_time_max": max((rollout.tool_time for rollout in ended), default=0.0),
    }
    behaviours = [behaviour_of(rollout.trajectory) for rollout in ended if rollout.trajectory is not None]
    turns = [turn for behaviour in behaviours for turn in behaviour.turns]
    figures["capabilities"] = {
        name: sum(name in turn.attempted for turn in turns) / len(turns) if turns else 0.0
        for name in CAPABILITIES
    }
    figures["tools"] = dict(
        Counter(tool for behaviour in behaviours for tool in behaviour.tool_mix.elements())
    )
    return figures


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
