"""What a person reads when Docker cannot do it: one sentence that says what to do; nothing stays behind."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker_help import container_ids, docker_box, files_in_tar, image_from, one_sentence
from support import run, until

from llm_sandbox_nb.sandbox.contract import Directories
from llm_sandbox_nb.sandbox.docker.api import APIError
from llm_sandbox_nb.sandbox.docker.engine import connect, engine_version
from llm_sandbox_nb.sandbox.docker.images import (
    BASE_IMAGE,
    DEFAULT_IMAGE,
    SLIM_IMAGE,
    _run_check,
    check_image,
)
from llm_sandbox_nb.sandbox.docker.sandbox import start as start_docker_sandbox
from llm_sandbox_nb.sandbox.errors import (
    ImageError,
    IsolationUnavailableError,
    SandboxError,
    SandboxLostError,
)
from llm_sandbox_nb.sandbox.options import SandboxOptions

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("docker_engine")]


def start_fails(kind: type[SandboxError], **options: object) -> str:
    async def body() -> None:
        async with docker_box(**options):
            pass

    before = container_ids()
    with pytest.raises(kind) as caught:
        run(body())
    assert container_ids() <= before
    return one_sentence(caught.value)


@pytest.fixture(params=["unix", "tcp"])
def dead_engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    where = f"unix://{tmp_path}/none.sock" if request.param == "unix" else f"tcp://127.0.0.1:{port}"
    monkeypatch.setenv("DOCKER_HOST", where)
    return where


def test_a_dead_engine_is_named_without_the_classes_of_libraries(dead_engine: str) -> None:
    with pytest.raises(IsolationUnavailableError) as caught:
        run(start_docker_sandbox(SandboxOptions("docker")))
    assert one_sentence(caught.value).startswith(f"No Docker engine answers at {dead_engine}: start it")
    with pytest.raises(IsolationUnavailableError, match="start it, or set DOCKER_HOST") as caught:
        engine_version()
    said = str(caught.value)
    assert said.endswith(("(connection refused).", "(no such file or directory)."))
    assert "`llm-sandbox-nb doctor`" in said
    assert "Error(" not in said.replace(dead_engine, "")


@pytest.fixture
def mute_engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{server.getsockname()[1]}")
        yield


@pytest.mark.usefixtures("mute_engine")
def test_engine_that_does_not_answer() -> None:
    with pytest.raises(IsolationUnavailableError) as caught:
        engine_version(timeout=1)  # a time-out is what is tested: no answer ever comes
    assert "does not answer: wait until it has less work, or restart it" in one_sentence(caught.value)


def test_docker_host_that_makes_no_sense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "nonsense://here")
    with pytest.raises(IsolationUnavailableError) as caught:
        engine_version()
    assert "DOCKER_HOST" in one_sentence(caught.value)


def test_tls_files_that_are_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(tmp_path))
    with pytest.raises(IsolationUnavailableError) as caught:
        engine_version()
    assert "DOCKER_CERT_PATH" in one_sentence(caught.value)


def test_missing_image_names_the_command() -> None:
    assert start_fails(ImageError, image="nobody/nothing:1").endswith(
        "fetch it with `llm-sandbox-nb image pull nobody/nothing:1`."
    )
    assert start_fails(ImageError, image="No Such Image")


def test_missing_own_image_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_sandbox_nb.sandbox.docker.images.DEFAULT_IMAGE", "llm-sandbox-nb:not-built")
    assert "`llm-sandbox-nb image build`" in start_fails(ImageError, image="llm-sandbox-nb:not-built")


def test_image_without_python() -> None:
    assert start_fails(ImageError, image=BASE_IMAGE) == (
        f"The image {BASE_IMAGE} has no python3, which every sandbox needs: "
        f"install it in the image, or use {DEFAULT_IMAGE}."
    )
    assert "has no python3" in check_image(BASE_IMAGE).problem


def test_image_without_bash() -> None:
    with image_from(SLIM_IMAGE, "RUN rm -f /bin/bash /usr/bin/bash") as name:
        for profile in ("standard", "strict"):
            assert "has no bash, which" in start_fails(ImageError, image=name, profile=profile)
        assert "has no bash, which" in check_image(name).problem


def test_image_without_anything() -> None:
    client = connect()
    client.api.import_image_from_data(
        files_in_tar(readme=b"empty"), repository="llm-sandbox-nb-test", tag="empty"
    )
    name = "llm-sandbox-nb-test:empty"
    try:
        assert "has no" in start_fails(ImageError, image=name)
        assert "has no bash and no python3" in check_image(name).problem
    finally:
        client.images.remove(name)


def test_image_with_an_ancient_python() -> None:
    python = "rm /usr/bin/python3 && printf '#!/bin/sh\\necho 3.5.2\\n' > /usr/bin/python3"
    pretend = f"RUN {python} && chmod +x /usr/bin/python3"
    with image_from(SLIM_IMAGE, pretend) as name:
        assert "has Python 3.5.2, and a sandbox needs 3.8 or later" in start_fails(ImageError, image=name)


def test_other_image_with_bash_and_python_works_as_ordinary_user() -> None:
    """Nothing of ours in it: no user 1000, no /testbed."""
    bare = "RUN userdel -r user && rm -rf /testbed"

    async def body(name: str) -> None:
        directories = Directories("/work space")
        async with docker_box(image=name, profile="strict", directories=directories) as box:
            assert (await box.run("touch output/x ~/y && pwd && id -u")).stdout == b"/work space\n1000\n"

    with image_from(SLIM_IMAGE, bare) as name:
        run(body(name))


def test_an_engine_that_lists_no_networks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy in front of an engine's socket can forbid some requests."""

    def refuse(*_: object, **__: object) -> None:
        raise APIError("403 Forbidden")

    monkeypatch.setattr(connect().api, "networks", refuse)
    assert "refused to make a container: 403 Forbidden" in start_fails(SandboxError)


def test_an_image_that_prints_without_an_end_fills_no_memory() -> None:
    endless = '#!/usr/bin/python3\\nfor _ in range(500): print("x" * 100000)\\n'
    with image_from(
        SLIM_IMAGE, f"RUN rm /bin/sh && printf '{endless}' > /bin/sh && chmod +x /bin/sh"
    ) as name:
        assert sum(map(len, _run_check(name))) < 2_000_000
        assert "has no bash and no python3" in check_image(name).problem


def test_an_image_whose_shell_does_not_end_is_no_dead_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "llm_sandbox_nb.sandbox.docker.images.CHECK_TIMEOUT", 1
    )  # a time-out is what is tested
    endless = "#!/usr/bin/python3\\nimport time\\ntime.sleep(3600)\\n"
    with image_from(
        SLIM_IMAGE, f"RUN rm /bin/sh && printf '{endless}' > /bin/sh && chmod +x /bin/sh"
    ) as name:
        assert "has no bash and no python3" in check_image(name).problem


def test_a_check_shows_only_short_texts_of_an_image(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        "shell sh -",
        "program bash 5.2",
        "program python3 \u00b2.\u00b2",
        "program git \x1b[2J",
        f"package a {'1' * 999}",
    ]
    monkeypatch.setattr("llm_sandbox_nb.sandbox.docker.images._run_check", lambda name: lines)
    found = check_image(SLIM_IMAGE)
    assert "a sandbox needs 3.8 or later" in found.problem
    assert {*found.programs} == {"bash", "python3"}
    assert found.packages == {}


def test_container_removed_in_use() -> None:
    async def body() -> str:
        async with docker_box() as box:
            begun = asyncio.Event()
            running = asyncio.create_task(
                box.run("echo begun; sleep infinity", on_output=lambda *_: begun.set())
            )
            await begun.wait()
            connect().api.remove_container(box.protection.details["container"], force=True)
            with pytest.raises(SandboxLostError) as caught:
                await running
            with pytest.raises(SandboxLostError):
                await box.read_file("/etc/hostname")
            await box.close()
            return one_sentence(caught.value)

    assert run(body()).startswith("The sandbox is lost: ")


def test_killed_from_outside_in_use() -> None:
    async def body() -> None:
        async with docker_box() as box:
            connect().api.kill(box.protection.details["container"])
            with pytest.raises(SandboxLostError):
                await box.run("echo too late")

    before = container_ids()
    run(body())
    assert container_ids() <= before


def test_cancelled_start_leaves_nothing() -> None:
    """Cancelled at its start, when its container is made, and when that runs."""
    token = secrets.token_hex(4)

    def containers() -> list[str]:
        found = connect().api.containers(all=True, filters={"label": f"llm-sandbox-nb.test={token}"})
        return [one["State"] for one in found]

    async def body(state: str) -> None:
        starting = asyncio.create_task(start_docker_sandbox(SandboxOptions("docker"), labels={"test": token}))
        if state:
            await asyncio.to_thread(until, lambda: state in containers() or starting.done())
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await (await starting).close()

    for state in ("", "created", "running"):
        run(body(state))
        assert containers() == []
