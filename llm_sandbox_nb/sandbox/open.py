"""Functions that choose an isolation, open a sandbox, and remove leftovers of killed processes."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, cast

from llm_sandbox_nb.sandbox.client import ChannelSandbox
from llm_sandbox_nb.sandbox.contract import Directories, ResourceUsage, Sandbox
from llm_sandbox_nb.sandbox.errors import IsolationUnavailableError, SandboxError
from llm_sandbox_nb.sandbox.history.stores import remove_stale
from llm_sandbox_nb.sandbox.isolations import ISOLATIONS, automatic_isolations
from llm_sandbox_nb.sandbox.leftover_folders import remove_temporary_folders
from llm_sandbox_nb.sandbox.limits import Limits
from llm_sandbox_nb.sandbox.network.secrets import parse_secrets, read_secrets
from llm_sandbox_nb.sandbox.options import SandboxOptions
from llm_sandbox_nb.windows import NO_SANDBOX, is_windows

USAGE_TIMEOUT = 20.0
"""Time limit in seconds for measuring the resources of a sandbox."""


class Implementation(Protocol):
    """Functions that the module of every isolation must have. `Isolation.implementation` names the module."""

    async def start(
        self, options: SandboxOptions, *, labels: Mapping[str, str] | None = None
    ) -> ChannelSandbox:
        """Start a sandbox. `labels` help to find the sandbox later; isolations without `survives_owner` ignore them.

        Raises:
            IsolationUnavailableError, ImageError, SandboxLostError, SandboxError, ValueError: if the start fails.
        """

    async def why_unavailable(self, image: str | None) -> str:
        """Return the reason why the isolation does not work here with `image`. Empty if the isolation works.

        If `image` is None, the default image is meant.
        """

    async def is_up_to_date(self, sandbox: Sandbox, options: SandboxOptions) -> bool:
        """Return True if `sandbox`, in which no command has run, equals a sandbox that would start now with `options`.

        Raises:
            SandboxError: if the engine does not answer, or no longer has the image.
        """

    def resource_usage(self, sandbox: Sandbox) -> ResourceUsage:
        """Measure the resources of a sandbox. The call blocks, and may raise any exception."""


class OwnSandbox(Protocol):
    """A sandbox of this package on the current engine. Its owner, the process that opened it, may have ended."""

    @property
    def id(self) -> str:
        """Id for `AdoptingImplementation.adopt`."""

    @property
    def state(self) -> str:
        """State in the engine's words: `created`, `running`, `exited`, ..."""

    @property
    def owner_dead(self) -> bool:
        """True if the owner has certainly ended."""

    @property
    def created(self) -> float:
        """Start time in seconds since the epoch."""

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels that were given at the start or added later."""


class OwnedImplementation(Implementation, Protocol):
    """The module of an isolation without `survives_owner`."""

    def remove_leftovers(self) -> object:
        """Remove files and processes of sandboxes whose owners were killed."""


class AdoptingImplementation(Implementation, Protocol):
    """The module of an isolation with `survives_owner`."""

    def list_own(self, labels: Mapping[str, str] | None = None) -> Sequence[OwnSandbox]:
        """Return this isolation's sandboxes that have all of `labels`. Raises IsolationUnavailableError."""

    async def add_label(self, sandbox: Sandbox, name: str, value: str) -> None:
        """Add a label to a running sandbox. The value consists of letters and digits. Raises SandboxError."""

    async def adopt(self, id: str) -> ChannelSandbox:
        """Take over a sandbox whose owner is dead. Raises SandboxError."""

    def reap_orphans(self) -> list[str]:
        """Remove the sandboxes of dead owners, and return their ids. Raises IsolationUnavailableError."""


def load_isolation(name: str) -> Implementation:
    """Import and return the module of the isolation `name`.

    Raises:
        IsolationUnavailableError: on Windows, where the modules cannot be imported.
    """
    if is_windows():
        raise IsolationUnavailableError(NO_SANDBOX)
    return cast(Implementation, import_module(ISOLATIONS[name].implementation))


def adopting_isolations() -> list[AdoptingImplementation]:
    """Import and return the modules of all isolations with `survives_owner`."""
    rows = [row for row in ISOLATIONS.values() if row.survives_owner]
    return [cast(AdoptingImplementation, load_isolation(row.name)) for row in rows]


class OpeningSandbox:
    """A sandbox before its start. `await` starts the sandbox. `async with` also closes the sandbox at the end."""

    def __init__(self, options: SandboxOptions) -> None:
        self.options = options
        self._sandbox: Sandbox | None = None

    def __await__(self) -> Generator[Any, None, Sandbox]:
        return start_sandbox(self.options).__await__()

    async def __aenter__(self) -> Sandbox:
        self._sandbox = await start_sandbox(self.options)
        return self._sandbox

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sandbox is not None:
            await self._sandbox.close()


def open_sandbox(
    isolation: str = "auto",
    *,
    profile: str = "standard",
    image: str | None = None,
    network: str | None = None,
    limits: Limits | None = None,
    directories: Directories | None = None,
    ca_bundle: Path | str | None = None,
    index_url: str | None = None,
    proxy: str | None = None,
    env: Mapping[str, str] | None = None,
    allow: str | Sequence[str] = (),
    secrets: Mapping[str, str | Sequence[str]] | Sequence[str] = (),
) -> OpeningSandbox:
    """Open a sandbox: `async with open_sandbox("docker") as box:`, or `box = await open_sandbox()`.

    Args:
        isolation: `"docker"`, `"bubblewrap"`, `"process"` (protects nothing) or `"auto"`. `"auto"` chooses Docker if an
            engine answers and has the image. Otherwise it chooses bubblewrap if that works here. It never chooses
            `"process"`.
        profile: `"standard"` (root inside) or `"strict"` (an ordinary user, no capability, no network).
        image: Docker image; the package's image if None.
        network: `"none"`; `"allow"` for only the hosts of `allow`; `"public"` for the internet without private
            addresses and addresses of the host; or `"open"` for everything that the host reaches, which is not safe.
            The default is `"allow"` if `allow` or `secrets` is given. Otherwise it depends on isolation and profile.
        limits: limits on memory, processes, processors and files.
        directories: folders inside; by default `/testbed` and folders below it.
        ca_bundle: PEM file of certificates that programs inside trust.
        index_url: URL of a Python package index for programs inside.
        proxy: URL of an HTTP proxy for programs inside.
        env: further environment variables for programs inside. The variables of this process are not passed on, except
            a few harmless ones such as TZ.
        allow: hosts that programs inside can reach, as in `["pypi", "github.com:443", "*.a.org"]`. Needs the network
            `"allow"`.
        secrets: names of environment variables of this process, each with the hosts that get the value, as in
            `{"GITHUB_TOKEN": "api.github.com"}`. Needs the network `"allow"`. Programs inside see a placeholder in
            place of the value. The proxy replaces the placeholder by the value in the headers of requests to these
            hosts. If a host is written with `+body` at its end, it also does so in the bodies of requests.

    Raises, at the start:
        IsolationUnavailableError: if the isolation does not work here. The message has the remedy.
        ImageError: if the Docker image is missing or cannot be used.
    Raises, at once:
        ValueError, FileNotFoundError: if an option is invalid. The message has the remedy.
    """
    options = SandboxOptions(
        isolation,
        profile,
        image,
        network,
        limits or Limits(),
        directories,
        Path(ca_bundle) if ca_bundle is not None else None,
        index_url,
        proxy,
        dict(env or {}),
        allow=(allow,) if isinstance(allow, str) else tuple(allow),
        secrets=parse_secrets([secrets] if isinstance(secrets, str) else secrets),
    )
    options.check_files()
    read_secrets(options.secrets)  # only for its check, which must fail before a run asks its model
    return OpeningSandbox(options)


async def start_sandbox(
    options: SandboxOptions, *, labels: Mapping[str, str] | None = None, served_elsewhere: bool = False
) -> ChannelSandbox:
    """Start a sandbox. Set its `start_clone`, so that it can start further sandboxes for forks.

    Args:
        options: options of the sandbox.
        labels: see `Implementation.start`.
        served_elsewhere: True if another process will call `serve_network`. If False, this function calls it for a
            sandbox with a door (see `SandboxOptions.has_door`).

    Raises:
        SandboxError: if the sandbox cannot start, for example because the disk is full.
    """
    name = options.isolation
    try:
        await asyncio.to_thread(_remove_temporary_once)
        if name in (None, "auto"):
            name = await choose_isolation(options)
            options = replace(options, isolation=name)
        sandbox = await load_isolation(name).start(options, labels=labels)
    except OSError as error:
        raise SandboxError(
            f"The sandbox cannot start ({error}): remove this cause, and open the sandbox again."
        ) from error
    sandbox.start_clone = lambda: start_sandbox(options, served_elsewhere=served_elsewhere)
    if options.has_door and not served_elsewhere:
        from llm_sandbox_nb.sandbox.network.attach import serve_network

        try:
            await serve_network(
                sandbox,
                options.allow,
                options.secrets,
                public=options.network == "public",
                ca_bundle=options.ca_bundle,
            )
        except BaseException:
            await asyncio.shield(sandbox.close())
            raise
    return sandbox


def remove_temporary() -> None:
    """Remove folders that killed processes of this user have left in the system's folder for temporary files."""
    remove_temporary_folders()
    remove_stale()


_remove_temporary_once = functools.cache(remove_temporary)
"""`remove_temporary`, but only the first call does something. One call is enough, because new leftovers appear only
when a process is killed."""


def remove_leftovers() -> None:
    """Remove leftovers of this user's killed processes: temporary folders, control groups, waiting processes.

    Sandboxes that can be adopted stay. `AdoptingImplementation.reap_orphans` removes them when they are old enough.
    """
    if is_windows():
        return
    remove_temporary()
    for row in ISOLATIONS.values():
        if not row.survives_owner:
            cast(OwnedImplementation, load_isolation(row.name)).remove_leftovers()


async def choose_isolation(options: SandboxOptions) -> str:
    """Return the name of the strongest isolation that works here with these options.

    Raises:
        IsolationUnavailableError: if no isolation works. The message has the reason for each isolation.
    """
    problems: dict[str, str] = {}
    usable = [
        row
        for row in map(ISOLATIONS.__getitem__, automatic_isolations())
        if (options.image is None or row.takes_images)
        and (options.network is None or options.network in row.networks)
    ]
    for row in usable:
        problem = await load_isolation(row.name).why_unavailable(options.image)
        if not problem:
            return row.name
        problems[row.name] = problem
    if len(usable) < len(automatic_isolations()):
        option = f"network {options.network!r}" if options.image is None else f"image {options.image!r}"
        needed = " or ".join(name.capitalize() for name in problems)
        raise IsolationUnavailableError(
            f"The {option} needs {needed}. {' '.join(f'{problem}.' for problem in problems.values())}"
        )
    unprotected = " or ".join(repr(row.name) for row in ISOLATIONS.values() if not row.isolates)
    raise IsolationUnavailableError(
        f"No isolation works here ({'; '.join(problems.values())}): make one of them work,"
        f" or choose the isolation {unprotected}, which protects nothing."
    )


async def is_up_to_date(sandbox: Sandbox, options: SandboxOptions) -> bool:
    """Return the result of `Implementation.is_up_to_date` for the isolation of a sandbox."""
    return await load_isolation(sandbox.protection.isolation).is_up_to_date(sandbox, options)


async def resource_usage(sandbox: Sandbox) -> ResourceUsage:
    """Measure the resources that a running sandbox has used. A figure that cannot be measured is None."""
    try:
        async with asyncio.timeout(USAGE_TIMEOUT):
            measure = load_isolation(sandbox.protection.isolation).resource_usage
            return await asyncio.to_thread(measure, sandbox)
    except Exception:  # noqa: BLE001 - engines fail in many ways, and a report can lack this figure
        return ResourceUsage()
