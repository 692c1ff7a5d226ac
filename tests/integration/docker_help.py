"""Small helpers for the tests of Docker alone."""

from __future__ import annotations

import contextlib
import io
import secrets
import tarfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

from llm_sandbox_nb.sandbox.client import ChannelSandbox
from llm_sandbox_nb.sandbox.docker import engine
from llm_sandbox_nb.sandbox.docker.engine import connect
from llm_sandbox_nb.sandbox.docker.ownership import LABEL_OWNER, current_owner
from llm_sandbox_nb.sandbox.docker.sandbox import start as start_docker_sandbox
from llm_sandbox_nb.sandbox.options import SandboxOptions


@asynccontextmanager
async def docker_box(
    *, labels: dict[str, str] | None = None, **options: Any
) -> AsyncIterator[ChannelSandbox]:
    lease = options.pop("lease", 45.0)
    box = await start_docker_sandbox(SandboxOptions("docker", **options), labels=labels, lease=lease)
    try:
        yield box
    finally:
        await box.close()


def container_ids() -> set[str]:
    """Every sandbox of this process on the engine, in any state; others may use the engine too."""
    mine = f"{LABEL_OWNER}={current_owner().token()}"
    return {container["Id"] for container in connect().api.containers(all=True, filters={"label": mine})}


def files_in_tar(**files: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            member.mode = 0o755
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


@contextlib.contextmanager
def image_from(base: str, instructions: str) -> Iterator[str]:
    """An image made of another one by Dockerfile instructions; it is removed again."""
    client = connect()
    dockerfile = f"FROM {base}\n{instructions}\n".encode()
    tag = f"llm-sandbox-nb-test:{secrets.token_hex(4)}"
    client.images.build(fileobj=io.BytesIO(dockerfile), tag=tag, rm=True, forcerm=True)
    try:
        yield tag
    finally:
        client.images.remove(tag, force=True)


@contextlib.contextmanager
def bystander(**settings: Any) -> Iterator[Any]:
    """A container that is not ours; `started=False` leaves it in the state `created`."""
    started = settings.pop("started", True)
    client = connect()
    container = client.containers.create(
        settings.pop("image"), ["sleep", "infinity"], network_mode="none", **settings
    )
    try:
        if started:
            container.start()
        yield container
    finally:
        container.remove(force=True)


def disconnect() -> None:
    """Close all clients of `connect`, so that the next call connects to the engine of DOCKER_HOST anew."""
    while engine._clients:
        engine._clients.popitem()[1].close()
    engine.close_tunnels()


def one_sentence(error: BaseException) -> str:
    text = str(error)
    assert "\n" not in text
    assert "Traceback" not in text
    assert text.endswith(".")
    assert len(text) < 500
    return text
