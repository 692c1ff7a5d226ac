"""What a container of ours is started with: profile, limits, network, labels. Nothing is started here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from llm_sandbox_nb.sandbox.capabilities import ROOT_INSIDE, TO_BECOME, become_user, keep_only
from llm_sandbox_nb.sandbox.contract import Directories, Limits
from llm_sandbox_nb.sandbox.docker.network import network_arguments
from llm_sandbox_nb.sandbox.docker.ownership import LABEL_ID
from llm_sandbox_nb.sandbox.options import GIT_EMAIL
from llm_sandbox_nb.sandbox.seccomp import load_filter

if TYPE_CHECKING:
    from llm_sandbox_nb.sandbox.docker.api import DockerClient

Network = Literal["none", "public", "open"]

STANDARD_CAPABILITIES = tuple(name.removeprefix("CAP_") for name in ROOT_INSIDE)
"""What apt and pip need as root: to own, read and replace files of others, to become `_apt` and end it."""

_OWN_FOLDERS = """
import os
for path in %r:
    os.makedirs(path, exist_ok=True)
    os.chown(path, %d, %d)
"""
TO_CLOSE_NETWORK = ("CAP_NET_ADMIN", "CAP_NET_BIND_SERVICE")
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
    "standard": Profile(0, "/root", STANDARD_CAPABILITIES, "public"),
    "strict": Profile(1000, "/home/user", (), "none"),
}


@dataclass(frozen=True)
class ContainerSettings:
    """All that decides how a container of ours is made."""

    image: str
    profile: str = "standard"
    network: Network | None = None
    door: int = 0
    """Where its door listens inside, if it has one: see `executor/door.py`."""
    limits: Limits = field(default_factory=Limits)
    directories: Directories = field(default_factory=Directories)
    environment: Mapping[str, str] = field(default_factory=dict)
    stays_open: tuple[tuple[str, int], ...] = ()
    """Addresses and ports that are reached even where the network around them is closed."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """More labels, each under our prefix; what a manager uses to find its sandboxes again."""

    @property
    def profile_values(self) -> Profile:
        """The profile itself."""
        return PROFILES[self.profile]

    @property
    def chosen_network(self) -> Network:
        """The network in the end: what was asked for, else the profile's."""
        return self.network or self.profile_values.network


def container_arguments(
    client: DockerClient,
    settings: ContainerSettings,
    argv: list[str],
    labels: Mapping[str, str],
    *,
    quota: bool = False,
) -> dict[str, Any]:
    """The arguments of docker-py's `create_container`. `argv` becomes process 1, with nothing in between.

    `quota`: the engine's storage can bound what the container writes.

    It starts as root, with a few more rights than root has in `standard`. Before anything else it gives up these, in
    `strict` all of them (see `first_steps`); only `exec(user=...)` from outside has them then.
    """
    network_mode, networking = network_arguments(settings.chosen_network, labels.get(LABEL_ID, ""))
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
        "host_config": _host_config(client, settings, network_mode, quota),
        "networking_config": networking,
    }


def first_steps(settings: ContainerSettings, closing: Mapping[str, Any]) -> list[str]:
    """What the first program does with root's rights, and how it gives them up, before anything else.

    It closes what `closing` orders of the network (see `host_network.closing_order`), owns the profile's folders and
    becomes its user (images of others have no such user, and no such folders), and loads the system-call filter.
    """
    profile = settings.profile_values
    steps = []
    if closing:
        order = {**closing, "open": [*map(list, settings.stays_open)]}
        steps.append(f"from executor.firewall import close_network\nclose_network({order!r})")
    if profile.uid == 0:
        steps.append(keep_only(ROOT_INSIDE))
    else:
        folders = _OWN_FOLDERS % ([profile.home, settings.directories.root], profile.uid, profile.uid)
        steps += [folders, become_user(profile.uid)]
    return [*steps, load_filter()]


def container_environment(settings: ContainerSettings) -> dict[str, str]:
    """Variables of everything inside: none of this process's own."""
    profile = settings.profile_values
    return {
        "HOME": profile.home,
        "EMAIL": GIT_EMAIL,
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "DEBIAN_FRONTEND": "noninteractive",
        **settings.environment,
    }


def _host_config(
    client: DockerClient, settings: ContainerSettings, network_mode: str, quota: bool
) -> dict[str, Any]:
    from llm_sandbox_nb.sandbox.docker.api import LogConfig, Ulimit

    limits = settings.limits
    # What the first steps need beside what root keeps; all of it is given up at their end.
    preparing = (*TO_BECOME, *(() if settings.chosen_network == "none" else TO_CLOSE_NETWORK))
    config: dict[str, Any] = client.api.create_host_config(
        auto_remove=True,
        cap_drop=["ALL"],
        cap_add=sorted(
            {
                *STANDARD_CAPABILITIES,
                *(name.removeprefix("CAP_") for name in preparing),
            }
        ),
        security_opt=["no-new-privileges:true"],
        network_mode=network_mode,
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
        # In memory, so the limit of that holds; the engine's own 64 MB are too few for data loaders.
        shm_size=limits.memory_bytes or FILE_BYTES,
        storage_opt={"size": str(limits.disk_bytes)} if quota and limits.disk_bytes else None,
        init=False,
    )
    config["CgroupnsMode"] = "private"
    return config
