"""Runs to go back in, and what is looked at then."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import support
from agent_scripts import SUBMIT, bash, script, turn
from talking_model import TalkingModel

from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.runs.solve import solve
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.open import open_sandbox


def awaited(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a test of a coroutine function. `box`, if it takes one, is a sandbox of its isolation, or of `process`."""
    signature = inspect.signature(test)
    fixtures = [one for one in signature.parameters.values() if one.name != "box"]

    @functools.wraps(test)
    def waiting(**given: Any) -> None:
        async def body() -> None:
            if len(fixtures) == len(signature.parameters):
                return await test(**given)
            isolation = given.get("isolation") or given.get("some_isolation") or "process"
            async with open_sandbox(isolation) as box:
                await test(box, **given)
            return None

        support.run(body(), timeout=180)

    waiting.__signature__ = signature.replace(parameters=fixtures)  # type: ignore[attr-defined]
    return waiting


def writes(count: int) -> list[dict[str, Any]]:
    """Turns that leave a new file, a longer one, a variable and a file of the output each; then submit."""
    made = [
        turn(
            bash(
                f"echo {number} > new{number}.txt; echo {number} >> log.txt; export NUMBER={number}; "
                f"echo {number} > output/last.txt"
            ),
            text=f"Turn {number}.",
        )
        for number in range(1, count + 1)
    ]
    return [*made, SUBMIT]


async def played_in(box: Sandbox, folder: Path, turns: Sequence[dict[str, Any]], **options: Any) -> Run:
    model = script(folder, *turns)
    return await solve(
        options.pop("task", "A task."),
        model=model,
        sandbox=box,
        isolation=box.protection.isolation,
        output_dir=folder / "runs",
        **options,
    )


async def talked(box: Sandbox, folder: Path, turns: int, **options: Any) -> Run:
    options = {"model": TalkingModel(turns), "isolation": box.protection.isolation} | options
    return await solve("A task.", sandbox=box, output_dir=folder, **options)


async def begun(box: Sandbox, folder: Path, **options: Any) -> tuple[Run, asyncio.Task[Run]]:
    """Begin a run in an open sandbox: the run, and the task that ends with it."""
    started: asyncio.Future[Run] = asyncio.get_running_loop().create_future()
    told = options.pop("on_run", lambda run: None)
    options = {"isolation": box.protection.isolation} | options
    options["on_run"] = lambda run: (told(run), started.set_result(run))
    work = asyncio.create_task(solve("A task.", sandbox=box, output_dir=folder, **options))
    return await started, work


async def files_of(box: Sandbox, folder: str | None = None) -> dict[str, bytes]:
    """All files below the working directory with their content, by their names below it."""
    root = folder or box.directories.root
    entries = await box.list_files(root, depth=8)
    return {
        entry.path.removeprefix(f"{root}/"): await box.read_file(entry.path)
        for entry in entries
        if entry.kind == "file"
    }


def same_as_loaded(run: Run) -> Run:
    """The run as its folder tells it: what every load has to give."""
    loaded = Run.load(run.folder)
    assert [event.id for event in loaded.trajectory.events] == [event.id for event in run.trajectory.events]
    assert loaded.trajectory.head == run.trajectory.head
    assert loaded.trajectory.steps == run.trajectory.steps
    assert loaded.trajectory.files == run.trajectory.files
    assert loaded.trajectory.uncovered == run.trajectory.uncovered
    assert loaded.attempts == run.attempts
    assert loaded.messages == run.messages
    return loaded
