"""Tasks with the prompts of the paper's package; data, scorer and limits stay those of this package."""

from __future__ import annotations

from dataclasses import replace

from llm_sandbox_nb.agent.original_prompts import ORIGINAL, as_original, original_folder
from llm_sandbox_nb.benchmark.task import TASKS, Task, TaskError, load_task


def with_original_prompts(task: Task) -> Task:
    """Return the task with the prompts of the original package, for both modes.

    Raises:
        InputError: if the original package is not installed.
        TaskError: if the original package does not have the task.
    """
    tasks = original_folder() / "benchmark"
    if task.folder.parent != TASKS.resolve() or not (tasks / task.name / "config.yaml").is_file():
        known = ", ".join(sorted(path.parent.name for path in tasks.glob("*/config.yaml")))
        raise TaskError(f"{ORIGINAL} has no prompts for the task {task.name}: it has {known}.")
    original = load_task(str(tasks / task.name))
    return replace(task, prompts=as_original(original.prompts), asker=original.asker)
