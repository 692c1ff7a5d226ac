"""Settings of a container (profile, limits, network, labels), and the engine's arguments for such a container."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from llm_sandbox_nb.sandbox.capabilities import ROOT_INSIDE, TO_BECOME, become_user, keep_only
from llm_sandbox_nb.sandbox.contract import Directories
from llm_sandbox_nb.sandbox.docker.network import network_arguments
from llm_sandbox_nb.sandbox.docker.ownership import LABEL_ID
from llm_sandbox_nb.sandbox.limits import Limits
from llm_sandbox_nb.sandbox.options import GIT_EMAIL
from llm_sandbox_nb.sandbox.seccomp import load_filter

if TYPE_CHECKING:
    from llm_sandbox_nb.sandbox.docker.api import DockerClient

Network = Literal["none", "public", "open"]

STANDARD_CAPABILITIES = tuple(name.removeprefix("CAP_") for name in ROOT_INSIDE)
"""Capabilities that root inside has: those that apt and pip need to own, read and replace files of other users, and to
become the user `_apt`."""

_PREFER_EXECUTOR = """
import os
from executor import processes  # this import notes the niceness for commands, before it changes below
try:
    os.setpriority(os.PRIO_PROCESS, 0, -20)
except OSError:  # without root on the host
    pass
"""
_MAKE_FOLDERS = """
import os
for path in %r:
    os.makedirs(path, exist_ok=True)
    os.chown(path, %d, %d)
"""
NETWORK_CAPABILITIES = ("CAP_NET_ADMIN", "CAP_NET_BIND_SERVICE")
"""Capabilities that `executor.firewall.close_network` needs."""
CPU_PERIOD_US = 100_000
MAX_OPEN_FILES = 16_384
MAX_FILE_BYTES = 16 * 1024**3
"""Maximum size of one file in bytes, so that a program that never stops writing does not fill the engine's disk."""


@dataclass(frozen=True)
class Profile:
    """A profile: the user that runs the model's commands, this user's capabilities, and the default network."""

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
    """Settings of a container."""

    image: str
    profile: str = "standard"
    network: Network | None = None
    door: int = 0
    """Port inside on which the door listens; see `executor/door.py`. 0 if the sandbox has no door."""
    limits: Limits = field(default_factory=Limits)
    directories: Directories = field(default_factory=Directories)
    environment: Mapping[str, str] = field(default_factory=dict)
    stays_open: tuple[tuple[str, int], ...] = ()
    """Addresses and ports, e.g. of a site's proxy, that programs inside can reach although private addresses are closed
    to them."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Further labels, by which the sandbox can be found. The package's prefix is put before their names."""

    @property
    def profile_values(self) -> Profile:
        """The values of the profile with the name `profile`."""
        return PROFILES[self.profile]

    @property
    def chosen_network(self) -> Network:
        """The requested network, or the profile's network if none was requested."""
        return self.network or self.profile_values.network


def container_arguments(
    client: DockerClient,
    settings: ContainerSettings,
    argv: list[str],
    labels: Mapping[str, str],
    *,
    quota: bool = False,
) -> dict[str, Any]:
    """Return the arguments of docker-py's `create_container`.

    The container starts as root, with a few more capabilities than root has in the profile `standard`. The programs of
    `first_steps` drop these further capabilities, and in the profile `strict` all capabilities. Afterwards no program
    inside can get them back. Only programs that the engine starts in the container later can have these capabilities.

    `argv` is the command of the container's first process. `quota` is True if the engine's storage can limit the files
    of a container.
    """
    network_mode, networking = network_arguments(settings.chosen_network, labels.get(LABEL_ID, ""))
    return {
        "image": settings.image,
        "command": argv,
        "entrypoint": [],
        "user": "0:0",
        "environment": {
            "HOME": settings.profile_values.home,
            "EMAIL": GIT_EMAIL,
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "DEBIAN_FRONTEND": "noninteractive",
            **settings.environment,
        },
        "working_dir": "/",
        "hostname": "sandbox",
        "stdin_open": True,
        # Without `detach`, docker-py would also set StdinOnce. Then the sandbox would end with its owner's connection.
        "detach": True,
        "tty": False,
        "labels": dict(labels),
        "healthcheck": {"test": ["NONE"]},
        "host_config": _host_config(client, settings, network_mode, quota),
        "networking_config": networking,
    }


def first_steps(settings: ContainerSettings, closing: Mapping[str, Any]) -> list[str]:
    """Return the Python programs that the container's first process runs as root, before it becomes the executor.

    The programs give the executor a higher priority than commands, close a part of the network, drop capabilities or
    become the profile's user, and load the system-call filter. `closing` is the result of `host_network.closing_order`.
    """
    profile = settings.profile_values
    steps = [_PREFER_EXECUTOR]
    if closing:
        order = {**closing, "open": [*map(list, settings.stays_open)]}
        steps.append(f"from executor.firewall import close_network\nclose_network({order!r})")
    if profile.uid == 0:
        steps.append(keep_only(ROOT_INSIDE))
    else:
        # Images that this package has not built may lack the folders.
        folders = _MAKE_FOLDERS % ([profile.home, settings.directories.root], profile.uid, profile.uid)
        steps += [folders, become_user(profile.uid)]
    return [*steps, load_filter()]


def _host_config(
    client: DockerClient, settings: ContainerSettings, network_mode: str, quota: bool
) -> dict[str, Any]:
    from llm_sandbox_nb.sandbox.docker.api import LogConfig, Ulimit

    limits = settings.limits
    # Only the programs of `first_steps` need these capabilities. The last of these programs drop them again.
    preparing = (
        "CAP_SYS_NICE",
        *TO_BECOME,
        *(() if settings.chosen_network == "none" else NETWORK_CAPABILITIES),
    )
    config: dict[str, Any] = client.api.create_host_config(
        auto_remove=True,
        cap_drop=["ALL"],
        cap_add=sorted({*STANDARD_CAPABILITIES, *(name.removeprefix("CAP_") for name in preparing)}),
        security_opt=["no-new-privileges:true"],
        network_mode=network_mode,
        mem_limit=limits.memory_bytes,
        memswap_limit=limits.memory_bytes,
        pids_limit=limits.pids,
        # `nano_cpus` cannot be used, because engines refuse a limit above the number of the machine's processors.
        cpu_period=CPU_PERIOD_US if limits.cpus else None,
        cpu_quota=int(limits.cpus * CPU_PERIOD_US) if limits.cpus else None,
        ulimits=[
            Ulimit(name="nofile", soft=MAX_OPEN_FILES, hard=MAX_OPEN_FILES),
            Ulimit(name="fsize", soft=MAX_FILE_BYTES, hard=MAX_FILE_BYTES),
            Ulimit(name="core", soft=0, hard=0),
        ],
        log_config=LogConfig(type=LogConfig.types.NONE),
        ipc_mode="private",
        # Shared memory counts as memory, so it can have the same limit. The default of 64 MB is too small for programs
        # such as PyTorch's data loaders.
        shm_size=limits.memory_bytes or MAX_FILE_BYTES,
        storage_opt={"size": str(limits.disk_bytes)} if quota and limits.disk_bytes else None,
        init=False,
    )
    config["CgroupnsMode"] = "private"
    return config
