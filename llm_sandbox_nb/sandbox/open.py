"""Opening a sandbox: which isolation, started how. What everybody outside this room uses."""

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
from llm_sandbox_nb.sandbox.contract import Directories, Limits, ResourceUsage, Sandbox
from llm_sandbox_nb.sandbox.errors import IsolationUnavailableError
from llm_sandbox_nb.sandbox.history.checkpointing import remove_stale
from llm_sandbox_nb.sandbox.isolations import ISOLATIONS, automatic_isolations
from llm_sandbox_nb.sandbox.leftover_folders import remove_temporary_folders
from llm_sandbox_nb.sandbox.network.secrets import parse_secrets
from llm_sandbox_nb.sandbox.options import SandboxOptions
from llm_sandbox_nb.windows import NO_SANDBOX, is_windows

USAGE_TIMEOUT = 20.0
"""Seconds for which an engine may count files."""


class Implementation(Protocol):
    """The functions of the module that `Isolation.implementation` names."""

    async def start(
        self, options: SandboxOptions, *, labels: Mapping[str, str] | None = None
    ) -> ChannelSandbox:
        """Start a sandbox. `labels` are for an isolation whose sandboxes can be adopted; others ignore them.

        Raises:
            IsolationUnavailableError, ImageError, SandboxLostError, SandboxError, ValueError: it cannot be started.
        """

    async def why_unavailable(self, image: str | None) -> str:
        """Why it does not work here with `image` (None: its own); empty when it does."""

    def resource_usage(self, sandbox: Sandbox) -> ResourceUsage:
        """What a sandbox has used so far. It blocks, and may raise anything."""


class OwnSandbox(Protocol):
    """A sandbox of this package that may have lost its owner."""

    @property
    def id(self) -> str:
        """What `adopt` takes."""

    @property
    def state(self) -> str:
        """`created`, `running`, `exited`, ..."""

    @property
    def owner_dead(self) -> bool:
        """Whether its owner has certainly ended."""

    @property
    def labels(self) -> Mapping[str, str]:
        """Those it was started with."""


class OwnedImplementation(Implementation, Protocol):
    """The module of an isolation without `survives_owner`."""

    def remove_leftovers(self) -> object:
        """Remove what its sandboxes have left whose owners were killed."""


class AdoptingImplementation(Implementation, Protocol):
    """The module of an isolation with `survives_owner`."""

    def list_own(self, labels: Mapping[str, str] | None = None) -> Sequence[OwnSandbox]:
        """All sandboxes of this isolation with these labels. Raises IsolationUnavailableError."""

    async def adopt(self, id: str) -> ChannelSandbox:
        """Take over a sandbox whose owner is dead. Raises SandboxError."""

    def reap_orphans(self) -> list[str]:
        """Remove the sandboxes of dead owners; their ids. Raises IsolationUnavailableError."""


def load_isolation(name: str) -> Implementation:
    """The implementation of an isolation of the registry.

    Raises:
        IsolationUnavailableError: this is Windows, where its modules cannot even be imported.
    """
    if is_windows():
        raise IsolationUnavailableError(NO_SANDBOX)
    return cast(Implementation, import_module(ISOLATIONS[name].implementation))


def adopting_isolations() -> list[AdoptingImplementation]:
    """The implementations of all isolations with `survives_owner`."""
    rows = [row for row in ISOLATIONS.values() if row.survives_owner]
    return [cast(AdoptingImplementation, load_isolation(row.name)) for row in rows]


class OpeningSandbox:
    """A sandbox about to be opened: `await` it, or use it in `async with`, which also closes it."""

    def __init__(self, options: SandboxOptions) -> None:
        self.options = options
        self._sandbox: Sandbox | None = None

    def __await__(self) -> Generator[Any, None, Sandbox]:
        """Start it; the caller closes it."""
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
        isolation: `"docker"`, `"bubblewrap"`, `"process"` (protects nothing), or `"auto"`: Docker when an
            engine answers and has the image, else bubblewrap when it works here; never `"process"`.
        profile: `"standard"` (root inside) or `"strict"` (an ordinary user, no capability, no network).
        image: Docker image; the project's own when None.
        network: `"none"`; `"allow"`, the hosts of `allow` only; `"public"`, the internet, but no private address and
            none of the host; or `"open"`, which is not safe: all that the host reaches. None leaves it to the
            isolation and profile.
        limits: memory, processes, processors.
        directories: where things are inside; the defaults are `/testbed` and below.
        ca_bundle: PEM file of this machine that programs inside shall trust.
        index_url: Python package index to use inside.
        proxy: HTTP proxy to use inside.
        env: more environment variables. Nothing of this process's environment goes in otherwise.
        allow: with the network `"allow"`: hosts that may be reached, as in `["pypi", "github.com:443", "*.a.org"]`.
        secrets: with the network `"allow"`: environment variables of this process, each with the hosts that get its
            value, as in `{"GITHUB_TOKEN": "api.github.com"}`. The sandbox has a placeholder in its place. It goes
            into headers, and after `+body` (`"api.github.com+body"`) into bodies too.

    Raises, when it is started:
        IsolationUnavailableError: the isolation does not work here; says what to do.
        ImageError: Docker only: the image is missing or unfit.
    Raises, at once:
        ValueError, FileNotFoundError: an option is wrong; says which values are right.
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
    return OpeningSandbox(options)


async def start_sandbox(
    options: SandboxOptions, *, labels: Mapping[str, str] | None = None, served_elsewhere: bool = False
) -> ChannelSandbox:
    """Start what `options` ask for. It can start others like itself, for forks. `labels`: see `Implementation`.

    `served_elsewhere`: another process will serve its network, if that is an allow-list; see `serve_network`.
    """
    await asyncio.to_thread(_remove_temporary_once)
    name = options.isolation
    if name in (None, "auto"):
        name = await choose_isolation(options)
        options = replace(options, isolation=name)
    sandbox = await load_isolation(name).start(options, labels=labels)
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
    """Remove what killed processes of this user have left in the temporary folder."""
    remove_temporary_folders()
    remove_stale()


_remove_temporary_once = functools.cache(remove_temporary)
"""Once in the life of a process is enough: what it makes itself, it removes itself."""


def remove_leftovers() -> None:
    """Remove what killed processes of this user have left: temporary folders, control groups, waiting processes.

    What may be adopted is not removed here: see `AdoptingImplementation.reap_orphans`.
    """
    if is_windows():
        return
    remove_temporary()
    for row in ISOLATIONS.values():
        if not row.survives_owner:
            cast(OwnedImplementation, load_isolation(row.name)).remove_leftovers()


async def choose_isolation(options: SandboxOptions) -> str:
    """The strongest isolation that works here; the sandbox's `protection` says what it protects.

    Raises:
        IsolationUnavailableError: none does; says why.
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
        what = f"network {options.network!r}" if options.image is None else f"image {options.image!r}"
        needed = " or ".join(name.capitalize() for name in problems)
        raise IsolationUnavailableError(
            f"The {what} needs {needed}. {' '.join(f'{one}.' for one in problems.values())}"
        )
    unprotected = " or ".join(repr(row.name) for row in ISOLATIONS.values() if not row.isolates)
    raise IsolationUnavailableError(
        f"No isolation works here ({'; '.join(problems.values())}): make one of them work,"
        f" or ask for isolation {unprotected}, which protects nothing."
    )


async def resource_usage(sandbox: Sandbox) -> ResourceUsage:
    """What a living sandbox has used so far. Never fails: what cannot be measured is None."""
    try:
        async with asyncio.timeout(USAGE_TIMEOUT):
            measure = load_isolation(sandbox.protection.isolation).resource_usage
            return await asyncio.to_thread(measure, sandbox)
    except Exception:  # noqa: BLE001 - an engine may fail in any way, and this is only a figure in a report
        return ResourceUsage()
