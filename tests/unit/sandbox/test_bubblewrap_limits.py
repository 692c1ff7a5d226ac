"""Where control groups can be made, what is written there, and which are taken away again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from resource import RLIMIT_CORE, RLIMIT_DATA, RLIMIT_NOFILE, RLIMIT_NPROC

import pytest

from llm_sandbox_nb.sandbox.bubblewrap.limits import (
    GROUP_PREFIX,
    Base,
    Group,
    GroupOwner,
    InForce,
    find_bases,
    find_groups,
    process_limits,
    reap_groups,
)
from llm_sandbox_nb.sandbox.limits import Limits

USER = "user.slice/user-1000.slice/user@1000.service"


def make_proc(folder: Path, groups: str, mounts: str) -> Path:
    (folder / "proc/self").mkdir(parents=True)
    (folder / "proc/self/cgroup").write_text(groups)
    (folder / "proc/self/mountinfo").write_text(mounts)
    return folder / "proc"


def mount_line(root: str, point: Path, kind: str, options: str) -> str:
    return f"30 23 0:26 {root} {point} rw,nosuid shared:4 - {kind} {kind} {options}\n"


def make_v2(folder: Path, own: str, passing_on: dict[str, str]) -> Path:
    """A tree as systemd leaves it: what each group passes on to its children."""
    path = folder / "cgroup"
    for part in ("", *Path(own).parts):
        path = path / part
        path.mkdir(exist_ok=True)
        (path / "cgroup.procs").write_text("")
        (path / "cgroup.subtree_control").write_text("")
    for name, controllers in passing_on.items():
        (folder / "cgroup" / name / "cgroup.subtree_control").write_text(controllers)
    return folder / "cgroup"


def test_v2_groups_are_made_beside_our_own_where_systemd_passes_controllers_on(tmp_path: Path) -> None:
    tree = make_v2(tmp_path, f"{USER}/app.slice/jupyter.scope", {f"{USER}/app.slice": "cpu memory pids"})
    groups, mounts = f"0::/{USER}/app.slice/jupyter.scope\n", mount_line("/", tree, "cgroup2", "rw")
    found = find_bases(make_proc(tmp_path, groups, mounts))
    assert found == [Base(tree / USER / "app.slice", 2, frozenset({"cpu", "memory", "pids"}))]


def test_v2_without_what_limits_memory_is_of_no_use(tmp_path: Path) -> None:
    tree = make_v2(tmp_path, "session.scope", {"": "pids"})
    mounts = mount_line("/", tree, "cgroup2", "rw")
    assert find_bases(make_proc(tmp_path, "0::/session.scope\n", mounts)) == []


def test_v1_groups_are_made_below_our_own_also_in_a_container(tmp_path: Path) -> None:
    for name in ("memory", "pids"):
        (tmp_path / name).mkdir()
    groups = "5:memory:/docker/abc\n4:pids:/docker/abc\n1:name=systemd:/docker/abc\n0::/\n"
    mounts = mount_line("/docker/abc", tmp_path / "memory", "cgroup", "rw,memory")
    mounts += mount_line("/docker/abc", tmp_path / "pids", "cgroup", "rw,pids")
    found = find_bases(make_proc(tmp_path, groups, mounts))
    assert found == [
        Base(tmp_path / "memory", 1, frozenset({"memory"})),
        Base(tmp_path / "pids", 1, frozenset({"pids"})),
    ]


def test_a_hierarchy_is_searched_among_the_mounts_of_its_version(tmp_path: Path) -> None:
    """Both versions may be mounted at once; the newer one then has no controllers to give."""
    tree = make_v2(tmp_path, "session.scope", {"": "memory pids"})
    (tmp_path / "memory").mkdir()
    mounts = mount_line("/", tree, "cgroup2", "rw")
    mounts += mount_line("/", tmp_path / "memory", "cgroup", "rw,memory")
    proc = make_proc(tmp_path, "5:memory:/\n0::/session.scope\n", mounts)
    assert find_bases(proc) == [
        Base(tmp_path / "memory", 1, frozenset({"memory"})),
        Base(tree, 2, frozenset({"memory", "pids"})),
    ]


class FakeKernel:
    """A folder in which new groups have the files that the kernel would make."""

    def __init__(self, folder: Path, files: dict[str, str]) -> None:
        self.base_folder = folder
        self.files = files

    def make(self, base: Base, limits: Limits, monkeypatch: pytest.MonkeyPatch) -> Group:
        make_folder = Path.mkdir

        def with_files(path: Path, *arguments: object, **options: object) -> None:
            make_folder(path, *arguments, **options)  # type: ignore[arg-type]
            if path.name.startswith(GROUP_PREFIX):
                for name, content in self.files.items():
                    (path / name).write_text(content)

        with monkeypatch.context() as patched:
            patched.setattr(Path, "mkdir", with_files)
            group = Group.make("x", limits, [base])
        assert group
        return group


V2 = {
    "memory.max": "max",
    "memory.swap.max": "max",
    "pids.max": "max",
    "cpu.max": "max 100000",
    "cgroup.procs": "",
}
V1 = {
    "memory.limit_in_bytes": "9223372036854771712",
    "memory.memsw.limit_in_bytes": "9223372036854771712",
    "pids.max": "max",
    "cpu.cfs_quota_us": "-1",
    "cpu.cfs_period_us": "100000",
    "cgroup.procs": "",
}


@pytest.mark.parametrize(("version", "files"), [(1, V1), (2, V2)])
def test_limits_are_written_and_read_back(
    version: int, files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = Base(tmp_path, version, frozenset({"memory", "pids", "cpu"}))
    kernel = FakeKernel(tmp_path, files)
    group = kernel.make(base, Limits(memory_bytes=2**30, pids=77, cpus=1.5), monkeypatch)
    assert group.in_force() == InForce(2**30, 77, 1.5, f"control groups v{version}")
    (folder,) = tmp_path.iterdir()
    swap = "memory.swap.max" if version == 2 else "memory.memsw.limit_in_bytes"
    assert (folder / swap).read_text() == ("0" if version == 2 else str(2**30))


@pytest.mark.parametrize(("version", "files"), [(1, V1), (2, V2)])
def test_what_is_not_limited_is_not_claimed(
    version: int, files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = Base(tmp_path, version, frozenset({"memory", "pids", "cpu"}))
    group = FakeKernel(tmp_path, files).make(base, Limits(None, None, None), monkeypatch)
    assert group.in_force() == InForce(None, None, None, f"control groups v{version}")


def test_a_process_is_moved_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = FakeKernel(tmp_path, V2).make(Base(tmp_path, 2, frozenset({"pids"})), Limits(), monkeypatch)
    group.add(4242)
    (folder,) = tmp_path.iterdir()
    assert (folder / "cgroup.procs").read_text() == "4242"
    assert group.process_files == (folder / "cgroup.procs",)


def test_only_groups_of_dead_owners_are_taken_away(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        dead = GroupOwner.of_process(process.pid)
        assert dead.is_alive()
        process.communicate(b"\n")
    assert not dead.is_alive()
    living = GroupOwner.of_process(os.getpid())
    elsewhere = GroupOwner(living.namespace + 1, living.pid, living.start + 1)
    used_again = GroupOwner(living.namespace, living.pid, living.start + 1)
    for owner in (dead, living, elsewhere, used_again):
        (tmp_path / f"{GROUP_PREFIX}-{owner}-bubblewrap-00").mkdir()
    for name in (f"{GROUP_PREFIX}-of-somebody", "docker", f"other-{dead}-x"):
        (tmp_path / name).mkdir()
    removed = reap_groups(tmp_path.iterdir())
    assert sorted(removed) == sorted(f"{GROUP_PREFIX}-{owner}-bubblewrap-00" for owner in (dead, used_again))
    assert len(list(tmp_path.iterdir())) == 5


def test_groups_are_found_wherever_they_were_made(tmp_path: Path) -> None:
    group = tmp_path / f"cgroup/some/where/{GROUP_PREFIX}-1-2-3-bubblewrap-00"
    group.mkdir(parents=True)
    (tmp_path / f"cgroup/{GROUP_PREFIX}-of-somebody").mkdir()
    mounts = mount_line("/", tmp_path / "cgroup", "cgroup2", "rw")
    assert find_groups(make_proc(tmp_path, "0::/\n", mounts)) == [group]


def test_processes_are_limited_one_by_one_where_there_is_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.release", lambda: "6.1.0-13-amd64")
    values, held = process_limits(Limits(2**30, 50, 1.0), InForce())
    assert values.items() >= {RLIMIT_CORE: 0, RLIMIT_DATA: 2**30, RLIMIT_NPROC: 50}.items()
    assert held == InForce(None, 50, None, "memory for each process by rlimit, processes by rlimit")


def test_limits_of_the_owner_are_not_exceeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a larger value, a program inside could not set its limit, and no sandbox would start."""
    monkeypatch.setattr("platform.release", lambda: "6.1.0-13-amd64")
    monkeypatch.setattr("resource.getrlimit", lambda limit: (100, 100))
    values, held = process_limits(Limits(2**30, 512, None), InForce())
    assert {values[limit] for limit in (RLIMIT_DATA, RLIMIT_NPROC, RLIMIT_NOFILE)} == {100}
    assert held.pids == 100


def test_old_kernels_would_count_all_processes_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.release", lambda: "5.4.0-200-generic")
    values, held = process_limits(Limits(None, 50, None), InForce())
    assert RLIMIT_NPROC not in values
    assert held == InForce()


def test_what_a_group_holds_is_not_limited_twice() -> None:
    held = InForce(2**30, 50, 1.0, "control groups v2")
    values, told = process_limits(Limits(2**30, 50, 1.0), held)
    assert told == held
    assert set(values) == {RLIMIT_CORE, RLIMIT_NOFILE}
