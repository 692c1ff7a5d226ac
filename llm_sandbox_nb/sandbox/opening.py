"""Opening a sandbox: which isolation, started how. What everybody outside this room uses."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from llm_sandbox_nb.sandbox.bubblewrap import start_bubblewrap_sandbox
from llm_sandbox_nb.sandbox.channel_sandbox import ChannelSandbox
from llm_sandbox_nb.sandbox.contract import Directories, Limits, Sandbox
from llm_sandbox_nb.sandbox.detect import why_no_bubblewrap, why_no_docker
from llm_sandbox_nb.sandbox.errors import IsolationUnavailableError
from llm_sandbox_nb.sandbox.options import SandboxOptions
from llm_sandbox_nb.sandbox.process import start_process_sandbox


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
) -> OpeningSandbox:
    """Open a sandbox: `async with open_sandbox("docker") as box:`, or `box = await open_sandbox()`.

    Args:
        isolation: `"docker"`, `"bubblewrap"`, `"process"` (protects nothing), or `"auto"`: Docker when an
            engine answers and has the image, else bubblewrap when it works here; never `"process"`.
        profile: `"standard"` (root inside) or `"strict"` (an ordinary user, no capability, no network).
        image: Docker image; the project's own when None.
        network: `"none"` or `"open"`; None leaves it to the isolation and profile.
        limits: memory, processes, processors.
        directories: where things are inside; the defaults are `/testbed` and below.
        ca_bundle: PEM file of this machine that programs inside shall trust.
        index_url: Python package index to use inside.
        proxy: HTTP proxy to use inside.
        env: more environment variables. Nothing of this process's environment goes in by itself.

    Raises, when it is started:
        IsolationUnavailableError: the isolation does not work here; says what to do.
        ImageError: Docker only: the image is missing or unfit.
    Raises, at once:
        ValueError, FileNotFoundError: an option is wrong; says which values are right.
    """
    return OpeningSandbox(
        SandboxOptions(
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
        )
    )


async def start_sandbox(options: SandboxOptions) -> ChannelSandbox:
    """Start what `options` ask for. It can start others like itself, for forks."""
    if options.isolation == "auto":
        options = replace(options, isolation=await choose_isolation(options))
    sandbox = await _start(options)
    sandbox.start_sibling = lambda: start_sandbox(options)
    return sandbox


async def _start(options: SandboxOptions) -> ChannelSandbox:
    if options.isolation == "docker":
        from llm_sandbox_nb.sandbox.docker import start_docker_sandbox

        return await start_docker_sandbox(options)
    if options.isolation == "bubblewrap":
        return await start_bubblewrap_sandbox(options)
    return await start_process_sandbox(options)


async def choose_isolation(options: SandboxOptions) -> str:
    """The strongest isolation that works here; what it protects is told by the sandbox's `protection`.

    Raises:
        IsolationUnavailableError: neither Docker nor bubblewrap does; says why.
    """
    no_docker = await why_no_docker(options.image)
    if not no_docker:
        return "docker"
    if options.image is not None:
        raise IsolationUnavailableError(
            f"The image {options.image!r} needs Docker, which does not work here: {no_docker}."
        )
    no_bubblewrap = await why_no_bubblewrap()
    if not no_bubblewrap:
        return "bubblewrap"
    raise IsolationUnavailableError(
        f"No isolation works here ({no_docker}; {no_bubblewrap}): start Docker, install bubblewrap,"
        " or ask for isolation 'process', which protects nothing."
    )
