"""The ten examples, played in a sandbox and checked; and results that the checks refuse."""

from __future__ import annotations

import io
import json
import struct
import wave
from copy import deepcopy
from pathlib import Path

import nbformat
import pytest
import yaml
from warm_kernels import kernel_environment

from llm_sandbox_nb.cli import main
from llm_sandbox_nb.examples.checks import read_files
from llm_sandbox_nb.examples.gallery import EXAMPLES, TASKS
from llm_sandbox_nb.examples.notebook import examples_notebook
from llm_sandbox_nb.model.scripted import SCRIPTS
from llm_sandbox_nb.runs.run import Run
from notebooks import execute, printed

FOUR = {"map": ["map.html"], "poster": ["poster.png", "poster.svg"], "countdown": ["countdown.mp4"],
        "piano": ["piece.mid", "piece.wav"]}  # fmt: skip


def played(name: str, isolation: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    code = main(["examples", name, "--isolation", isolation, "--output_dir", str(folder)])
    said = capsys.readouterr()
    assert code == 0, said.err + said.out[-2000:]
    assert "Check      the result is right" in said.out
    (journal,) = folder.glob("*/journal.jsonl")
    return Run.load(journal.parent)


USUAL = ("math", "poster", "piano")
"""An answer, and two kinds of files that checks read; the other examples are a campaign."""


@pytest.mark.bubblewrap
@pytest.mark.parametrize(
    "name", [name if name in USUAL else pytest.param(name, marks=pytest.mark.campaign) for name in EXAMPLES]
)
def test_an_example_is_solved_after_a_mistake(
    bubblewrap_engine: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    run = played(name, "bubblewrap", tmp_path, capsys)
    assert run.stop_reason == "submitted"
    assert len(run.steps) >= 3
    files = read_files(run.folder / "files")
    assert set(FOUR.get(name, [])) <= set(files)
    for file in files:  # each is needed: without it, the check says which is missing
        if file in {one for names in FOUR.values() for one in names}:
            assert file in EXAMPLES[name].check(
                {other: data for other, data in files.items() if other != file}
            )


@pytest.mark.campaign
@pytest.mark.docker
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_in_docker(
    docker_engine: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert played(name, "docker", tmp_path, capsys).stop_reason == "submitted"


@pytest.mark.campaign
@pytest.mark.bubblewrap
def test_the_notebook_of_all_examples_runs_twice(bubblewrap_engine: None, tmp_path: Path) -> None:
    notebook = nbformat.from_dict(examples_notebook())
    nbformat.validate(notebook)
    environment = kernel_environment(tmp_path, LLM_SANDBOX_ISOLATION="bubblewrap")
    again = deepcopy(notebook.cells)
    for cell in again:
        cell.id += "-again"
    twice = nbformat.v4.new_notebook(cells=[*notebook.cells, *again], metadata=notebook.metadata)
    execute(twice, tmp_path, environment)
    said = [printed(cell) for cell in twice.cells if cell.source.startswith("problem = ")]
    assert said == ["The result is right.\n"] * 20


def test_the_launcher_opens_the_notebook_of_these_examples() -> None:
    """`python labextension/generate-examples.py` writes it."""
    kept = Path(__file__).parents[3] / "labextension" / "src" / "generated" / "examples.json"
    assert json.loads(kept.read_text("utf-8")) == examples_notebook()


def test_each_has_a_task_and_a_script() -> None:
    assert len(EXAMPLES) == 10
    assert {path.name for path in TASKS.iterdir()} == set(EXAMPLES)
    for example in EXAMPLES.values():
        assert "output folder" in " ".join(example.task.split())
        assert len(yaml.safe_load((SCRIPTS / f"{example.name}.yaml").read_text())["turns"]) >= 3


def sound(seconds: float = 16.0, rate: int = 8_000, value: bytes = b"\1\2") -> bytes:
    data = io.BytesIO()
    with wave.open(data, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(value * int(rate * seconds))
    return data.getvalue()


def video(seconds: int, pictures: int) -> bytes:
    def box(kind: bytes, *parts: bytes) -> bytes:
        return struct.pack(">I", 8 + sum(map(len, parts))) + kind + b"".join(parts)

    sizes = box(b"stsz", bytes(4), struct.pack(">II", 0, pictures))
    inside = box(b"trak", box(b"mdia", box(b"minf", box(b"stbl", sizes))))
    head = box(b"mvhd", bytes(12), struct.pack(">II", 1, seconds), bytes(80))
    return box(b"ftyp", b"isom") + box(b"moov", head, inside) + box(b"mdat", bytes(99))


MIDI = b"MThd\0\0\0\6\0\0\0\1\0\x60MTrk\0\0\0\4\0\x90\x40\x50"
PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", 960, 680) + b"IEND1234"
RIGHT_PNG = PNG.replace(struct.pack(">II", 960, 680), struct.pack(">II", 680, 960))
CIRCLES = b"<circle r=1></circle>" * 8
POEM = b"Lights are\n"


@pytest.mark.parametrize(
    ("name", "files", "said"),
    [
        ("math", {}, "There is no answer.txt"),
        ("math", {"answer.txt": b"1956"}, "has to be 1072"),
        ("physics", {"answer.txt": b"2.006"}, "has to be 2.368"),
        ("chemistry", {"answer.txt": b"194.19"}, "has to be 194.19 and 28.85"),
        ("biomedicine", {"answer.txt": b"MRL*"}, "has to begin with MKTAYIAK"),
        ("long-context", {"answer.txt": b"Alder Bridge: 2674 mm"}, "has to be Birch Lock"),
        ("instructions", {"poem.txt": POEM}, "do not spell LIGHT"),
        ("instructions", {"poem.txt": b"L a\nI b\nG c\nH d\nT e\n"}, "does not have seven words"),
        ("map", {"map.html": b"<html></html>"}, "has 0 circles"),
        ("map", {"map.html": CIRCLES}, "no script"),
        (
            "map",
            {"map.html": CIRCLES + b"<script src='//evil.example/x.js'></script>"},
            "loads '//evil.example",
        ),
        ("poster", {"poster.png": b"GIF89a"}, "is not a PNG"),
        ("poster", {"poster.png": PNG}, "960 x 680 pixels"),
        ("poster", {"poster.png": RIGHT_PNG, "poster.svg": b"<svg"}, "poster.svg cannot be read"),
        (
            "poster",
            {"poster.png": RIGHT_PNG, "poster.svg": b"<!DOCTYPE x [<!ENTITY a 'b'>]><svg/>"},
            "declares entities",
        ),
        ("countdown", {"countdown.mp4": b"not a video at all"}, "cut off"),
        ("countdown", {"countdown.mp4": video(5, 11)}, "lasts 5.0 seconds"),
        ("countdown", {"countdown.mp4": video(11, 3)}, "has 3 pictures"),
        ("countdown", {"countdown.mp4": video(11, 11)[:-9]}, "cut off"),
        ("countdown", {"countdown.mp4": video(11, 11)[:-150]}, "cut off"),
        ("piano", {"piece.mid": b"MThd"}, "is not a MIDI"),
        ("piano", {"piece.mid": MIDI, "piece.wav": b"RIFF"}, "cannot be read"),
        ("piano", {"piece.mid": MIDI, "piece.wav": sound(3)}, "lasts 3.0 seconds"),
        ("piano", {"piece.mid": MIDI, "piece.wav": sound(rate=22_050)}, "22050 Hz"),
        ("piano", {"piece.mid": MIDI, "piece.wav": sound(value=b"\0\0")}, "silent"),
    ],
)
def test_a_wrong_result_is_named(name: str, files: dict[str, bytes], said: str) -> None:
    problem = EXAMPLES[name].check(files)
    assert said in problem
    assert problem.endswith(".")


def test_right_ones_made_by_hand_are_taken() -> None:
    assert EXAMPLES["countdown"].check({"countdown.mp4": video(11, 11)}) == ""
    assert EXAMPLES["piano"].check({"piece.mid": MIDI, "piece.wav": sound()}) == ""
    assert EXAMPLES["math"].check({"answer.txt": b"1,072\n"}) == ""


def test_links_and_large_files_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("1072")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "answer.txt").symlink_to(tmp_path / "secret")
    assert read_files(tmp_path / "out") == {}
    with (tmp_path / "out" / "poem.txt").open("wb") as file:
        file.truncate(100 * 2**20)
    assert EXAMPLES["instructions"].check(read_files(tmp_path / "out")) == "poem.txt is larger than 20 MiB."


def test_the_command_lists_them_and_names_what_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["examples"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 10
    assert main(["examples", "postr"]) == 2
    assert "There is no example postr; did you mean poster?" in capsys.readouterr().err


def test_a_result_that_is_wrong_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    script = {"turns": [{"calls": [{"tool": "submit"}]}]}
    (tmp_path / "nothing.yaml").write_text(yaml.safe_dump(script))
    words = ["--isolation", "process", "--output_dir", str(tmp_path / "out")]
    assert main(["examples", "math", "-m", "scripted/./nothing.yaml", *words]) == 1
    assert "Check      There is no answer.txt in the output folder." in capsys.readouterr().err
