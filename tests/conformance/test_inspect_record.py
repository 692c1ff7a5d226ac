"""A sample of Inspect as a run of this package: its calls are steps that a notebook rewinds and forks."""

from __future__ import annotations

import asyncio
import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support import run

if find_spec("inspect_ai") is None and os.environ.get("LLM_SANDBOX_REQUIRE_ENGINES") != "1":
    pytest.skip("Inspect AI is not installed: pip install --group conformance", allow_module_level=True)

from llm_sandbox_nb.runs.run import Run

if TYPE_CHECKING:
    from inspect_ai.log import EvalSample

STORE_KEY = "llm_sandbox_nb_run"


def evaluated(folder: Path, **options: Any) -> list[EvalSample]:
    # Not at collection: each worker would spend three seconds on it.
    from inspect_ai import eval as run_tasks
    from inspect_ai.log import read_eval_log
    from inspect_ai.util import SandboxEnvironmentSpec
    from inspect_task import sums

    from llm_sandbox_nb.hosts.inspect_sandbox import SandboxConfig

    config = SandboxConfig(isolation="process", **options)
    task = sums()
    task.sandbox = SandboxEnvironmentSpec("llm-sandbox-nb", config)
    (log,) = run_tasks(task, limit=2, log_dir=str(folder / "logs"), display="none", log_format="eval")
    assert log.status == "success", log.error
    samples = read_eval_log(log.location).samples
    assert samples is not None
    return samples


def test_each_sample_is_opened_rewound_and_forked_from_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = evaluated(tmp_path, output_dir=str(tmp_path / "runs"))
    assert len({sample.store[STORE_KEY] for sample in samples}) == 2
    sample = samples[1]
    recorded = Run.load(sample.store[STORE_KEY])
    assert recorded.folder.parent.parent == tmp_path / "runs"
    assert (recorded.task, recorded.model) == (sample.input, "mockllm/model")
    assert (recorded.stop_reason, recorded.answer) == ("answered", sample.output.completion)
    [call] = [call for step in recorded.steps for call in step.calls if "sum.txt" in str(call.arguments)]
    assert call.output.strip() == str(int(sample.id) * 8)
    [step] = [step.number for step in recorded.steps if call in step.calls]
    assert [
        change.path.rpartition("/")[2] for change in recorded.steps[step - 1].calls[0].result.changes
    ] == ["sum.txt"]
    recorded.context.isolation_setting = "process"  # as in a notebook with this setting

    async def sum_after(at: int) -> str:
        other = await recorded.fork(at)
        try:
            return (await other.context.box.run("cat sum.txt 2>/dev/null")).text.strip()
        finally:
            await other.context.close()

    assert run(sum_after(step)) == str(int(sample.id) * 8)
    assert run(sum_after(step - 1)) == ""

    async def rewind() -> int:
        return (await recorded.rewind(step - 1)).step

    assert run(rewind()) == step - 1
    assert Run.load(recorded.folder).trajectory.steps_done == step - 1


def test_a_task_can_leave_the_record_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for sample in evaluated(tmp_path, record=False):
        assert STORE_KEY not in sample.store
    assert not (tmp_path / "sandbox-runs").exists()


def test_a_folder_that_cannot_be_made_does_not_end_the_sample(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for sample in evaluated(tmp_path, output_dir=str(tmp_path / "file" / "runs")):
        assert sample.error is None
        assert STORE_KEY not in sample.store


def test_a_program_may_exit_with_the_code_of_a_file_that_cannot_be_executed(tmp_path: Path) -> None:
    from llm_sandbox_nb.hosts.inspect_sandbox import InspectSandbox
    from llm_sandbox_nb.sandbox.open import open_sandbox

    async def check() -> None:
        async with open_sandbox("process") as sandbox:
            box = InspectSandbox(sandbox)
            await box.write_file("script", "ls")
            for command, said in (("echo done; exit 126", "done"), ("./script; echo left; exit 126", "left")):
                result = await box.exec(["sh", "-c", command])
                assert (result.success, result.returncode, result.stdout.strip()) == (False, 126, said)
            for command in ("./script", "/"):
                with pytest.raises(PermissionError):
                    await box.exec([command])

    run(check())


@pytest.mark.parametrize("place", ["begin", "finish"])
def test_a_sandbox_is_closed_even_if_its_record_is_interrupted(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from llm_sandbox_nb.hosts import inspect_sandbox
    from llm_sandbox_nb.sandbox.contract import Sandbox
    from llm_sandbox_nb.sandbox.open import open_sandbox

    opened: list[Sandbox] = []

    async def opening(*args: Any, **options: Any) -> Sandbox:
        opened.append(await open_sandbox(*args, **options))
        return opened[0]

    async def interrupted(*args: Any, **options: Any) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(inspect_sandbox, "open_sandbox", opening)
    config = inspect_sandbox.SandboxConfig(isolation="process", output_dir=str(tmp_path))

    async def sample() -> None:
        host = inspect_sandbox.InspectSandbox
        with monkeypatch.context() as patch:
            if place == "begin":
                patch.setattr(inspect_sandbox.SampleRecord, "begin", interrupted)
            boxes = await host.sample_init("task", config, {})
        monkeypatch.setattr(inspect_sandbox.SampleRecord, "finish", interrupted)
        await host.sample_cleanup("task", config, boxes, True)

    with pytest.raises(asyncio.CancelledError):
        run(sample())
    assert [Path(sandbox.directories.root).exists() for sandbox in opened] == [False]
