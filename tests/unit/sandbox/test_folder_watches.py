"""Checkpoints by folder watches: they find what a walk over all files finds, and look at almost nothing else."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from history_channel import Host, Told
from hypothesis import given, settings
from hypothesis import strategies as st
from support import child_pids, examples

from llm_sandbox_nb.sandbox.executor import filesystem_scan, folder_watches, snapshotter
from llm_sandbox_nb.sandbox.executor.entries import row_of
from llm_sandbox_nb.sandbox.executor.filesystem_scan import FilesystemScan, ScanLimits
from llm_sandbox_nb.sandbox.executor.mounts import Epoch, Mount
from llm_sandbox_nb.sandbox.executor.records import RecordWriter
from llm_sandbox_nb.sandbox.executor.snapshotter import Snapshotter

FOLDERS, FILES = ["", "a", "a/b", "c"], ["x", "y", "z"]


class Tree:
    """A folder, a snapshotter that watches it, and the manifest of a host that reads its records."""

    def __init__(self, root: Path, outputs: str = "") -> None:
        self.root = root
        self.outputs = os.fsencode(root / outputs) if outputs else b""
        self.snapshotter = Snapshotter(os.fsencode(root), self.outputs, Epoch())
        self.host = Host(None)
        self.count = 0
        self.incomplete = ""

    def checkpoint(self, **params: Any) -> bool:
        """Take a checkpoint. Returns True if watches sufficed for it."""
        walks = []
        walk = FilesystemScan.scan

        def noted(scan: FilesystemScan, *arguments: Any) -> None:
            walks.append(scan)
            walk(scan, *arguments)

        since, self.count = f"c{self.count}", self.count + 1
        records = os.memfd_create("records")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FilesystemScan, "scan", noted)
            patch.setattr(snapshotter, "RecordWriter", lambda _: RecordWriter(records))
            outcome = self.snapshotter.checkpoint({"id": f"c{self.count}", "since": since, **params})
        self.incomplete = outcome["incomplete"]
        self.host.take(Told(os.pread(records, 1 << 28, 0), outcome))
        os.close(records)
        return not walks

    def by_walk(self) -> dict[str, list[Any]]:
        """Return the manifest that a walk without any memory finds."""
        records = os.open("/dev/null", os.O_WRONLY)
        scan = FilesystemScan(RecordWriter(records), {}, ScanLimits({}))
        scan.mapped, _ = folder_watches.mapped_files({})
        scan.scan([Mount(os.fsencode(self.root), 0)], set(), self.snapshotter.epoch)
        os.close(records)
        return {os.fsdecode(path): row_of(path, record) for path, record in scan.new.items()}

    def assert_true(self) -> None:
        wanted = self.by_walk()
        assert self.host.manifest == wanted
        memory = self.snapshotter.known.memory
        assert {os.fsdecode(path): row_of(path, record) for path, record in memory.items()} == wanted


@pytest.fixture(autouse=True)
def only_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Examine the processes of this test only, because the parent is the whole suite with hundreds of them."""
    monkeypatch.setattr(folder_watches, "running_processes", lambda: map(str, {os.getpid(), *child_pids()}))


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """A tree of some files, watched from its second checkpoint on however small it is."""
    monkeypatch.setattr(snapshotter, "MIN_WATCHED_ENTRIES", 1)
    return planted(tmp_path / "tree")


def planted(root: Path, outputs: str = "") -> Tree:
    for folder in FOLDERS:
        (root / folder).mkdir(parents=True, exist_ok=True)
        for name in FILES:
            (root / folder / name).write_text(folder + name)
    tree = Tree(root, outputs)
    tree.checkpoint()
    tree.checkpoint()
    return tree


# -- any operations ------------------------------------------------------------------------------------------------


class Operations:
    """Operations on the paths of a tree; those that are impossible at the moment do nothing."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.elsewhere = root.with_name(root.name + "-elsewhere")
        self.elsewhere.mkdir()
        self.held: list[int] = []
        self.maps: list[mmap.mmap] = []
        self.number = 0

    def close(self) -> None:
        for fd in self.held:
            os.close(fd)
        for mapping in self.maps:
            mapping.close()

    def text(self) -> bytes:
        self.number += 1
        return b"%06d" % self.number

    def write(self, path: Path, other: Path) -> None:
        path.write_bytes(self.text())

    def append(self, path: Path, other: Path) -> None:
        with path.open("ab") as file:
            file.write(self.text())

    def write_with_old_time(self, path: Path, other: Path) -> None:
        info = path.stat()
        with path.open("r+b") as file:
            file.write(self.text()[: info.st_size])
        os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))

    def truncate(self, path: Path, other: Path) -> None:
        os.truncate(path, 3)

    def chmod(self, path: Path, other: Path) -> None:
        path.chmod(0o700 if path.stat().st_mode & 0o077 else 0o755)

    def set_time(self, path: Path, other: Path) -> None:
        self.number += 1
        os.utime(path, ns=(0, self.number))

    def set_attribute(self, path: Path, other: Path) -> None:
        os.setxattr(path, "user.word", self.text())

    def unlink(self, path: Path, other: Path) -> None:
        path.unlink()

    def remake(self, path: Path, other: Path) -> None:
        path.unlink()
        path.write_bytes(self.text())

    def rename(self, path: Path, other: Path) -> None:
        path.rename(other)

    def link(self, path: Path, other: Path) -> None:
        other.hardlink_to(path)

    def symlink(self, path: Path, other: Path) -> None:
        other.symlink_to(path)

    def fifo(self, path: Path, other: Path) -> None:
        os.mkfifo(other)

    def mkdir(self, path: Path, other: Path) -> None:
        other.mkdir()
        (other / "made").write_bytes(self.text())

    def remove_tree(self, path: Path, other: Path) -> None:
        shutil.rmtree(path)

    def swap(self, path: Path, other: Path) -> None:
        """Exchange two entries, so that each path has the entry, and the watch, of the other."""
        between = self.elsewhere / "between"
        path.rename(between)
        other.rename(path)
        between.rename(other)

    def write_through_a_link_in_a_folder_that_goes(self, path: Path, other: Path) -> None:
        folder = self.root / "gone"
        folder.mkdir()
        (folder / "link").hardlink_to(path)
        with (folder / "link").open("ab") as file:
            file.write(self.text())
        shutil.rmtree(folder)

    def hold(self, path: Path, other: Path) -> None:
        self.held.append(os.open(path, os.O_WRONLY | os.O_APPEND))

    def write_to_held(self, path: Path, other: Path) -> None:
        os.write(self.held[self.number % len(self.held)], self.text())

    def release(self, path: Path, other: Path) -> None:
        os.close(self.held.pop())

    def map(self, path: Path, other: Path) -> None:
        with path.open("r+b") as file:
            self.maps.append(mmap.mmap(file.fileno(), 0))

    def write_to_map(self, path: Path, other: Path) -> None:
        mapping = self.maps[self.number % len(self.maps)]
        mapping[0:3] = self.text()[-3:]
        mapping.flush()  # so that the walk to compare with sees the time too

    def unmap(self, path: Path, other: Path) -> None:
        self.maps.pop().close()


NAMES = [name for name in vars(Operations) if not name.startswith("_") and name not in ("close", "text")]
PATHS = st.builds(os.path.join, st.sampled_from(FOLDERS), st.sampled_from([*FILES, "a", "b", "c", "new"]))
STEPS = st.lists(
    st.lists(st.tuples(st.sampled_from(NAMES), PATHS, PATHS), min_size=1, max_size=4), min_size=1, max_size=6
)


@given(STEPS)
@settings(max_examples=examples(300), deadline=None)
def test_watches_and_a_walk_find_the_same(tmp_path_factory: pytest.TempPathFactory, steps: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshotter, "MIN_WATCHED_ENTRIES", 1)
        tree = planted(tmp_path_factory.mktemp("any") / "tree")
    with pytest.MonkeyPatch.context() as patch, contextlib.closing(Operations(tree.root)) as operations:
        patch.setattr(snapshotter, "MIN_WATCHED_ENTRIES", 1)
        for step in steps:
            for name, path, other in step:
                if (tree.root / path).is_fifo() and name not in ("unlink", "rename", "chmod"):
                    continue  # opening it would wait for a reader
                with contextlib.suppress(OSError, IndexError, ValueError, ZeroDivisionError, shutil.Error):
                    getattr(operations, name)(tree.root / path, tree.root / other)
            tree.checkpoint()
            tree.assert_true()
        tree.snapshotter.stop_watching()


# -- what each kind of change costs --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["write", "append", "write_with_old_time", "chmod", "set_time", "unlink", "remake", "rename", "fifo"],
)
def test_changes_of_files_need_no_walk(tree: Tree, name: str) -> None:
    operations = Operations(tree.root)
    getattr(operations, name)(tree.root / "a/x", tree.root / "c/new")
    assert tree.checkpoint()
    tree.assert_true()


@pytest.mark.parametrize("name", ["mkdir", "link", "write_through_a_link_in_a_folder_that_goes"])
def test_changes_that_can_hide_others_need_a_walk(tree: Tree, name: str) -> None:
    operations = Operations(tree.root)
    getattr(operations, name)(tree.root / "a/x", tree.root / "c/new")
    assert not tree.checkpoint()
    tree.assert_true()
    assert tree.checkpoint()  # this walk has begun new watches


@pytest.mark.parametrize("path", ["c", "a/b"])
def test_a_renamed_or_removed_folder_needs_a_walk(tree: Tree, path: str) -> None:
    (tree.root / path).rename(tree.root / "renamed")
    assert not tree.checkpoint()
    tree.assert_true()
    shutil.rmtree(tree.root / "renamed")
    assert not tree.checkpoint()
    tree.assert_true()


def test_both_names_of_a_file_are_examined(tree: Tree) -> None:
    """The kernel reports the name that a program wrote to, not the other one."""
    (tree.root / "c/second").hardlink_to(tree.root / "a/x")
    tree.checkpoint()
    (tree.root / "c/second").write_text("through the second name")
    assert tree.checkpoint()
    tree.assert_true()
    (tree.root / "a/x").unlink()
    assert tree.checkpoint()
    tree.assert_true()


def test_a_write_through_a_name_that_is_gone_is_found(tree: Tree) -> None:
    fd = os.open(tree.root / "a/x", os.O_WRONLY)
    (tree.root / "c/second").hardlink_to(tree.root / "a/x")
    (tree.root / "a/x").unlink()
    tree.checkpoint()
    tree.assert_true()
    os.write(fd, b"through the first name")
    os.close(fd)
    assert not tree.checkpoint()
    tree.assert_true()


def test_a_store_to_a_mapping_is_found(tree: Tree) -> None:
    """The kernel reports no store, and shows the first one only in the file's time."""
    with (tree.root / "a/x").open("r+b") as file:
        mapping = mmap.mmap(file.fileno(), 0)
    for letter in (b"1", b"2"):
        mapping[0:1] = letter
        assert tree.checkpoint()
        assert tree.host.content(str(tree.root / "a/x"))[:1] == letter
    mapping[0:1] = b"3"
    mapping.close()
    assert tree.checkpoint()
    assert tree.host.content(str(tree.root / "a/x"))[:1] == b"3"


def test_a_mapping_is_found_among_thousands(tree: Tree) -> None:
    """The kernel returns a memory map of many pages in parts."""
    with (tree.root / "a/x").open("r+b") as file:
        mappings = [
            mmap.mmap(-1, mmap.PAGESIZE, prot=prot) for prot in (mmap.PROT_READ, mmap.PROT_WRITE) * 200
        ]
        mapping = mmap.mmap(file.fileno(), 0)
        mappings += [
            mmap.mmap(-1, mmap.PAGESIZE, prot=prot) for prot in (mmap.PROT_READ, mmap.PROT_WRITE) * 200
        ]
    found, complete = folder_watches.mapped_files({})
    assert os.fsencode(tree.root / "a/x") in found
    assert complete
    for each in (*mappings, mapping):
        each.close()


LIBC = ctypes.CDLL(None, use_errno=True)


class Mapping:
    """A shared mapping of a file whose descriptor is closed, and which is writable only during a store."""

    def __init__(self, path: Path) -> None:
        LIBC.mmap.restype = ctypes.c_void_p
        fd = os.open(path, os.O_RDWR)
        self.place = ctypes.c_void_p(LIBC.mmap(None, mmap.PAGESIZE, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0))
        os.close(fd)

    def store(self, letter: bytes) -> None:
        assert LIBC.mprotect(self.place, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE) == 0
        ctypes.memmove(self.place, letter, 1)
        assert LIBC.mprotect(self.place, mmap.PAGESIZE, mmap.PROT_READ) == 0

    def close(self) -> None:
        LIBC.munmap(self.place, mmap.PAGESIZE)


def test_a_store_to_a_mapping_that_is_writable_for_a_moment_only_is_found(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The canary: without a look at what the mapping may become, the store is missed."""
    path = tree.root / "a/x"
    with contextlib.closing(Mapping(path)) as mapping:
        for letter in (b"1", b"2", b"3"):
            mapping.store(letter)
            assert tree.checkpoint()
            assert tree.host.content(str(path))[:1] == letter
        monkeypatch.setattr(folder_watches, "writable_again", lambda pid, paths: set())
        mapping.store(b"4")
        assert tree.checkpoint()
        assert tree.host.content(str(path))[:1] == b"3"


def test_a_mapping_for_reading_costs_no_reading_of_its_file(tree: Tree) -> None:
    """Programs map large data for reading."""
    path = tree.root / "a/x"
    with path.open("rb") as file, contextlib.closing(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)):
        mapped, complete = folder_watches.mapped_files(tree.snapshotter.known.memory)
    assert complete
    assert os.fsencode(path) not in mapped


def test_more_mappings_than_are_examined_are_said(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tree.checkpoint()
    assert tree.incomplete == ""
    monkeypatch.setattr(folder_watches, "MAX_PROC_BYTES", 1000)
    assert not tree.checkpoint()
    assert "so many mappings that a change may be missed" in tree.incomplete


@pytest.fixture
def tree_with_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """A tree that has the executor's folder, which no scan lists."""
    monkeypatch.setattr(snapshotter, "MIN_WATCHED_ENTRIES", 1)
    (tmp_path / "tree" / "outputs").mkdir(parents=True)
    return planted(tmp_path / "tree", "outputs")


def write_through_the_executors_folder(root: Path, folder: str = "outputs") -> None:
    """Give a file another name there, write through that name, and remove the name."""
    name = root / folder / "name"
    name.hardlink_to(root / "a/x")
    name.write_text("through the executor's folder")
    name.unlink()


def test_a_write_through_a_name_in_the_executors_folder_is_found(tree_with_outputs: Tree) -> None:
    tree = tree_with_outputs
    write_through_the_executors_folder(tree.root)
    assert not tree.checkpoint()
    assert tree.host.content(str(tree.root / "a/x")) == b"through the executor's folder"
    assert tree.checkpoint()


def test_with_a_folder_there_every_checkpoint_walks(tree_with_outputs: Tree) -> None:
    tree = tree_with_outputs
    (tree.root / "outputs/below").mkdir()
    for _ in range(2):
        write_through_the_executors_folder(tree.root, "outputs/below")
        assert not tree.checkpoint()
        assert tree.host.content(str(tree.root / "a/x")) == b"through the executor's folder"
        (tree.root / "a/x").write_text("another")
        assert not tree.checkpoint()


def test_the_canary_without_a_watch_on_the_executors_folder_it_is_missed(
    tree_with_outputs: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = tree_with_outputs
    monkeypatch.setattr(folder_watches.FolderWatches, "add_unlisted", lambda self, path: None)
    tree.checkpoint(walk=True)
    write_through_the_executors_folder(tree.root)
    assert tree.checkpoint()
    assert (
        tree.host.content(str(tree.root / "a/x")) == b"a/x"
        or tree.host.content(str(tree.root / "a/x")) == b"ax"
    )


def test_a_long_output_of_a_command_costs_one_walk(tree_with_outputs: Tree) -> None:
    tree = tree_with_outputs
    (tree.root / "outputs/1.out").write_text("long")
    assert not tree.checkpoint()
    assert tree.checkpoint()


def test_a_background_process_is_seen(tree: Tree) -> None:
    program = f"file = open({str(tree.root / 'a/x')!r}, 'ab', 0)\nwhile input(): file.write(b'more'); print(flush=True)"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as writer:
        assert writer.stdin
        assert writer.stdout
        for _ in range(3):
            writer.stdin.write(b"go\n")
            writer.stdout.readline()
            assert tree.checkpoint()
            tree.assert_true()
        writer.stdin.write(b"\n")


def test_lost_events_need_a_walk(tree: Tree) -> None:
    """Changes of two files in turn are more events than the kernel queues."""
    queued = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    for number in range(queued + 1):
        os.utime(tree.root / FILES[number % 2], ns=(number, number))
    (tree.root / "a/x").write_text("unreported")
    assert not tree.checkpoint()
    tree.assert_true()


@pytest.mark.parametrize(
    "limit", [{"MAX_WATCHED_FOLDERS": 2}, {"REPORTING_FILESYSTEMS": frozenset()}, {"MASK": 0}]
)
def test_without_a_watch_on_each_folder_every_checkpoint_walks(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, limit: dict[str, Any]
) -> None:
    for name, value in limit.items():
        monkeypatch.setattr(folder_watches, name, value)
    tree.checkpoint(walk=True)
    for _ in range(2):
        (tree.root / "a/b/x").write_text("new")
        assert not tree.checkpoint()
        tree.assert_true()


def test_other_programs_keep_some_inotify_descriptors(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of an ordinary user is 128, so that watchers of other programs need some."""
    limit = int(Path("/proc/sys/fs/inotify/max_user_instances").read_text())
    monkeypatch.setattr(folder_watches, "SPARE_INSTANCES", limit)
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    tree.checkpoint(walk=True)
    assert not tree.checkpoint()
    assert len(list(Path("/proc/self/fd").iterdir())) <= open_before


def test_a_walk_can_be_asked_for(tree: Tree) -> None:
    assert tree.checkpoint()
    assert not tree.checkpoint(walk=True)


def test_an_earlier_checkpoint_needs_a_walk(tree: Tree) -> None:
    """A host that lost an answer continues from the checkpoint before."""
    (tree.root / "a/x").write_text("lost")
    lost = tree.host.manifest.copy()
    assert tree.checkpoint()
    tree.host.manifest = lost
    assert not tree.checkpoint(since=f"c{tree.count - 1}")
    tree.assert_true()


@pytest.fixture
def large_tree(tmp_path: Path) -> Tree:
    for folder in range(30):
        (tmp_path / f"{folder}").mkdir()
        for number in range(100):
            (tmp_path / f"{folder}/{number}").write_text(f"{folder} {number}")
    tree = Tree(tmp_path)
    tree.checkpoint()
    tree.checkpoint()
    return tree


@contextlib.contextmanager
def counted_calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    seen: list[Any] = []
    with monkeypatch.context() as patch:
        for name in ("scandir", "lstat"):
            call = getattr(os, name)
            patch.setattr(
                filesystem_scan.os, name, lambda path, call=call: (seen.append(path), call(path))[1]
            )
        yield seen


def test_a_checkpoint_examines_only_what_changed(large_tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    with counted_calls(monkeypatch) as seen:
        assert large_tree.checkpoint()
    own = [path for path in seen if os.fsencode(path).startswith(os.fsencode(large_tree.root))]
    assert own == [os.fsencode(large_tree.root)]
    (large_tree.root / "7/7").write_text("changed")
    (large_tree.root / "8/8").unlink()
    with counted_calls(monkeypatch) as seen:
        assert large_tree.checkpoint()
    own = [path for path in seen if os.fsencode(path).startswith(os.fsencode(large_tree.root))]
    assert len(own) <= 4  # both files, the folder that lost one, and the top
    large_tree.assert_true()


def test_a_small_tree_has_no_watches(tmp_path: Path) -> None:
    """A walk over few files is quick, and inotify descriptors are few."""
    tree = planted(tmp_path / "tree")
    assert tree.snapshotter.watches is None


# -- long reports --------------------------------------------------------------------------------------------------


def report(root: Path, old: Any) -> tuple[FilesystemScan, Told]:
    """Walk over all files. Return the scan, and what it reports."""
    records = os.memfd_create("records")
    writer = RecordWriter(records)
    scan = FilesystemScan(writer, old, ScanLimits({}))
    scan.scan([Mount(os.fsencode(root), 0)], set(), Epoch())
    writer.end()
    told = Told(os.pread(records, 1 << 28, 0), {})
    os.close(records)
    return scan, told


def test_no_report_is_longer_than_the_host_accepts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    most, margin = 20_000, 3_000
    monkeypatch.setattr(filesystem_scan, "MAX_REPORT_BYTES", most)
    monkeypatch.setattr(filesystem_scan, "MAX_NAMES_BYTES", most // 2)
    (tmp_path / "folder").mkdir()
    for number in range(40):
        (tmp_path / "folder" / (f"{number:02}" + "\udcff" * 100)).touch()
    first, told = report(tmp_path, {})
    assert 5 < len(told.entries) < 20
    assert filesystem_scan.TOO_LONG in first.shortfall.text()
    for path in (tmp_path / "folder").iterdir():
        path.unlink()
    (tmp_path / "a").write_text("several names")
    for number in range(60):
        os.link(tmp_path / "a", tmp_path / f"link{number}")
    _, told = report(tmp_path, first.new)
    assert len(told.gone) > 5
    assert most - margin < len(told.data) < most + margin
    assert len(told.entries) > 20


def test_many_long_names_at_once_need_a_walk(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystem_scan, "MAX_RESCANNED_NAMES_BYTES", 2000)
    for number in range(9):
        (tree.root / f"{number}{'n' * 200}").touch()
    assert not tree.checkpoint()
    tree.assert_true()
