"""The history of a sandbox's files: checkpoint, restore, fork, and reading the past."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sandbox_commands import living
from shared_sandboxes import isolated
from support import PATIENCE, own_mark

from llm_sandbox_nb.sandbox.errors import HistoryError
from llm_sandbox_nb.sandbox.history.packs import PackReader, SharedPieces
from llm_sandbox_nb.sandbox.open import open_sandbox

pytestmark = pytest.mark.own_sandbox


@pytest.mark.smoke
async def test_checkpoint_change_restore_undo(box: Any, tmp_path: Path) -> None:
    await box.keep_history(tmp_path / "h")
    await box.run("printf one > f; export A=1; hello() { echo hello; }; mkdir d; cd d")
    one = await box.checkpoint()
    assert await box.checkpoint() == one
    await box.run("printf two > ../f; unset A; unset -f hello; ln -s f ../l; cd ..; rmdir d")
    changes = {change.path.rpartition("/")[2]: change for change in (await box.changes(one)).files}
    kinds = {name: change.kind for name, change in changes.items()}
    assert kinds == {"f": "modified", "l": "added", "d": "deleted"}
    assert (changes["f"].before, changes["f"].after) == (b"one", b"two")
    assert changes["l"].detail == "a link to 'f'"
    restored = await box.restore(one)
    assert (restored.problems, restored.shell) == ((), True)
    assert (await box.run("cat ../f; echo $A; hello; basename $PWD")).stdout == b"one1\nhello\nd\n"
    assert (await box.restore(restored.safety)).problems == ()
    assert (await box.run("cat f; echo $A; hello; ls -F")).stdout.startswith(b"two\n")
    assert await box.read_file("f", at=one) == b"one"
    assert {entry.path.rpartition("/")[2] for entry in await box.list_files(".", at=one)} >= {"f", "d"}


@isolated
async def test_the_files_of_another_isolation_change_nothing(box: Any, tmp_path: Path) -> None:
    """Such a restore would remove the files of this sandbox, whose folders the other history does not have."""
    async with await open_sandbox("process") as other:
        await other.keep_history(tmp_path / "h")
        made = await other.checkpoint()
    await box.keep_history(tmp_path / "b", continue_from=tmp_path / "h")
    await box.run("echo mine > f")
    with pytest.raises(HistoryError, match="is from another isolation"):
        await box.restore(made)
    assert await box.read_file("f") == b"mine\n"


async def test_a_comparison_with_the_oldest_checkpoint_does_not_drop_it(box: Any, tmp_path: Path) -> None:
    """The canary: a checkpoint that keeps no other drops the oldest."""
    await box.keep_history(tmp_path / "h", limit=10 * 2**20)
    made = []
    for _ in range(2):
        await box.run("head -c 4M /dev/urandom > f")
        made.append(await box.checkpoint())
    await box.run("head -c 4M /dev/urandom > f")
    assert [change.path.rpartition("/")[2] for change in (await box.changes(b=made[0])).files] == ["f"]
    await box.run("head -c 4M /dev/urandom > f")
    newest = await box.checkpoint(keep=made[:1])
    assert [one.id for one in box.history.checkpoints] == [made[0], newest]
    assert (await box.restore(made[0])).problems == ()
    await box.run("head -c 4M /dev/urandom > f")
    await box.checkpoint()
    with pytest.raises(HistoryError, match="was dropped"):
        await box.restore(made[0])


@pytest.mark.smoke
async def test_background_jobs_end_with_a_restore(box: Any) -> None:
    """The canary: the job does write as long as it lives."""
    mark = own_mark()
    await box.run("echo start > f")
    before = await box.checkpoint()
    job = f"sh -c 'while :; do echo more >> f; sleep 0.01; done' {mark} &"
    await box.run(f"{job} until [ $(wc -c < f) -gt 20 ]; do sleep 0.01; done")
    assert living(mark) == 1
    assert (await box.restore(before)).problems == ()
    assert living(mark) == 0
    assert await box.read_file("f") == b"start\n"
    assert (await box.changes(before)).files == ()


@pytest.mark.smoke
async def test_a_fork_is_another_sandbox(box: Any, tmp_path: Path) -> None:
    await box.run("echo one > f")
    one = await box.checkpoint()
    await box.run("echo two > f")
    async with await box.fork(one, history=tmp_path / "fork") as fork:
        assert await fork.read_file("f") == b"one\n"
        await fork.run("echo forked > f")
        assert await box.read_file("f") == b"two\n"
        own = await fork.checkpoint()
        assert await fork.read_file("f", at=own) == b"forked\n"
        assert await fork.read_file("f", at=one) == b"one\n"
        with pytest.raises(HistoryError, match="no checkpoint"):
            await box.read_file("f", at=own)
    assert await box.read_file("f") == b"two\n"


async def test_forks_at_once_read_each_piece_of_content_once(
    box: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await box.run("for n in $(seq 30); do head -c 100000 /dev/urandom > $n; done")
    point = await box.checkpoint()
    expected = (await box.run("cat $(seq 30) | sha256sum")).stdout
    reads: list[bytes] = []
    read, get, enter = PackReader.read, SharedPieces.get, SharedPieces.__enter__
    begun: list[SharedPieces] = []
    all_begun = threading.Event()

    def entered(self: SharedPieces) -> SharedPieces:
        entering = enter(self)
        begun.append(self)
        if len(begun) == 4:
            all_begun.set()
        return entering

    def got(self: SharedPieces, digest: bytes, read: Callable[[bytes], bytes]) -> bytes:
        assert all_begun.wait(PATIENCE)
        return get(self, digest, read)

    def noted(self: PackReader, digest: bytes, *place: Any) -> bytes:
        reads.append(digest)
        return read(self, digest, *place)

    monkeypatch.setattr(SharedPieces, "__enter__", entered)
    monkeypatch.setattr(SharedPieces, "get", got)
    monkeypatch.setattr(PackReader, "read", noted)
    forks = await asyncio.gather(*(box.fork(point) for _ in range(4)))
    monkeypatch.undo()
    # The last fork may still read when the others have ended; then it reads for itself.
    assert 30 <= len(set(reads)) <= 31  # of 30 files and, in Docker, the shell
    assert len(reads) <= 2 * len(set(reads))
    for fork in forks:
        assert (await fork.run("cat $(seq 30) | sha256sum")).stdout == expected
        await fork.close()


async def test_reading_the_past_goes_the_way_of_open(box: Any) -> None:
    await box.run("echo x > f; ln -s f l; ln -s l ll; ln -s c1 c2; ln -s c2 c1; mkdir d; mkfifo p")
    at = await box.checkpoint()
    await box.run("rm -rf f l ll c1 c2 d p")
    assert await box.read_file("ll", at=at) == b"x\n"
    for path, error in {
        "gone": FileNotFoundError,
        "f/x": NotADirectoryError,
        "d": IsADirectoryError,
        "p": PermissionError,
        "c1": OSError,
    }.items():
        with pytest.raises(error):
            await box.read_file(path, at=at)
    with pytest.raises(HistoryError, match="no checkpoint"):
        await box.read_file("f", at="made-up")
    with pytest.raises(HistoryError, match="no checkpoint"):
        await box.restore("made-up")


async def test_the_history_moves_and_is_continued(box: Any, isolation: str, tmp_path: Path) -> None:
    await box.run("echo one > f")
    first = await box.checkpoint()
    temporary = box.history.folder
    assert temporary is not None
    await box.keep_history(tmp_path / "a")
    assert not temporary.exists()
    await box.keep_history(tmp_path / "b", limit=10**6)
    assert (box.history.folder, box.history.limit) == (tmp_path / "b", 10**6)
    assert await box.checkpoint() == first
    assert ("working directory only" in box.history.scope) == (isolation == "process")
    await box.close()
    async with open_sandbox(isolation) as later:
        await later.keep_history(tmp_path / "c", continue_from=tmp_path / "b")
        (kept,) = later.history.checkpoints
        assert (await later.restore(kept.id)).files >= 1
        assert await later.read_file("f") == b"one\n"
        async with open_sandbox(isolation) as other:
            with pytest.raises(HistoryError, match="in use by another sandbox"):
                await other.keep_history(tmp_path / "c")


async def test_a_full_history_drops_its_oldest_and_says_so(box: Any, tmp_path: Path) -> None:
    await box.keep_history(tmp_path / "h", limit=10 * 2**20)
    made = []
    for _ in range(6):
        await box.run("head -c 3M /dev/urandom > f")
        made.append(await box.checkpoint())
    assert box.history.size <= 10 * 2**20
    assert "dropped to keep the history within 10.0 MB" in box.history.notice
    with pytest.raises(HistoryError, match="was dropped"):
        await box.restore(made[0])
    assert len(await box.read_file("f")) == 3 * 2**20
    assert (await box.restore(made[-2])).problems == ()


# ---------------------------------------------------------------------------- files that are not the model's own


@pytest.mark.isolations("bubblewrap")
async def test_the_system_of_bubblewrap_cannot_be_changed(box: Any) -> None:
    assert (await box.run("rm -rf /usr/share/doc")).exit_code != 0


@pytest.mark.isolations("docker")
async def test_files_of_the_image(box: Any) -> None:
    """Deleted and changed files of the image come back, and can be read as they were without that."""
    before = await box.checkpoint()
    profile = await box.read_file("/etc/profile")
    system = await box.read_file("/etc/os-release")
    await box.run("echo changed >> /etc/profile; rm -rf /usr/share/common-licenses; chmod 700 /etc/apt")
    kinds = {one.path: one.kind for one in (await box.changes(before)).files}
    assert kinds["/etc/profile"] == kinds["/etc/apt"] == "modified"
    assert kinds["/usr/share/common-licenses"] == "deleted"
    assert await box.read_file("/etc/profile", at=before) == profile
    assert len(await box.list_files("/usr/share/common-licenses", at=before)) > 5
    assert (await box.read_file("/etc/os-release", at=before)) == system, "a link of the image"
    assert (await box.read_file("/bin/true", at=before))[:4] == b"\x7fELF", "below a link of the image"
    assert (await box.list_files("/bin/true", at=before))[0].path == "/usr/bin/true"
    assert (await box.restore(before)).problems == ()
    assert await box.read_file("/etc/profile") == profile
    assert (await box.run("stat -c %a /etc/apt; grep -c GNU /usr/share/common-licenses/GPL-3")).exit_code == 0


@pytest.mark.isolations("docker")
async def test_a_folder_of_the_image_whose_own_times_show_nothing(box: Any) -> None:
    """Only what is in it has changed: a fork has to get the folder all the same."""
    change = 'cd /etc/dpkg; was=$(stat -c %y .); {}; touch -d "$was" .; cd /testbed'
    look = "find /etc/dpkg -printf '%y %m %T@ %p\\n' | sort; cat /etc/dpkg/more"
    fresh = await box.checkpoint()
    made = {}
    for act in ("echo more > more", "rm -r dpkg.cfg.d", "echo other > more; mkdir dpkg.cfg.d"):
        await box.run(change.format(act))
        made[await box.checkpoint()] = (await box.run(look)).stdout
    for checkpoint, listed in made.items():
        async with await box.fork(checkpoint) as fork:
            assert (await fork.run(look)).stdout == listed
            assert (await fork.restore(fresh)).problems == ()
            assert (await fork.restore(checkpoint)).problems == ()
            assert (await fork.run(look)).stdout == listed


PLANT = """for folder in /dev /sys/fs/cgroup /dev/mqueue; do
    touch $folder/canary; mkfifo $folder/pipe; mkdir -p $folder/deep/er; ln -s /etc $folder/deep/er/link
done 2>/dev/null; true"""
FIND = r"""{ find /dev /sys/fs/cgroup -xdev \( -name canary -o -name pipe -o -name deep \)
ls /dev/mqueue; } 2>&-; true"""


@isolated
async def test_nothing_is_left_in_folders_that_the_engine_fills(box: Any, isolation: str) -> None:
    """/dev/canary lived through a restore, and no problem was reported."""
    before = await box.checkpoint()
    names = (await box.run("ls /dev")).stdout
    await box.run(PLANT)
    planted = (await box.run(FIND)).stdout
    await box.checkpoint()
    assert isolation != "docker" or b"/dev/canary" in planted
    assert not planted or "Not kept, and removed by a restore: /" in box.history.checkpoints[-1].incomplete
    assert (await box.restore(before)).problems == ()
    assert (await box.run(FIND)).stdout == b""
    assert (await box.run("ls /dev")).stdout == names
    if isolation == "docker":
        await box.run("rm /dev/full; chmod 600 /dev/zero; rm /dev/stdin; ln -s /etc/passwd /dev/stdin")
        problems = (await box.restore(before)).problems
        assert {sentence.split()[0] for sentence in problems} == {"/dev/full", "/dev/zero", "/dev/stdin"}
        assert problems[0].endswith(" could not be restored: only a new sandbox has the original.")
