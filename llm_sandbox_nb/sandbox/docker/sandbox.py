"""Isolation `docker`: functions that start, adopt and end sandboxes in containers.

The executor is the container's first process. Before the container starts, the process that opens the sandbox attaches
to the executor's stdin and stdout. No file of this machine is mounted, so the engine may be on another machine.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, cast

from llm_sandbox_nb.sandbox.bootstrap import bootstrap_argv, executor_source
from llm_sandbox_nb.sandbox.capabilities import ROOT_INSIDE, keep_only
from llm_sandbox_nb.sandbox.cgroups import memory_peak_of_container
from llm_sandbox_nb.sandbox.client import AdministeredSandbox, ChannelSandbox
from llm_sandbox_nb.sandbox.contract import Directories, Protection, ResourceUsage, Sandbox
from llm_sandbox_nb.sandbox.docker.attach import attach, attach_exec
from llm_sandbox_nb.sandbox.docker.container import (
    CA_PATH,
    LABEL_PROFILE,
    LABEL_ROOT,
    Container,
    create_container,
    inspect_container,
    label_container,
    put_file,
    remove_container,
    start_container,
    take_over,
)
from llm_sandbox_nb.sandbox.docker.engine import (
    connect,
    engine_version,
    find_endpoint,
    in_thread,
    lost_errors,
)
from llm_sandbox_nb.sandbox.docker.images import DEFAULT_IMAGE, check_image, find_image, unusable
from llm_sandbox_nb.sandbox.docker.network import NetworkChangedError
from llm_sandbox_nb.sandbox.docker.ownership import list_own, reap_in_background, reap_orphans
from llm_sandbox_nb.sandbox.docker.protection import PROBED_FILES, describe_protection, read_probe
from llm_sandbox_nb.sandbox.docker.settings import PROFILES, ContainerSettings, Network
from llm_sandbox_nb.sandbox.errors import (
    ImageError,
    IsolationUnavailableError,
    SandboxError,
    SandboxLostError,
)
from llm_sandbox_nb.sandbox.network.door import DOOR_PORT
from llm_sandbox_nb.sandbox.options import (
    ROOT_ENVIRONMENT,
    SYSTEM_PATH,
    SandboxOptions,
    site_environment,
    stated_addresses,
)
from llm_sandbox_nb.sandbox.protocol.channel import LEASE, PING_EVERY, Channel, StreamTransport, last_line
from llm_sandbox_nb.sandbox.protocol.frames import ProtocolError
from llm_sandbox_nb.sandbox.seccomp import load_filter

__all__ = [
    "add_label",
    "adopt",
    "is_up_to_date",
    "list_own",
    "reap_orphans",
    "resource_usage",
    "start",
    "why_unavailable",
]
"""The functions that `open.AdoptingImplementation` describes."""

START_TIMEOUT = 60.0
"""Seconds in which the executor must answer the greeting."""
START_ATTEMPTS = 3
"""Maximum number of attempts to start a sandbox. A start fails if another process removes the shared network."""
_UNKNOWN_PROTECTION = Protection("docker", "", "", (), False, "", "", False, None, None, None)

logger = logging.getLogger(__name__)


async def why_unavailable(image: str | None) -> str:
    """See `Implementation.why_unavailable`."""
    try:
        await asyncio.to_thread(engine_version)
        await asyncio.to_thread(find_image, image or DEFAULT_IMAGE)
    except SandboxError as error:
        return str(error).rstrip(".")
    return ""


async def is_up_to_date(sandbox: Sandbox, options: SandboxOptions) -> bool:
    """See `Implementation.is_up_to_date`. Return False if the name of the image now belongs to a newer image."""
    image = await in_thread(find_image, options.image or DEFAULT_IMAGE)
    return bool(image["Id"] == sandbox.protection.details["image id"])


def resource_usage(sandbox: Sandbox) -> ResourceUsage:
    """See `Implementation.resource_usage`."""
    client: Any = connect()
    container = str(sandbox.protection.details["container"])
    inspected = client.api.inspect_container(container)
    (listed,) = client.api.containers(all=True, size=True, filters={"id": inspected["Id"]})
    memory = memory_peak_of_container(inspected["State"]["Pid"], inspected["Id"])
    if memory is None:
        # The engine may be on another machine. It reports the peak only with version 1 of control groups.
        memory = client.api.stats(container, stream=False, one_shot=True)["memory_stats"].get("max_usage")
    return ResourceUsage(memory, listed.get("SizeRw", 0))


async def start(
    options: SandboxOptions, *, labels: Mapping[str, str] | None = None, lease: float = LEASE
) -> ChannelSandbox:
    """Start a sandbox in a new container. The container ends if it hears nothing from its owner for `lease` seconds.

    Raises:
        IsolationUnavailableError: if no engine answers.
        ImageError: if the image is missing, or has no bash or python3.
        SandboxError: if the engine refuses a request.
        OSError: if the file `options.ca_bundle` cannot be read.
    """
    settings = _settings(options, labels or {})
    certificates = await asyncio.to_thread(options.ca_bundle.read_bytes) if options.ca_bundle else b""
    for attempts_left in reversed(range(START_ATTEMPTS)):
        try:
            sandbox = await _start_once(settings, certificates, lease)
            break
        except NetworkChangedError:
            if not attempts_left:
                raise
    reap_in_background()
    return sandbox


async def _start_once(settings: ContainerSettings, certificates: bytes, lease: float) -> ChannelSandbox:
    container = await _created(settings, certificates, lease)
    try:
        hello = {"disk": settings.limits.disk} | ({"door": settings.door} if settings.door else {})
        sandbox = await _attached(container, lease, hello=hello)
    except BaseException:
        await asyncio.shield(in_thread(remove_container, container.id))
        raise
    try:
        await _start_and_greet(sandbox, container, settings)
    except BaseException:
        await asyncio.shield(sandbox.close())
        raise
    return sandbox


async def adopt(container_id: str, *, lease: float = LEASE) -> ChannelSandbox:
    """Take over a running sandbox whose owner has ended, with its shell, processes and files.

    Raises:
        IsolationUnavailableError: if no engine answers.
        SandboxLostError: if the sandbox has ended meanwhile.
        SandboxError: if the container is not managed by this package, or its owner may still be running.
    """
    container = await in_thread(take_over, container_id)
    sandbox = await _attached(container, lease)
    try:
        await sandbox.start(adopt=True, timeout=START_TIMEOUT)
        inspected = await in_thread(inspect_container, container.id)
    except BaseException:
        await sandbox.channel.close(bye=False)
        raise
    sandbox.protection = _protection(sandbox, inspected, container.profile)
    return sandbox


async def add_label(sandbox: Sandbox, name: str, value: str) -> None:
    """See `AdoptingImplementation.add_label`."""
    await in_thread(label_container, str(sandbox.protection.details["container"]), name, value)


def _settings(options: SandboxOptions, labels: Mapping[str, str]) -> ContainerSettings:
    site = site_environment(options, CA_PATH if options.ca_bundle else None)
    directories = options.directories or Directories()
    return ContainerSettings(
        image=options.image or DEFAULT_IMAGE,
        profile=options.chosen_profile,
        network="none" if options.network == "allow" else cast(Network | None, options.network),
        door=DOOR_PORT if options.network == "allow" else 0,
        limits=options.resources,
        directories=directories,
        environment={**site, **options.env},
        stays_open=stated_addresses(options),
        labels={**labels, LABEL_PROFILE: options.chosen_profile, LABEL_ROOT: directories.root},
    )


async def _created(settings: ContainerSettings, certificates: bytes, lease: float) -> Container:
    """Make the container in a thread. If this task is cancelled, the container is removed in any case.

    If the container exists already, this coroutine removes it. Otherwise the thread removes it later, even if the event
    loop has ended by then.
    """
    lock = threading.Lock()
    made: list[Container] = []
    cancelled = False

    def create() -> Container:
        container = create_container(settings, certificates, lease)
        with lock:
            made.append(container)
            late = cancelled
        if late:
            remove_container(container.id)
        return container

    try:
        return await in_thread(create)
    except asyncio.CancelledError:
        with lock:
            cancelled = True
        if made:
            remove_container(made[0].id)
        raise


async def _attached(
    container: Container, lease: float, *, hello: Mapping[str, Any] | None = None
) -> ChannelSandbox:
    """Connect to the executor in a container, and return the sandbox. Do not send the greeting yet.

    `hello` has parameters of the greeting. It is None for an adopted sandbox, whose executor runs already.
    """
    client = connect()
    reader, writer = await attach(find_endpoint(), client.api.api_version, container.id)
    transport = StreamTransport(reader, writer)
    if hello is not None:
        transport.write_raw(executor_source())
    channel = Channel(transport, ping_every=min(PING_EVERY, lease / 4))

    def why_ended() -> str:
        last = last_line(reader.stderr)
        return f"its last message: {last}" if last else "the container was removed, or the engine stopped"

    channel.why_ended = why_ended
    common: dict[str, Any] = {
        "id": container.sandbox_id,
        "directories": container.directories,
        "protection": _UNKNOWN_PROTECTION,
        "kill": lambda: _end(container.id),
        "hello": {"lease": lease, "files": list(PROBED_FILES), "reach": True, **(hello or {})},
    }
    uid = PROFILES[container.profile].uid
    if uid == 0:
        sandbox = ChannelSandbox(channel, **common)
        # `put_file` changes the times of the container's top folder, and only root inside can restore these times.
        sandbox.deliver = partial(put_file, container.id)
        return sandbox
    return AdministeredSandbox(
        channel, own_names=(str(uid),), administrator=lambda: _start_administrator(container.id), **common
    )


async def _start_and_greet(
    sandbox: ChannelSandbox, container: Container, settings: ContainerSettings
) -> None:
    # The greeting is sent while the engine starts the container. This saves time, because the executor answers before
    # the engine reports that the container has started.
    greeting = asyncio.ensure_future(_greet(sandbox, settings.image))
    try:
        await in_thread(start_container, container.id, settings.image)
        inspected = await in_thread(inspect_container, container.id)
        await greeting
        sandbox.protection = _protection(sandbox, inspected, container.profile)
        if settings.chosen_network == "public" and sandbox.protection.network != "public":
            raise IsolationUnavailableError(
                "This engine cannot keep a sandbox away from its machine and the private network around it: use "
                "network='allow' with the hosts that the model needs, isolation='bubblewrap', network='none', or "
                "network='open' if the model may reach them."
            )
    finally:
        greeting.cancel()
        await asyncio.wait({greeting})


async def _greet(sandbox: ChannelSandbox, image: str) -> None:
    """Send the greeting to the executor.

    Raises:
        ImageError: if the image has no bash, or no python3 that can run the executor.
        SandboxLostError: if the executor does not answer for another reason.
    """
    try:
        await sandbox.start(timeout=START_TIMEOUT)
    except SandboxLostError as error:
        check = await in_thread(check_image, image)
        if not check.usable:
            raise ImageError(check.problem) from error
        raise
    if not sandbox.executor.get("bash"):
        raise ImageError(unusable(image, ["bash"]))


def _protection(sandbox: ChannelSandbox, inspected: Mapping[str, Any], profile: str) -> Protection:
    try:
        probe = read_probe(sandbox.executor.get("files") or {})
        return describe_protection(probe, inspected, profile, sandbox.executor)
    except ValueError as error:
        raise sandbox.broke_protocol(ProtocolError("its report of the kernel is invalid")) from error


async def _end(container: str) -> None:
    try:
        await in_thread(remove_container, container)
    except IsolationUnavailableError as error:
        logger.warning(
            "The sandbox %s could not be removed; it ends when its lease is over: %s", container[:12], error
        )


async def _start_administrator(container: str) -> tuple[Channel, Callable[[], Awaitable[None]]]:
    """Start the administrator, which is a second executor; see `AdministeredSandbox`.

    It runs as root inside, with the capabilities of the profile `standard`.

    Raises:
        SandboxLostError: if the container is gone, or no engine answers.
    """
    client = await in_thread(connect)
    reader, writer = await attach_exec(
        find_endpoint(), client.api.api_version, await in_thread(_create_administrator, container)
    )
    transport = StreamTransport(reader, writer)
    transport.write_raw(executor_source())
    channel = Channel(transport)
    channel.why_ended = lambda: last_line(reader.stderr)
    return channel, _nothing_to_kill


def _create_administrator(container: str) -> str:
    """Create the administrator's process with Docker's exec. Return the exec's id.

    The process starts as root with all capabilities of the container, and keeps only `ROOT_INSIDE`.
    """
    with lost_errors():
        client = connect()
        inspected = client.api.inspect_container(container)
        pairs = (entry.partition("=") for entry in inspected["Config"].get("Env") or [])
        environment = {name: value for name, _, value in pairs}
        # These folders come first, because the image's PATH may have folders in which the model can put programs.
        path = ":".join(filter(None, (SYSTEM_PATH, environment.get("PATH"))))
        environment |= {**ROOT_ENVIRONMENT, "PATH": path}
        made: dict[str, Any] = client.api.exec_create(
            container,
            bootstrap_argv(steps=[keep_only(ROOT_INSIDE), load_filter()]),
            stdin=True,
            user="0:0",
            environment=environment,
            workdir="/",
        )
    return str(made["Id"])


async def _nothing_to_kill() -> None:
    """Do nothing, because the administrator ends when its connection is closed, or else with the container."""
