"""Files of two runs differ by their content, not by when they were written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from history_help import file_entry, keep

from llm_sandbox_nb.runs.compare import compare_runs
from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.sandbox.history.manifest import FOLDER, Entry
from llm_sandbox_nb.sandbox.history.pack_store import PackStore
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.journal import Journal
from llm_sandbox_nb.trajectory.run_folder import HISTORY

AS_IN_IMAGE = replace(file_entry(b"lines"), base=True, chunks=None)
OPENED = {"/etc": Entry(FOLDER, 0o755)}
LONG = b"".join(bytes([number]) * 1024 for number in range(9))


def run_of(folder: Path, files: dict[str, Entry], image: dict[str, Entry] | None = None) -> Run:
    """A run with these files at its end, whose history knows `image`."""
    store = PackStore(folder / HISTORY)
    keep(store, "k", {}, extra=OPENED | files)
    store.learn_image({path: (entry, False) for path, entry in (image or {}).items()}, store.writer())
    store.close()
    journal = Journal(folder)
    journal.append(ev.RunStarted(run_id=folder.name, task="t", model="m"))
    journal.append(ev.Checkpointed(checkpoint="k"))
    journal.close()
    return Run.load(folder)


def differing(one: Run, other: Run) -> list[str]:
    return list(compare_runs([one, other]).files)


def test_a_file_that_was_only_written_anew_does_not_count(tmp_path: Path) -> None:
    first = run_of(tmp_path / "a", {"/etc/same": file_entry(b"1", 1), "/etc/other": file_entry(b"1", 1)})
    second = run_of(tmp_path / "b", {"/etc/same": file_entry(b"1", 2), "/etc/other": file_entry(b"2", 1)})
    assert differing(first, second) == ["/etc/other"]


def test_a_file_of_the_image_that_was_written_anew_does_not_count(tmp_path: Path) -> None:
    """Where a history knows what the image has; else nobody can tell."""
    written = {"/etc/passwd": file_entry(b"lines", 7)}
    known = run_of(tmp_path / "known", {"/etc/passwd": AS_IN_IMAGE}, {"/etc/passwd": file_entry(b"lines")})
    unknown = run_of(tmp_path / "unknown", {"/etc/passwd": AS_IN_IMAGE})
    changed = run_of(tmp_path / "changed", {"/etc/passwd": file_entry(b"lives")})
    deleted = run_of(tmp_path / "deleted", {}, {"/etc/passwd": file_entry(b"lines")})
    touched = run_of(tmp_path / "touched", written)
    assert differing(known, touched) == []
    for other in (unknown, changed, deleted):
        assert differing(other, touched) == ["/etc/passwd"], other.folder.name


def test_a_long_file_is_compared_to_its_end(tmp_path: Path) -> None:
    first = run_of(tmp_path / "a", {"/etc/long": file_entry(LONG)})
    same = run_of(tmp_path / "b", {"/etc/long": file_entry(LONG, 5)})
    other = run_of(tmp_path / "c", {"/etc/long": file_entry(LONG[:-1] + b"x")})
    assert differing(first, same) == []
    assert differing(first, other) == ["/etc/long"]


def test_what_others_only_wrote_anew_is_not_left_out(tmp_path: Path) -> None:
    before = {"/etc/same": file_entry(b"1", 1), "/etc/other": file_entry(b"1", 1)}
    run = run_of(tmp_path / "a", before)
    store = PackStore(run.folder / HISTORY)
    after = {"/etc/same": file_entry(b"1", 2), "/etc/other": file_entry(b"2", 2)}
    keep(store, "safety", {}, "k", extra=OPENED | after)
    store.close()
    here = str(run.trajectory.head)
    journal = Journal(run.folder)
    journal.append(ev.RewindStarted(to=here, step=0, safety="safety"))
    journal.append(ev.Rewound(to=here, step=0, what="files", target="safety"))
    journal.close()
    compared = compare_runs([Run.load(run.folder), run_of(tmp_path / "b", before)])
    assert (list(compared.files), compared.others) == ([], ("/etc/other",))
