"""A second executor in a container whose model is an ordinary user: root inside, for `exec(user=...)`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llm_sandbox_nb.sandbox.bootstrap import bootstrap_argv, executor_source
from llm_sandbox_nb.sandbox.capabilities import ROOT_INSIDE, keep_only
from llm_sandbox_nb.sandbox.channel import Channel, StreamTransport
from llm_sandbox_nb.sandbox.channel_sandbox import ChannelSandbox
from llm_sandbox_nb.sandbox.contract import Directories, Protection
from llm_sandbox_nb.sandbox.docker_attach import attach_exec
from llm_sandbox_nb.sandbox.docker_engine import connect, find_endpoint, in_thread, lost_errors

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ROOT = {"HOME": "/root", "USER": "root", "LOGNAME": "root"}


async def start_administrator(
    container: str, *, id: str, directories: Directories, protection: Protection
) -> ChannelSandbox:
    """Start it. It keeps, of all rights, those that root has in the profile `standard`.

    Raises:
        SandboxLostError: the container or the engine is gone.
    """
    client = await in_thread(connect)
    reader, writer = await attach_exec(
        find_endpoint(), client.api.api_version, await in_thread(_create, container)
    )
    transport = StreamTransport(reader, writer)
    transport.write_raw(executor_source())
    channel = Channel(transport)
    channel.why_ended = lambda: reader.stderr
    administrator = ChannelSandbox(
        channel,
        id=f"{id}-administrator",
        directories=directories,
        protection=protection,
        kill=_nothing,
        spill="/run/llm-sandbox",
    )
    try:
        await administrator.start()
    except BaseException:
        await administrator.close()
        raise
    return administrator


def _create(container: str) -> str:
    """As root it gets the container's rights, of which the model's processes have none."""
    *command, program = bootstrap_argv()
    with lost_errors("its container is gone"):
        client = connect()
        environment = _environment(client.api.inspect_container(container))
        made: dict[str, Any] = client.api.exec_create(
            container,
            [*command, f"{keep_only(ROOT_INSIDE)}\n{program}"],
            stdin=True,
            user="0:0",
            environment=environment,
            workdir="/",
        )
    return str(made["Id"])


def _environment(inspected: Mapping[str, Any]) -> dict[str, str]:
    """The container's own, but folders that only root writes come first where programs are searched."""
    pairs = (entry.partition("=") for entry in inspected["Config"].get("Env") or [])
    found = {name: value for name, _, value in pairs} | _ROOT
    return found | {"PATH": ":".join(filter(None, (_SYSTEM_PATH, found.get("PATH"))))}


async def _nothing() -> None:
    """It ends when its connection does, and at the latest with the container."""
