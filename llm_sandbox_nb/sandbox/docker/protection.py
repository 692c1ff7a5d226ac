"""What protects a container, as the kernel inside and the engine outside report it, not as it was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llm_sandbox_nb.sandbox.capabilities import capability_names
from llm_sandbox_nb.sandbox.contract import Protection
from llm_sandbox_nb.sandbox.network.door import PROXY_ONLY, WAY_OUT
from llm_sandbox_nb.sandbox.protocol.answers import closed_and_open, disk_limits
from llm_sandbox_nb.sandbox.seccomp import describe_calls, describe_mode

_NO_LIMIT = 2**60
"""Control groups of version 1 write 'no limit' as some huge number."""

_LIMIT_FILES = ("memory.max", "memory/memory.limit_in_bytes", "pids.max", "pids/pids.max", "cpu.max",
                "cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")  # fmt: skip
_STATUS, _CONFINEMENT, _INTERFACES = "/proc/1/status", "/proc/1/attr/current", "/proc/net/dev"
PROBED_FILES = (_STATUS, _CONFINEMENT, _INTERFACES, *(f"/sys/fs/cgroup/{name}" for name in _LIMIT_FILES))
"""What the executor is asked to read when it is greeted: what the kernel says inside."""


def read_probe(files: Mapping[str, str | None]) -> dict[str, str]:
    """`PROBED_FILES`, as the executor gave them, as names and values."""
    status = (line.partition(":") for line in (files.get(_STATUS) or "").splitlines())
    interfaces = (line.partition(":") for line in (files.get(_INTERFACES) or "").splitlines()[2:])
    limits = {name: files.get(f"/sys/fs/cgroup/{name}") for name in _LIMIT_FILES}
    return {
        **{name: value.strip() for name, _, value in status},
        **{name: value.strip() for name, value in limits.items() if value},
        "confinement": (files.get(_CONFINEMENT) or "").strip("\0\n "),
        "interfaces": " ".join(name.strip() for name, _, _ in interfaces),
    }


def describe_protection(
    probe: Mapping[str, str], inspected: Mapping[str, Any], profile: str, tried: Mapping[str, Any]
) -> Protection:
    """Put together what the kernel and the engine say.

    Args:
        probe: what the kernel says inside; see `read_probe`.
        inspected: what the engine says of the container.
        profile: the sandbox's.
        tried: the executor's greeting: `calls` and `reach`, which it tried before anything else ran, and `disk`.
    """
    config = inspected.get("HostConfig") or {}
    memory, pids, cpus = _limits(probe, config)
    joined = set((inspected.get("NetworkSettings") or {}).get("Networks") or {config.get("NetworkMode")})
    uid = (probe.get("Uid") or "?").split()[0]
    mask = int(probe.get("CapEff", "0"), 16) | int(probe.get("CapBnd", "0"), 16)
    calls, open_calls = describe_calls(tried.get("calls"))
    disk_bytes, files, disk = disk_limits(tried)
    closed, reached = closed_and_open(tried.get("reach"))
    network = "open" if reached or "private addresses" not in closed else "public"
    if probe.get("interfaces") == "lo" and joined == {"none"}:
        network = "allow" if tried.get("door") else "none"
    read_only = bool(config.get("ReadonlyRootfs"))
    return Protection(
        isolation="docker",
        profile=profile,
        user="root" if uid == "0" else f"uid {uid}",
        capabilities=capability_names(mask),
        no_new_privileges=probe.get("NoNewPrivs") == "1",
        seccomp=describe_mode(probe),
        network=network,
        read_only_system=read_only,
        memory_bytes=memory,
        pids=pids,
        cpus=cpus,
        details=_details(probe, inspected)
        | stated({"system calls": calls, "closed": ", ".join(closed), "disk": disk})
        | ({WAY_OUT: PROXY_ONLY} if network == "allow" else {}),
        protects=_protects(network),
        does_not_protect=_does_not_protect(
            uid, network, closed, reached, memory, pids, cpus, disk_bytes, files, open_calls
        ),
        disk_bytes=disk_bytes,
        files=files,
    )


def _limits(
    probe: Mapping[str, str], config: Mapping[str, Any]
) -> tuple[int | None, int | None, float | None]:
    """Memory, processes, processors: from the control group inside, else as the engine states them."""
    memory = _number(
        probe.get("memory.max") or probe.get("memory/memory.limit_in_bytes"), config.get("Memory")
    )
    pids = _number(probe.get("pids.max") or probe.get("pids/pids.max"), config.get("PidsLimit"))
    quota, _, period = (probe.get("cpu.max") or "").partition(" ")
    quota = quota or probe.get("cpu/cpu.cfs_quota_us", "")
    period = period or probe.get("cpu/cpu.cfs_period_us", "")
    share = _number(quota, config.get("CpuQuota"))
    per = _number(period, config.get("CpuPeriod")) or 100_000
    return memory, pids, share / per if share else None


def _number(text: str | None, otherwise: int | None) -> int | None:
    value = otherwise if not text else int(text) if text.isdigit() else None
    return value if value and 0 < value < _NO_LIMIT else None


def _details(probe: Mapping[str, str], inspected: Mapping[str, Any]) -> dict[str, str]:
    found = {
        "container": str(inspected.get("Id", ""))[:12],
        "image": str((inspected.get("Config") or {}).get("Image", "")),
        "image id": str(inspected.get("Image", "")),
        "runtime": str((inspected.get("HostConfig") or {}).get("Runtime", "")),
        "confinement": probe.get("confinement", ""),
    }
    return stated(found)


def stated(details: Mapping[str, str]) -> dict[str, str]:
    """Without those of which nothing is known."""
    return {name: value for name, value in details.items() if value}


def _protects(network: str) -> str:
    reach = {
        "none": ", the network",
        "allow": ", the network but for the allowed hosts",
        "public": ", network addresses, other private addresses and other sandboxes",
    }.get(network, " and other sandboxes")
    return (
        f"The model cannot reach this machine's files, processes, Docker engine{reach}, or change its system."
    )


def _does_not_protect(
    uid: str,
    network: str,
    closed: list[str],
    reached: list[str],
    memory: int | None,
    pids: int | None,
    cpus: float | None,
    disk_bytes: int | None,
    files: int | None,
    open_calls: list[str],
) -> str:
    gaps = ["The kernel is shared, so a hole in it is a way out"]
    gaps += [f"the kernel's {name} can be used" for name in open_calls]
    if uid == "0":
        gaps.append("root inside is the engine's root there, with few capabilities")
    if network == "public":
        gaps.append("it can send what it knows to any place on the internet")
        if "the host's other addresses" not in closed:
            gaps.append("public addresses of the engine's machine are not known here, and not closed")
    if network == "allow":
        gaps.append("what it sends to an allowed host is not looked at")
    if network == "open":
        gaps.append(
            "the network is not safe: the internet and the local network can be reached, and what this machine serves"
        )
        gaps += [f"{name} cannot be closed here" for name in reached]
    limits = {
        "memory": memory,
        "processes": pids,
        "processors": cpus,
        "disk space": disk_bytes,
        "the number of files": files,
    }
    unlimited = [name for name, value in limits.items() if not value]
    if unlimited:
        gaps.append(f"not limited: {', '.join(unlimited)}")
    return "; ".join(gaps) + "."
