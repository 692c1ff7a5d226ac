"""Protection of a bubblewrap sandbox, as the kernel reports it for the first process inside."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llm_sandbox_nb.sandbox.bubblewrap.limits import InForce
from llm_sandbox_nb.sandbox.capabilities import capability_names
from llm_sandbox_nb.sandbox.contract import Protection
from llm_sandbox_nb.sandbox.network.door import PROXY_ONLY, WAY_OUT
from llm_sandbox_nb.sandbox.protocol.answers import disk_limits
from llm_sandbox_nb.sandbox.seccomp import describe_calls, describe_mode

PROC = Path("/proc")

_NAMESPACES = {
    "cgroup": "control groups",
    "ipc": "shared memory",
    "mnt": "mounts",
    "net": "network",
    "pid": "processes",
    "user": "users",
    "uts": "host name",
}
_SYSTEM_MOUNTS = ("/", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/nix/store")


def read_protection(
    pid: int,
    *,
    profile: str,
    user: str,
    limits: InForce,
    executor: Mapping[str, Any],
    through_door: str,
    details: Mapping[str, str],
) -> Protection:
    """Return the protection of the sandbox whose first process has the id `pid` on this host.

    `executor` is the executor's answer to the greeting. `through_door` is the network that the proxy provides if the
    sandbox has a door.

    Raises:
        OSError: if the process is gone.
    """
    process, own = PROC / str(pid), PROC / "self"
    lines = (process / "status").read_text().splitlines()
    status = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    separate = [
        name for name in _NAMESPACES if (own / "ns" / name).readlink() != (process / "ns" / name).readlink()
    ]
    door = executor.get("door")
    network = (through_door if door else "none") if "net" in separate else "open"
    mounts = [line.split() for line in (process / "mountinfo").read_text().splitlines()]
    system = [mount for mount in mounts if mount[4] in _SYSTEM_MOUNTS]
    calls, open_calls = describe_calls(executor.get("calls"))
    disk_bytes, files, disk = disk_limits(executor)
    return Protection(
        isolation="bubblewrap",
        profile=profile,
        user=user,
        capabilities=capability_names(int(status["CapBnd"], 16) | int(status["CapEff"], 16)),
        no_new_privileges=status["NoNewPrivs"] == "1",
        seccomp=describe_mode({"Seccomp": "0"} | status),
        network=network,
        read_only_system=bool(system) and all("ro" in mount[5].split(",") for mount in system),
        memory_bytes=limits.memory_bytes,
        pids=limits.pids,
        cpus=limits.cpus,
        details={
            "namespaces": ", ".join(_NAMESPACES[name] for name in separate),
            "host user": status["Uid"].split()[0],
            "limits": limits.by,
            **({"system calls": calls} if calls else {}),
            **({"disk": disk} if disk else {}),
            **({WAY_OUT: PROXY_ONLY} if door else {}),
            **details,
        },
        protects=_protects(network),
        does_not_protect=_does_not_protect(network, limits, open_calls),
        disk_bytes=disk_bytes,
        files=files,
    )


def _protects(network: str) -> str:
    reach = {
        "none": "the network, ",
        "allow": "the network but for the allowed hosts, ",
        "public": "its network addresses, other private addresses, ",
    }.get(network, "")
    return (
        f"The model cannot reach this machine's files, home folders, processes, {reach}or change its system;"
        " the sandbox's files are in memory, and are lost when the sandbox ends."
    )


def _does_not_protect(network: str, limits: InForce, open_calls: list[str]) -> str:
    gaps = ["The kernel is shared with this machine, so a vulnerability of the kernel is a way out"]
    gaps += [f"the kernel's {name} can be used" for name in open_calls]
    gaps.append("installed programs and packages can be read")
    if network == "allow":
        gaps.append("data that the model sends to an allowed host is not checked")
    if network == "public":
        gaps.append("the model can send data to any server on the internet")
    if network == "open":
        gaps.append("the network is that of this machine, with everything that listens on localhost")
    if limits.memory_bytes is None:
        gaps.append("memory is not limited as a whole")
    if limits.pids is None:
        gaps.append("the number of processes is not limited")
    if limits.cpus is None:
        gaps.append("processor time is not limited")
    return "; ".join(gaps) + "."
