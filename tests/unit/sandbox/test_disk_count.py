"""What counts as the sandbox's own files, and how: content that takes room, once, wherever it hides."""

from __future__ import annotations

import multiprocessing
import os
import signal
import stat
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import examples, until

from llm_sandbox_nb.sandbox.docker import container
from llm_sandbox_nb.sandbox.executor import disk_watch
from llm_sandbox_nb.sandbox.executor.disk_watch import DiskUsage, DiskWatch, FileCounter, count_own_files
from llm_sandbox_nb.sandbox.executor.mounts import Epoch
from llm_sandbox_nb.sandbox.protocol.answers import disk_limits

MEGABYTE = 2**20
UNLIMITED = DiskUsage(0, 0)


NOBODY = 2**22
"""No process has this number, and so none is below it: other tests of this process have children, too."""


def counted(folder: Path, first: int = NOBODY, ceiling: DiskUsage = UNLIMITED) -> DiskUsage:
    return count_own_files(str(folder), Epoch(), ceiling, first)


PLACES = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join)
KINDS = st.sampled_from(["file", "file", "folder", "name", "holes", "link", "pipe"])


@settings(max_examples=examples(200))
@given(st.lists(st.tuples(PLACES, KINDS, st.integers(0, 60_000)), max_size=10))
def test_links_and_holes_add_nothing_to_the_size_of_a_tree(
    tmp_path_factory: pytest.TempPathFactory, tree: list[tuple[str, str, int]]
) -> None:
    """Content takes room once for all its names, and holes take nothing."""
    top = tmp_path_factory.mktemp("tree")
    blocks: dict[int, int] = {}
    last = None
    for place, kind, size in tree:
        path = top / place
        with suppress(OSError):  # something else is there
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists() or path.is_symlink():
                continue
            if kind == "file":
                path.write_bytes(os.urandom(size))
                last = path
            elif kind == "holes":
                path.touch()
                os.truncate(path, 10**9)
            elif kind == "name" and last:
                path.hardlink_to(last)
            elif kind == "link":
                path.symlink_to(top)
            elif kind == "pipe":
                os.mkfifo(path)
            else:
                path.mkdir()
    for path in top.rglob("*"):
        blocks[path.lstat().st_ino] = path.lstat().st_blocks
        assert path.lstat().st_size < 10**8 or path.lstat().st_blocks == 0
    assert counted(top) == (sum(blocks.values()) * 512, len(blocks))


FIGURES = st.builds(DiskUsage, st.integers(0, 5000), st.integers(0, 5000))


@given(FIGURES, FIGURES)
def test_commands_end_above_a_limit_and_the_sandbox_only_when_they_go_on(
    limits: DiskUsage, have: DiskUsage
) -> None:
    """0 is no limit; above one, commands may add a sixteenth of it, and the sandbox ends at twice."""
    too_much = any(limit and figure > limit for figure, limit in zip(have, limits, strict=True))
    assert have.exceeds(limits) == too_much
    watch, ended = watched(limits)
    watch.apply_count(have, watch.last.start)
    assert ended == ([watch.notice(have)] if too_much else [])
    if too_much:
        assert (watch.settling, watch.ceiling) == (True, UNLIMITED)
        assert watch.end_commands_above == tuple(
            limit and max(limit, figure) + limit // 16 for figure, limit in zip(have, limits, strict=True)
        )
        watch.apply_count(have, watch.last.start)  # what was left when the commands had ended
        assert watch.end_sandbox_above == tuple(
            limit and max(limit, figure) + limit for figure, limit in zip(have, limits, strict=True)
        )
        assert watch.ceiling == watch.end_sandbox_above
        assert len(ended) == 1
    watch.apply_count(DiskUsage(0, 0), watch.last.start)
    assert (watch.end_commands_above, watch.end_sandbox_above, watch.settling) == (limits, UNLIMITED, False)
    assert watch.ceiling == tuple(4 * limit for limit in limits)


def test_a_tree_deeper_than_paths_can_be(tmp_path: Path) -> None:
    script = "for i in $(seq 60); do mkdir {0} && cd {0} || exit 1; done; head -c 1048576 /dev/zero > file"
    subprocess.run(["bash", "-c", script.format("d" * 200)], cwd=tmp_path, check=True)
    size, files = counted(tmp_path)
    assert size >= MEGABYTE
    assert files == 61
    subprocess.run(["rm", "-rf", *tmp_path.iterdir()], check=True)


def test_a_folder_that_its_owner_closed() -> None:
    """For an ordinary user, as in the profile `strict`."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        (size, files), mode = pool.apply(count_a_closed_folder)
    assert size >= MEGABYTE
    assert (files, mode) == (2, 0)


def count_a_closed_folder() -> tuple[tuple[int, int], int]:
    if os.getuid() == 0:
        os.setresuid(65534, 65534, 65534)
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        closed = Path(folder, "closed")
        closed.mkdir()
        (closed / "file").write_bytes(bytes(MEGABYTE))
        closed.chmod(0)
        found = counted(Path(folder)), stat.S_IMODE(closed.stat().st_mode)
        closed.chmod(0o700)
        return found


def test_deleted_files_count_while_they_are_open(tmp_path: Path) -> None:
    program = (
        "import os, sys; file = open('f', 'wb'); file.write(bytes(2**20)); file.flush(); os.unlink('f');"
        " print(flush=True); sys.stdin.read()"
    )
    argv = [sys.executable, "-c", program]
    with subprocess.Popen(argv, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout
        holder.stdout.readline()
        assert counted(tmp_path, os.getpid())[0] >= MEGABYTE
        assert holder.stdin
        holder.stdin.close()
    assert counted(tmp_path)[0] < MEGABYTE


def test_files_older_than_the_sandbox_are_not_counted(tmp_path: Path) -> None:
    (tmp_path / "older").write_bytes(bytes(MEGABYTE))
    before = (tmp_path / "older").stat().st_ctime_ns

    def later() -> bool:
        (tmp_path / "younger").write_bytes(bytes(MEGABYTE))
        return (tmp_path / "younger").stat().st_ctime_ns > before

    until(later)  # the clock of files is coarse
    count = FileCounter(before + 1, UNLIMITED)
    count.walk(os.fsencode(tmp_path), set(), 0)
    assert count.files == 1
    assert MEGABYTE <= count.size < 2 * MEGABYTE


def test_counting_stops_above_the_ceiling(tmp_path: Path) -> None:
    for number in range(50):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "file").touch()
    assert 10 < counted(tmp_path, ceiling=DiskUsage(0, 10))[1] < 100


def test_limits_in_force_are_read_from_the_answer_of_the_executor() -> None:
    assert disk_limits({}) == (None, None, "")
    assert disk_limits({"disk": {"bytes": -1, "files": 1, "total": 1}}) == (None, None, "")
    assert disk_limits({"disk": {"bytes": 0, "files": 0, "total": 0}}) == (None, None, "")
    watched = disk_limits({"disk": {"bytes": 5, "files": 6, "total": 10}})
    assert watched[:2] == (5, 6)
    assert "ended" in watched[2]
    assert disk_limits({"disk": {"bytes": 5, "files": 0, "total": 4}}) == (4, None, "this is the disk's size")


class _Engine:
    """A stand-in for the client of Docker, with the driver and filesystem that `with_quota` reads."""

    def __init__(self, driver: str, filesystem: str) -> None:
        self.api = self
        self.base_url = f"http+docker://{driver}-{filesystem}"
        self._info = {"Driver": driver, "DriverStatus": [["Backing Filesystem", filesystem]]}

    def info(self) -> dict[str, object]:
        return self._info


@pytest.mark.parametrize(
    ("driver", "filesystem", "refusal", "asked"),
    [
        ("overlay2", "extfs", "", [False]),
        ("btrfs", "xfs", "", [False]),
        ("overlay2", "xfs", "", [True]),
        (
            "overlay2",
            "xfs",
            "--storage-opt is supported only for overlay over xfs with 'pquota'",
            [True, False],
        ),
    ],
)
def test_a_quota_is_requested_only_with_overlay2_on_xfs(
    driver: str, filesystem: str, refusal: str, asked: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    from docker.errors import APIError

    monkeypatch.setattr(container, "_has_quotas", {})
    engine, found = _Engine(driver, filesystem), []

    def make(quota: bool) -> dict[str, object]:
        found.append(quota)
        if quota and refusal:
            raise APIError("500", explanation=refusal)
        return {}

    container.with_quota(engine, make)  # type: ignore[arg-type]
    assert found == asked
    container.with_quota(engine, make)  # type: ignore[arg-type]
    assert found == [*asked, asked[-1]]


class Machine:
    """An executor that has no process left to fork."""

    remove = ""

    def __init__(self) -> None:
        self.requests = {1: object()}
        self.ended: list[str] = []


@pytest.mark.parametrize(("grown", "ended"), [(0, 0), (3 * MEGABYTE, 1)])
def test_without_a_fork_only_growth_since_the_start_counts(
    grown: int, ended: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However full the filesystem is otherwise."""

    def no_fork(*_: object) -> None:
        raise BlockingIOError

    monkeypatch.setattr(disk_watch, "fork_with_pipes", no_fork)
    machine: Any = Machine()
    count_three_times(machine, grown, monkeypatch)
    assert len(machine.ended) == ended


@pytest.mark.parametrize("first", ["a killed child", "a failed fork"])
def test_two_failed_counts_in_a_row_lead_to_a_decision(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that hinders counts gains nothing if it does so in another way each time."""

    def fork(*_: object) -> tuple[int, list[int]]:
        if first == "a failed fork" or watch.failed_counts:
            raise BlockingIOError
        read, write = os.pipe()
        os.close(write)
        return 1, [read]

    machine: Any = SimpleNamespace(
        requests={}, helpers=set(), children={}, remove="", watch=lambda *_: None, unwatch=lambda _: None
    )
    watch = DiskWatch(machine, machine, Epoch())
    ended: list[str] = []
    monkeypatch.setattr(disk_watch, "fork_with_pipes", fork)
    monkeypatch.setattr(watch, "end_commands", ended.append)
    watch.limits = watch.end_commands_above = DiskUsage(2 * MEGABYTE, 0)
    watch.used = DiskUsage(3 * MEGABYTE, 0)
    watch.count(watch.last.start)
    if machine.children:
        machine.children[1](9)
    assert (watch.failed_counts, ended) == (1, [])
    watch.count(watch.last.start)
    assert (watch.failed_counts, len(ended)) == (0, 1)


@pytest.mark.parametrize(
    ("grown", "own", "counts", "ended"),
    [(0, 3 * MEGABYTE, 0, 0), (3 * MEGABYTE, 0, 1, 0), (3 * MEGABYTE, 3 * MEGABYTE, 1, 1)],
)
def test_among_hundreds_of_processes_the_files_of_others_end_no_command(
    grown: int, own: int, counts: int, ended: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No fork is tried: it would wait. The files are counted here, and only if they can be too many."""
    counted: list[int] = []

    def count_own_files(*_: object) -> DiskUsage:
        counted.append(own)
        return DiskUsage(own, 0)

    monkeypatch.setattr(disk_watch.Crowd, "is_here", lambda: True)
    monkeypatch.setattr(disk_watch, "count_own_files", count_own_files)
    machine: Any = Machine()
    count_three_times(machine, grown, monkeypatch)
    assert (len(counted), len(machine.ended)) == (counts, ended)


def count_three_times(machine: Any, grown: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a watch with a limit of 2 MB count, after the filesystem has grown by `grown` bytes."""
    used = DiskUsage(50_000 * MEGABYTE, 1_000_000)
    watch = disk_watch.DiskWatch(machine, machine, Epoch())
    monkeypatch.setattr(watch, "end_commands", machine.ended.append)
    watch.limits = watch.end_commands_above = DiskUsage(2 * MEGABYTE, 0)
    then = disk_watch.Observation(used, UNLIMITED, 0.0, frozenset())
    watch.last = watch.last._replace(start=then)
    watch.used = DiskUsage(used.size + grown, used.files)
    for _ in range(3):
        watch.count(then._replace(used=watch.used))


class Left(BaseException):
    """The sandbox has ended."""


class Leaving:
    """An executor that may end the sandbox."""

    remove = ""

    def leave(self) -> None:
        raise Left


def watched(limits: DiskUsage) -> tuple[Any, list[str]]:
    """Return a watch with these limits, and the list of the notices with which it ends commands."""
    watch: Any = disk_watch.DiskWatch(Leaving(), None, Epoch())  # type: ignore[arg-type]
    watch.limits = watch.end_commands_above = limits
    ended: list[str] = []
    watch.end_commands = ended.append
    return watch, ended


def test_files_written_during_a_count_do_not_end_the_sandbox() -> None:
    """A command writes on until it is ended, and a count takes its time: the next one tells how much that was."""
    watch, ended = watched(DiskUsage(0, 4000))
    watch.apply_count(DiskUsage(0, 4100), watch.last.start)
    assert len(ended) == 1
    assert watch.ceiling == UNLIMITED
    watch.apply_count(DiskUsage(0, 90_000), watch.last.start)
    assert len(ended) == 1
    watch.apply_count(DiskUsage(0, 90_200), watch.last.start)
    assert len(ended) == 1
    watch.apply_count(DiskUsage(0, 90_300), watch.last.start)
    assert len(ended) == 2
    with pytest.raises(Left):
        watch.apply_count(DiskUsage(0, 94_001), watch.last.start)
    watch.apply_count(DiskUsage(0, 100), watch.last.start)
    assert (watch.end_commands_above, watch.end_sandbox_above) == ((0, 4000), UNLIMITED)


def test_limits_that_are_removed_and_set_again_start_no_second_watch(tmp_path: Path) -> None:
    timers: list[Any] = []
    executor: Any = SimpleNamespace(
        remove=str(tmp_path), requests={}, after=lambda _, action: timers.append(action)
    )
    watch = DiskWatch(executor, SimpleNamespace(), Epoch())  # type: ignore[arg-type]
    for limits in (DiskUsage(10**9, 0), UNLIMITED, DiskUsage(10**9, 0)):
        watch.watch(limits)
    assert len(timers) == 1


def test_a_count_that_a_command_has_stopped_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But not one that the executor has stopped itself, together with a crowd."""
    executor: Any = SimpleNamespace(remove=str(tmp_path), requests={}, after=lambda *_: None)
    watch = DiskWatch(executor, SimpleNamespace(), Epoch())  # type: ignore[arg-type]
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        watch.counting = child.pid
        watch.tick()
        child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        monkeypatch.setattr(disk_watch.Crowd, "stopped", True)
        watch.tick()
        assert child.poll() is None
        monkeypatch.setattr(disk_watch.Crowd, "stopped", False)
        watch.tick()
        assert child.wait() == -signal.SIGKILL
