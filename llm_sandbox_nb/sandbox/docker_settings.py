"""What a container of ours is started with: profile, limits, network, labels. Nothing is started here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from llm_sandbox_nb.sandbox.capabilities import TO_BECOME, become_user
from llm_sandbox_nb.sandbox.contract import Directories, Limits
from llm_sandbox_nb.sandbox.docker_engine import PREFIX, engine_errors, one_line
from llm_sandbox_nb.sandbox.errors import IsolationUnavailableError

if TYPE_CHECKING:
    from llm_sandbox_nb.sandbox.docker_api import DockerClient

Network = Literal["none", "open"]

NETWORK_NAME = PREFIX
"""One bridge for all sandboxes of an engine: stock address pools give only about 30 networks."""
_NO_TALK = "com.docker.network.bridge.enable_icc"

STANDARD_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID")
"""What apt and pip need as root: to own, read and replace files of others, to become `_apt` and end it."""

_OWN_FOLDERS = """
import os
for path in %r:
    os.makedirs(path, exist_ok=True)
    os.chown(path, %d, %d)
"""
CPU_PERIOD = 100_000
"""Microseconds."""
OPEN_FILES = 16_384
FILE_BYTES = 16 * 1024**3
"""Largest single file, so that one endless file cannot fill the engine's disk."""


@dataclass(frozen=True)
class Profile:
    """Who the model is inside, and what it may do."""

    uid: int
    home: str
    capabilities: tuple[str, ...]
    network: Network


PROFILES: Mapping[str, Profile] = {
    "standard": Profile(0, "/root", STANDARD_CAPABILITIES, "open"),
    "strict": Profile(1000, "/home/user", (), "none"),
}


@dataclass(frozen=True)
class ContainerSettings:
    """All that decides how a container of ours is made."""

    image: str
    profile: str = "standard"
    network: Network | None = None
    limits: Limits = field(default_factory=Limits)
    directories: Directories = field(default_factory=Directories)
    environment: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    """More labels, each under our prefix; what a manager uses to find its sandboxes again."""

    @property
    def who(self) -> Profile:
        """The profile itself."""
        return PROFILES[self.profile]

    @property
    def reach(self) -> Network:
        """The network in the end: what was asked for, else the profile's."""
        return self.network or self.who.network


def container_arguments(
    client: DockerClient, settings: ContainerSettings, argv: list[str], labels: Mapping[str, str]
) -> dict[str, Any]:
    """The arguments of docker-py's `create_container`. `argv` becomes process 1, with nothing in between.

    It starts as root, with the rights that root has in `standard`. In `strict` it gives up all of them before
    anything else (see `first_program`); they are then only to be had from outside, by `exec(user=...)`.
    """
    return {
        "image": settings.image,
        "command": argv,
        "entrypoint": [],
        "user": "0:0",
        "environment": container_environment(settings),
        "working_dir": "/",
        "hostname": "sandbox",
        "stdin_open": True,
        # Else docker-py also sets StdinOnce, and the sandbox would end with its owner's connection.
        "detach": True,
        "tty": False,
        "labels": dict(labels),
        "healthcheck": {"test": ["NONE"]},
        "host_config": _host_config(client, settings),
    }


def first_program(settings: ContainerSettings, argv: list[str]) -> list[str]:
    """`argv` (`python ... -c PROGRAM`), which first becomes the profile's user and owns its folders.

    Images of others have no such user, and no such folders.
    """
    uid = settings.who.uid
    if uid == 0:
        return argv
    *command, program = argv
    folders = _OWN_FOLDERS % ([settings.who.home, settings.directories.root], uid, uid)
    return [*command, f"{folders}{become_user(uid)}\n{program}"]


def _to_become(settings: ContainerSettings) -> tuple[str, ...]:
    return () if settings.who.uid == 0 else TO_BECOME


def container_environment(settings: ContainerSettings) -> dict[str, str]:
    """Variables of everything inside: none of this process's own."""
    who = settings.who
    return {
        "HOME": who.home,
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "DEBIAN_FRONTEND": "noninteractive",
        **settings.environment,
    }


def _host_config(client: DockerClient, settings: ContainerSettings) -> dict[str, Any]:
    from llm_sandbox_nb.sandbox.docker_api import LogConfig, Ulimit

    limits = settings.limits
    config: dict[str, Any] = client.api.create_host_config(
        auto_remove=True,
        cap_drop=["ALL"],
        cap_add=sorted(
            {*STANDARD_CAPABILITIES, *(name.removeprefix("CAP_") for name in _to_become(settings))}
        ),
        security_opt=["no-new-privileges:true"],
        network_mode=NETWORK_NAME if settings.reach == "open" else "none",
        mem_limit=limits.memory_bytes,
        memswap_limit=limits.memory_bytes,
        pids_limit=limits.pids,
        # Not `nano_cpus`: engines refuse more of those than they have processors.
        cpu_period=CPU_PERIOD if limits.cpus else None,
        cpu_quota=int(limits.cpus * CPU_PERIOD) if limits.cpus else None,
        ulimits=[
            Ulimit(name="nofile", soft=OPEN_FILES, hard=OPEN_FILES),
            Ulimit(name="fsize", soft=FILE_BYTES, hard=FILE_BYTES),
            Ulimit(name="core", soft=0, hard=0),
        ],
        log_config=LogConfig(type=LogConfig.types.NONE),
        ipc_mode="private",
        init=False,
    )
    config["CgroupnsMode"] = "private"
    return config


def ensure_network(client: DockerClient) -> None:
    """Make the bridge that sandboxes with network share, on which they cannot reach each other.

    Raises:
        IsolationUnavailableError: a network of this name is there that does not keep sandboxes apart.
    """
    from llm_sandbox_nb.sandbox.docker_api import APIError

    with engine_errors():
        found = client.networks.list(names=[NETWORK_NAME])
        found = [network for network in found if network.name == NETWORK_NAME]
        if not found:
            try:
                found = [
                    client.networks.create(
                        NETWORK_NAME,
                        driver="bridge",
                        options={_NO_TALK: "false"},
                        labels={f"{PREFIX}.network": "1"},
                        check_duplicate=True,
                    )
                ]
            except APIError as error:
                found = client.networks.list(names=[NETWORK_NAME])
                if not found:
                    raise IsolationUnavailableError(
                        f"The network {NETWORK_NAME} could not be made: {one_line(error)}; "
                        f"use network='none', or free an address pool with `docker network prune`."
                    ) from error
    if any((network.attrs.get("Options") or {}).get(_NO_TALK) != "false" for network in found):
        raise IsolationUnavailableError(
            f"The Docker network {NETWORK_NAME} lets sandboxes reach each other: "
            f"remove it with `docker network rm {NETWORK_NAME}`, and it is made again as it should be."
        )
