"""The environment for Harbor in a real container, called as Harbor calls it, with a stand-in for its base class.

With Harbor itself, which needs Python 3.12, nothing is tested here; see docs/how-to/harbor.md.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import harbor_stand_in as harbor
import pytest
from support import module_at, own_mark, require, run

from llm_sandbox_nb.sandbox.docker.images import DEFAULT_IMAGE
from llm_sandbox_nb.sandbox.errors import SandboxUserError

MODULE = Path(__file__).parents[2] / "integrations" / "harbor" / "llm_sandbox_harbor.py"


@pytest.fixture
def environment_class(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, module in harbor.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    return module_at(MODULE).LLMSandboxEnvironment


@pytest.fixture
def make(environment_class: Any, tmp_path: Path) -> Callable[..., Any]:
    """Makes an environment of a task in `tmp_path`."""
    folder = tmp_path / "environment"
    folder.mkdir()

    def made(policy: harbor.NetworkPolicy | None = None, **config: Any) -> Any:
        return environment_class(
            environment_dir=folder,
            environment_name="a-task",
            session_id="a-task__1__env",
            trial_paths=None,
            task_env_config=harbor.EnvironmentConfig(**config),
            auto_mounts=[{"type": "bind", "target": "/logs/agent", "source": "/nowhere"}],
            network_policy=policy or harbor.NetworkPolicy(harbor.NetworkMode.NO_NETWORK),
        )

    return made


@asynccontextmanager
async def started(environment: Any, *, force_build: bool = False) -> AsyncIterator[Any]:
    await environment.start(force_build=force_build)
    try:
        yield environment
    finally:
        await environment.stop(delete=True)


def test_the_methods_have_the_signatures_that_harbor_calls(environment_class: Any) -> None:
    for name, expected in harbor.SIGNATURES.items():
        found = [*inspect.signature(getattr(environment_class, name)).parameters][1:]
        assert found == expected, name
        ours, theirs = getattr(environment_class, name), getattr(harbor.BaseEnvironment, name)
        assert inspect.iscoroutinefunction(ours) == inspect.iscoroutinefunction(theirs), name
    assert environment_class.__abstractmethods__ == frozenset()


def test_a_task_that_it_cannot_run_is_refused(make: Callable[..., Any], tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no environment definition"):
        make()
    (tmp_path / "environment" / "docker-compose.yaml").write_text("services: {}")
    with pytest.raises(ValueError, match="needs --env docker"):
        make(docker_image=DEFAULT_IMAGE)


def in_docker(work: Coroutine[Any, Any, None]) -> None:
    require("docker")
    run(work, timeout=300)


@pytest.mark.docker
def test_a_trial_in_a_prebuilt_image(make: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "environment" / "data.txt").write_text("of the task")

    async def work() -> None:
        async with started(
            make(docker_image=DEFAULT_IMAGE, workdir="/app", env={"TASK": "t"}, memory_mb=512)
        ) as box:
            done = await box.exec(
                "pwd; cat data.txt; echo $TASK $MORE; echo no >&2; exit 3", env={"MORE": "m"}
            )
            assert (done.return_code, done.stderr) == (3, "no\n")
            assert done.stdout == "/app\nof the taskt m\n"
            assert (await box.exec("touch /logs/agent/a && pwd", cwd="/tmp")).stdout == "/tmp\n"
            assert (await box.exec("id -un", user="nobody")).stdout == "nobody\n"
            box.default_user = "nobody"
            assert (await box.exec("id -un")).stdout == "nobody\n"
            box.default_user = None
            with pytest.raises(SandboxUserError):
                await box.exec("true", user="no-such-user")
            with pytest.raises(RuntimeError, match="timed out after 1 seconds"):
                await box.exec(f"sleep {own_mark()}", timeout_sec=1)  # a time-out is what is tested

            started_there = await box.exec(f"setsid nohup sleep {own_mark()} >/dev/null 2>&1 & echo $!")
            assert (await box.exec(f"kill -0 {started_there.stdout}")).return_code == 0

            seen: list[tuple[str, str]] = []

            async def callback(text: str, stream: str) -> None:
                seen.append((text, stream))

            with box.scoped_output_callback(callback):
                await box.exec("echo out; echo err >&2")
            assert seen == [("out\n", "stdout"), ("err\n", "stderr")]
            assert box.sandbox.protection.memory_bytes == 512 * 1024**2
            assert box.sandbox.protection.network == "none"

    in_docker(work())


@pytest.mark.docker
def test_files_are_copied_both_ways(make: Callable[..., Any], tmp_path: Path) -> None:
    async def work() -> None:
        script, tests = tmp_path / "solve.sh", tmp_path / "tests"
        script.write_text("#!/bin/sh\necho solved\n")
        script.chmod(0o755)
        (tests / "deep").mkdir(parents=True)
        (tests / "deep" / "t.py").write_text("1")
        async with started(make(docker_image=DEFAULT_IMAGE)) as box:
            await box.upload_file(script, "/oracle/solve.sh")
            assert (await box.exec("/oracle/solve.sh")).stdout == "solved\n"
            await box.upload_dir(tests, "/tests")
            assert (await box.exec("cat /tests/deep/t.py")).stdout == "1"
            await box.exec(
                "mkdir -p /logs/verifier/d; echo 1 > /logs/verifier/reward.txt; ln -s / /logs/verifier/l"
            )
            await box.download_file("/logs/verifier/reward.txt", tmp_path / "new" / "r.txt")
            assert (tmp_path / "new" / "r.txt").read_text() == "1\n"
            await box.download_dir("/logs/verifier", tmp_path / "logs")
            assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["d", "reward.txt"]
        with pytest.raises(RuntimeError, match=r"call start\(\) first"):
            await box.exec("true")

    in_docker(work())


@pytest.mark.docker
def test_a_dockerfile_is_built(make: Callable[..., Any], tmp_path: Path) -> None:
    definition = tmp_path / "environment" / "Dockerfile"

    async def work() -> None:
        definition.write_text(f"FROM {DEFAULT_IMAGE}\nWORKDIR /srv/app\nRUN echo built > made.txt\n")
        async with started(make()) as box:
            assert (await box.exec("pwd; cat made.txt")).stdout == "/srv/app\nbuilt\n"
        definition.write_text(f"FROM {DEFAULT_IMAGE}\nRUN exit 7\n")
        with pytest.raises(harbor.SandboxBuildFailedError, match="Dockerfile cannot be built"):
            await make().start(force_build=False)

    in_docker(work())
