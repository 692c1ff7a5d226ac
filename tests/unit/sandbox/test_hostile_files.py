"""An executor that sends other files than those that were asked for, and lists what no filesystem holds."""

from __future__ import annotations

import json

import pytest
from hostile import Script, answer, meet

from llm_sandbox_nb.agent.artifacts import CollectLimits, Collector
from llm_sandbox_nb.agent.recorder import Recorder
from llm_sandbox_nb.sandbox.errors import SandboxError, SandboxLostError, TransferError
from llm_sandbox_nb.sandbox.protocol.frames import Kind
from llm_sandbox_nb.sandbox.transfer import CHUNK, DIRECTORY, FILE, SKIPPED, THE_END, record
from llm_sandbox_nb.trajectory import events as ev

OUTPUT = "/testbed/output"


def entry(kind, path, data=b"evil"):
    return record(kind, path) + (b"" if kind == DIRECTORY else CHUNK.pack(len(data)) + data + CHUNK.pack(0))


class HostileFiles:
    """`packs` and `lists` say what a request for a path is answered: records, and rows of a listing."""

    def __init__(self, packs, lists=lambda path: []):
        self.packs, self.lists = packs, lists

    def answer(self, frame):
        if frame.kind != Kind.REQUEST:
            return b""
        asked = frame.json()
        if asked["op"] == "pack":
            data = b"".join(self.packs(asked["path"])) + record(THE_END, b"")
        else:
            data = b"".join(json.dumps(row).encode() + b"\n" for row in self.lists(asked["path"]))
        return answer(frame.request, {}, data)


def tree(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_a_download_writes_no_other_file(tmp_path):
    (tmp_path / "victim.png").write_bytes(b"canary")
    records = [entry(FILE, b"a.txt"), entry(FILE, b"victim.png"), entry(FILE, b"sub/.bashrc")]

    async def use(box, script):
        with pytest.raises(TransferError, match=r"something other than the file a\.txt"):
            await box.download("a.txt", tmp_path)
        assert tree(tmp_path) == {"victim.png"}
        assert (tmp_path / "victim.png").read_bytes() == b"canary"

    meet(lambda: Script(HostileFiles(lambda path: records).answer), use)


def collected(folder, hostile, limits, between=lambda: None):
    """What a collector leaves of a hostile output folder, which may change: names on disk, and events."""
    recorder = Recorder(folder)

    async def use(box, script):
        collector = Collector(box, OUTPUT, recorder, limits=limits)
        await collector.collect_all()
        between()
        await collector.collect_all()

    try:
        meet(lambda: Script(hostile.answer), use)
    finally:
        recorder.close()
    return tree(folder / "files"), recorder.trajectory.events


def row(name, kind="file", size=4):
    return [f"{OUTPUT}/{name}", kind, size, 0o644, 1.0]


def test_a_run_keeps_no_more_files_than_its_limit(tmp_path):
    """With each file the sandbox sent more: 3,001 were kept where 2,000 are the limit."""
    hostile = HostileFiles(
        lambda path: [
            entry(FILE, path.rpartition("/")[2].encode()),
            *[entry(FILE, b"more%d%s" % (number, path[-2:].encode())) for number in range(5)],
            entry(SKIPPED, b"x", b"why"),
        ],
        lambda path: [row(f"f{number:02}") for number in range(30)],
    )
    files, events = collected(tmp_path, hostile, CollectLimits(files=10))
    assert files == set()
    assert len([one for one in events if isinstance(one, ev.ArtifactSkipped)]) == 30
    hostile.packs = lambda path: [entry(FILE, path.rpartition("/")[2].encode())]
    files, events = collected(tmp_path / "honest", hostile, CollectLimits(files=10))
    assert len(files) == 10


def test_what_lies_too_deep_is_named(tmp_path):
    inner = "d/" * 32
    rows = [row(f"{inner}f"), row(f"{inner}d", "directory"), row(f"{inner}d/f"), row("f")]
    hostile = HostileFiles(lambda path: [entry(FILE, b"f")], lambda path: rows)
    files, events = collected(tmp_path, hostile, CollectLimits())
    assert {f"{inner}f", "f"} <= files
    assert f"{inner}d/f" not in files
    assert [one.reason for one in events if isinstance(one, ev.ArtifactSkipped)] == [
        f"The content of {inner}d was not taken: more than 32 folders deep.",
        f"{inner}d/f was not taken: it lies more than 32 folders deep.",
    ]


def test_a_folder_with_more_than_is_looked_at(tmp_path):
    """What was collected and is only not listed any more is not gone."""
    limits, names = CollectLimits(listed=5), ["a", "b"]
    hostile = HostileFiles(
        lambda path: [entry(FILE, path[-1:].encode())], lambda path: [row(n) for n in names]
    )
    files, events = collected(tmp_path, hostile, limits, lambda: names.__setitem__(slice(None), "bcdef"))
    assert files == set("abcdef")
    reasons = [one.reason for one in events if isinstance(one, ev.ArtifactSkipped)]
    assert reasons == ["Only 5 files and folders are looked at; the others were left out."]


def test_a_large_git_folder_removes_no_results(tmp_path):
    """The folder .git fills the listing, although its files are no results."""
    names = ["a", "b"]
    hostile = HostileFiles(
        lambda path: [entry(FILE, path[-1:].encode())], lambda path: [row(n) for n in names]
    )
    git = [".git/1", ".git/2", ".git/3", "a", "c"]
    files, events = collected(
        tmp_path, hostile, CollectLimits(listed=5), lambda: names.__setitem__(slice(None), git)
    )
    assert files == set("abc")
    reasons = [one.reason for one in events if isinstance(one, ev.ArtifactSkipped)]
    assert reasons == ["Only 5 files and folders are looked at; the others were left out."]


def test_a_file_is_taken_as_soon_as_there_is_room(tmp_path):
    names = ["a", "b"]
    hostile = HostileFiles(
        lambda path: [entry(FILE, path[-1:].encode())], lambda path: [row(n) for n in names]
    )
    files, events = collected(tmp_path, hostile, CollectLimits(all_bytes=6), lambda: names.remove("a"))
    assert files == {"b"}
    reasons = [one.reason for one in events if isinstance(one, ev.ArtifactSkipped)]
    assert reasons == ["b was not taken: all files together are over 6 B."]


def test_the_sentences_about_files_are_limited(tmp_path):
    hostile = HostileFiles(lambda path: [], lambda path: [row(f"l{n}", "link") for n in range(50)])
    _, events = collected(tmp_path, hostile, CollectLimits(reasons=20))
    reasons = [one.reason for one in events if isinstance(one, ev.ArtifactSkipped)]
    assert (len(reasons), reasons[-1]) == (21, "More files were not taken.")


def test_a_message_about_a_very_long_path_is_short(tmp_path):
    hostile = HostileFiles(lambda path: [], lambda path: [row("l" * 10**6, "link"), row("f" * 10**6)])
    _, events = collected(tmp_path, hostile, CollectLimits())
    reasons = [one.reason for one in events if isinstance(one, ev.ArtifactSkipped)]
    assert [reason.rpartition("was ")[2] for reason in reasons] == [
        "not taken: file name too long.", "not taken: it is a link.",
    ]  # fmt: skip
    assert all(len(reason) < 6000 for reason in reasons)


@pytest.mark.parametrize("name", ["nul\0", "half \ud800"])
def test_paths_that_no_filesystem_holds(tmp_path, name):
    hostile = HostileFiles(lambda path: [], lambda path: [row(name)])
    with pytest.raises((SandboxError, SandboxLostError), match="a line of its listing is invalid"):
        collected(tmp_path, hostile, CollectLimits())
