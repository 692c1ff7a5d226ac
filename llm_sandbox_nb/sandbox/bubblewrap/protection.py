"""What protects a bubblewrap sandbox, as the kernel describes the process that runs inside."""

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
_SYSTEM = ("/", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/nix/store")


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
    """Describe the sandbox whose first process has the number `pid` here; `executor` is its greeting.

    `through_door`: the network that the proxy behind its door gives it, if it has a door.

    Raises:
        OSError: the process is gone.
    """
    status = read_status(pid)
    separate = separate_namespaces(pid)
    door = executor.get("door")
    network = (through_door if door else "none") if "net" in separate else "open"
    read_only = system_is_read_only(pid)
    tried, open_calls = describe_calls(executor.get("calls"))
    disk_bytes, files, disk = disk_limits(executor)
    found = {
        "namespaces": ", ".join(_NAMESPACES[name] for name in separate),
        "host user": status["Uid"].split()[0],
        "limits": limits.by,
        **({"system calls": tried} if tried else {}),
        **({"disk": disk} if disk else {}),
        **({WAY_OUT: PROXY_ONLY} if door else {}),
        **details,
    }
    return Protection(
        isolation="bubblewrap",
        profile=profile,
        user=user,
        capabilities=capability_names(int(status["CapBnd"], 16) | int(status["CapEff"], 16)),
        no_new_privileges=status["NoNewPrivs"] == "1",
        seccomp=describe_mode({"Seccomp": "0"} | status),
        network=network,
        read_only_system=read_only,
        memory_bytes=limits.memory_bytes,
        pids=limits.pids,
        cpus=limits.cpus,
        details=found,
        protects=_protects(network),
        does_not_protect=_does_not_protect(network, limits, open_calls),
        disk_bytes=disk_bytes,
        files=files,
    )


def read_status(pid: int) -> dict[str, str]:
    """The fields of /proc/<pid>/status."""
    lines = (PROC / str(pid) / "status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def separate_namespaces(pid: int) -> tuple[str, ...]:
    """The kinds of namespaces that a process does not share with this one."""
    own, other = PROC / "self/ns", PROC / str(pid) / "ns"
    return tuple(name for name in _NAMESPACES if (own / name).readlink() != (other / name).readlink())


def system_is_read_only(pid: int) -> bool:
    """Whether the root and everything of the system that is mounted there cannot be written."""
    fields = [line.split() for line in (PROC / str(pid) / "mountinfo").read_text().splitlines()]
    system = [line for line in fields if line[4] in _SYSTEM]
    return bool(system) and all("ro" in line[5].split(",") for line in system)


def _protects(network: str) -> str:
    reach = {
        "none": "the network, ",
        "allow": "the network but for the allowed hosts, ",
        "public": "its network addresses, other private addresses, ",
    }.get(network, "")
    return (
        f"The model cannot reach this machine's files, home folders, processes, {reach}or change its system;"
        " what it writes stays in memory and is gone at the end."
    )


def _does_not_protect(network: str, limits: InForce, open_calls: list[str]) -> str:
    gaps = ["The kernel is shared, so a hole in it is a way out"]
    gaps += [f"the kernel's {name} can be used" for name in open_calls]
    gaps.append("installed programs and packages can be read")
    if network == "allow":
        gaps.append("what it sends to an allowed host is not looked at")
    if network == "public":
        gaps.append("it can send what it knows to any place on the internet")
    if network == "open":
        gaps.append("the network is this machine's own, with everything that listens on localhost")
    if limits.memory_bytes is None:
        gaps.append("memory is not limited as a whole")
    if limits.pids is None:
        gaps.append("the number of processes is not limited")
    if limits.cpus is None:
        gaps.append("processor time is not limited")
    return "; ".join(gaps) + "."
