"""Protection of a container, as the kernel inside and the engine outside report it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llm_sandbox_nb.sandbox.capabilities import capability_names
from llm_sandbox_nb.sandbox.cgroups import NO_LIMIT_BYTES
from llm_sandbox_nb.sandbox.contract import Protection
from llm_sandbox_nb.sandbox.network.door import PROXY_ONLY, WAY_OUT
from llm_sandbox_nb.sandbox.protocol.answers import closed_and_open, disk_limits
from llm_sandbox_nb.sandbox.seccomp import describe_calls, describe_mode

_LIMIT_FILES = ("memory.max", "memory/memory.limit_in_bytes", "pids.max", "pids/pids.max", "cpu.max",
                "cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")  # fmt: skip
_STATUS, _CONFINEMENT, _INTERFACES = "/proc/1/status", "/proc/1/attr/current", "/proc/net/dev"
PROBED_FILES = (_STATUS, _CONFINEMENT, _INTERFACES, *(f"/sys/fs/cgroup/{name}" for name in _LIMIT_FILES))
"""Files that the executor reads inside the sandbox. Its answer to the greeting has their texts."""


def read_probe(files: Mapping[str, str | None]) -> dict[str, str]:
    """Return the values in the texts of `PROBED_FILES`, by name.

    `files` has the text of each file that the executor has sent, by path.
    """
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
    probe: Mapping[str, str], inspected: Mapping[str, Any], profile: str, executor: Mapping[str, Any]
) -> Protection:
    """Return the protection of a container, from the reports of the kernel and the engine.

    Args:
        probe: the kernel's values inside, as `read_probe` returns them.
        inspected: the engine's description of the container.
        profile: the sandbox's profile.
        executor: the executor's answer to the greeting. It has `disk`, and the results `calls` and `reach` of tests
            that the executor made before any command ran.

    Raises:
        ValueError: if a value in `probe` should be a number and is not.
    """
    config = inspected.get("HostConfig") or {}
    memory, pids, cpus = _limits(probe, config)
    joined = set((inspected.get("NetworkSettings") or {}).get("Networks") or {config.get("NetworkMode")})
    uid = (probe.get("Uid") or "?").split()[0]
    mask = int(probe.get("CapEff", "0"), 16) | int(probe.get("CapBnd", "0"), 16)
    calls, open_calls = describe_calls(executor.get("calls"))
    disk_bytes, files, disk = disk_limits(executor)
    closed, reached = closed_and_open(executor.get("reach"))
    network = "open" if reached or "private addresses" not in closed else "public"
    if probe.get("interfaces") == "lo" and joined == {"none"}:
        network = "allow" if executor.get("door") else "none"
    details = {
        "container": str(inspected.get("Id", ""))[:12],
        "image": str((inspected.get("Config") or {}).get("Image", "")),
        "image id": str(inspected.get("Image", "")),
        "runtime": str(config.get("Runtime", "")),
        "confinement": probe.get("confinement", ""),
        "system calls": calls,
        "closed": ", ".join(closed),
        "disk": disk,
        WAY_OUT: PROXY_ONLY if network == "allow" else "",
    }
    return Protection(
        isolation="docker",
        profile=profile,
        user="root" if uid == "0" else f"uid {uid}",
        capabilities=capability_names(mask),
        no_new_privileges=probe.get("NoNewPrivs") == "1",
        seccomp=describe_mode(probe),
        network=network,
        read_only_system=bool(config.get("ReadonlyRootfs")),
        memory_bytes=memory,
        pids=pids,
        cpus=cpus,
        details={name: value for name, value in details.items() if value},
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
    """Return the limits on bytes of memory, number of processes, and number of processors. None means no limit.

    Each limit is read from the container's control group. If it is missing there, the engine's description has it.
    """
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
    return value if value and 0 < value < NO_LIMIT_BYTES else None


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
    gaps = ["The kernel is shared with this machine, so a vulnerability of the kernel is a way out"]
    gaps += [f"the kernel's {name} can be used" for name in open_calls]
    if uid == "0":
        gaps.append("root inside has the user id of the engine's root, with few capabilities")
    if network == "public":
        gaps.append("the model can send data to any server on the internet")
        if "the host's other addresses" not in closed:
            gaps.append("public addresses of the engine's machine are not known here, so they are not closed")
    if network == "allow":
        gaps.append("data that the model sends to an allowed host is not checked")
    if network == "open":
        gaps.append(
            "the network is not safe: the internet, the local network and services of this machine can be reached"
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
