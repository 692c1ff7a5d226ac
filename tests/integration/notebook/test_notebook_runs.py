"""`%%sandbox` in real kernels on real isolations: what the notebook holds afterwards."""

from __future__ import annotations

import base64
import json
import re
import shutil
import struct
import wave
from io import BytesIO
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError
from scripted_server import ScriptedServer
from support import record_of
from warm_kernels import ROOT, kernel_environment

from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.trajectory import Trajectory
from notebooks import MIME, cards, errors, execute, notebook_of, outputs, printed, ran, records

ANSWER = "The three largest cities are Tokyo (37.1 million), Delhi (33.8 million), Shanghai (29.9 million)."


def first_notebook(tmp_path: Path) -> tuple[nbformat.NotebookNode, Path]:
    folder = tmp_path / "notebooks"
    shutil.copytree(ROOT / "notebooks" / "data", folder / "data")
    return nbformat.read(ROOT / "notebooks" / "01-first-task.ipynb", as_version=4), folder


def check_bundle(bundle: dict[str, Any], isolation: str) -> None:
    """The card of the first task: record, page with its pictures, plain text."""
    record = record_of(bundle)
    run = Trajectory(map(ev.parse_python, record["events"]))
    assert run.answer == ANSWER
    assert run.stop_reason == "submitted"
    assert run.sandbox is not None
    assert run.sandbox.protection["isolation"] == isolation
    png = base64.b64decode(record["artifacts"]["poster.png"]["data"])
    assert png.startswith(b"\x89PNG")
    assert struct.unpack(">II", png[16:24]) == (500, 700)
    with wave.open(BytesIO(base64.b64decode(record["artifacts"]["chime.wav"]["data"]))) as sound:
        assert sound.getnframes() / sound.getframerate() == pytest.approx(1.8, abs=0.01)
    page = bundle["text/html"]
    assert "data:image/png;base64," in page
    assert "data:audio/wav;base64," in page
    assert 'sandbox="allow-scripts"' in page
    assert "scripted" in page
    assert "<script" not in page
    assert ANSWER in bundle["text/plain"]


@pytest.mark.campaign  # tests/browser/test_lab.py runs it too
def test_the_first_notebook(some_isolation: str, tmp_path: Path) -> None:
    notebook, folder = first_notebook(tmp_path)
    environment = kernel_environment(tmp_path, LLM_SANDBOX_ISOLATION=some_isolation)
    execute(notebook, folder, environment)
    strawberry, cities = cards(notebook)
    assert "There are 3 r's in strawberry." in strawberry["text/plain"]
    check_bundle(cities, some_isolation)
    texts = [printed(cell) for cell in notebook.cells]
    assert any(ANSWER in text for text in texts)
    assert any("reverse=True" in text for text in texts), "the diff of the correction"
    assert any(some_isolation in text and "kept by this kernel" in text for text in texts)
    assert any("poster.png" in text for text in texts)
    assert texts[-1].startswith("Tokyo, Japan: 37.1 million")
    pictures = [
        output for cell in notebook.cells for output in outputs(cell) if "image/png" in output.get("data", {})
    ]
    assert len(pictures) == 1
    runs = list((folder / "sandbox-runs" / "notebook").iterdir())
    assert len(runs) == 2
    for run in runs:
        assert {path.name for path in run.iterdir()} >= {"journal.jsonl", "files", "trajectory.json"}


def test_a_model_behind_http(some_isolation: str, tmp_path: Path) -> None:
    """The model is an OpenAI-compatible server on loopback, streaming; the key comes from the environment."""
    shutil.copytree(ROOT / "notebooks" / "data", tmp_path / "data")
    with ScriptedServer("first-task", api_key="sk-the-key") as server:
        notebook = notebook_of(
            f"%%sandbox -m openai/some-model --api-base {server.url} --api-key-env MODEL_KEY "
            "-i data/cities.csv -o run\n"
            "Draw the {three} largest $cities.",
            "print(run.answer, run.usage.total_tokens > 0, run.steps[1].calls[1].output)",
        )
        environment = kernel_environment(
            tmp_path, LLM_SANDBOX_ISOLATION=some_isolation, MODEL_KEY="sk-the-key"
        )
        execute(notebook, tmp_path, environment)
        assert "Draw the {three} largest $cities." in json.dumps(server.requests[0].messages)
        assert all(request.body["stream"] for request in server.requests)
    (bundle,) = cards(notebook)
    events = [ev.parse_python(event) for event in record_of(bundle)["events"]]
    assert Trajectory(events).answer == ANSWER
    assert "data:image/png;base64," in bundle["text/html"]
    assert ">scripted<" not in bundle["text/html"], "nothing tells the loop that this server plays a script"
    assert printed(notebook.cells[2]).startswith(f"{ANSWER} True")
    assert "Lagos, Nigeria: 16.5 million" in printed(notebook.cells[2])
    everything = nbformat.writes(notebook) + "".join(
        path.read_text() for path in tmp_path.glob("sandbox-runs/**/*.json*")
    )
    assert "sk-the-key" not in everything


def test_the_sandbox_lasts_from_cell_to_cell(some_isolation: str, tmp_path: Path) -> None:
    notebook = notebook_of(
        "%sandbox sh export COLOUR=blue; cd /tmp; echo kept > note.txt",
        "%sandbox sh echo $COLOUR $(pwd) $(cat note.txt)",
        "%sandbox put data.txt",
        "%sandbox sh cd - > /dev/null; cat input/data.txt; mkdir -p output/deep; echo made > output/deep/a\\ b.txt",
        "%sandbox files",
        "%sandbox get output/deep there",
        "%sandbox sh echo new > output/deep/a\\ b.txt; echo new > output/deep/c",
        "%sandbox get output/deep there",
        "%sandbox get output/deep there --replace",
        "%sandbox get output/deep/c there/deep",
        "%%sandbox -m scripted/strawberry\nHow many?",
        "%sandbox sh echo $COLOUR",
        "%sandbox reset",
        "%sandbox sh echo $COLOUR none",
        "%sandbox stop",
        "%sandbox status",
    )
    (tmp_path / "data.txt").write_text("handed in\n")
    execute(notebook, tmp_path, kernel_environment(tmp_path, LLM_SANDBOX_ISOLATION=some_isolation))
    said = [printed(cell) for cell in notebook.cells]
    assert said[2] == "blue /tmp kept\n"
    assert said[4] == "handed in\n"
    assert "a b.txt" in said[5]
    assert "a b.txt was left out: a file with this name is already there." in said[8]
    assert "To replace files: %sandbox get output/deep there --replace" in said[8]
    assert said[8].endswith("Copied output/deep to there/deep, except for the files above.\n")
    assert said[9] == "Copied output/deep to there/deep.\n"
    assert said[10].startswith("c was left out")
    assert "Copied" not in said[10]
    assert (tmp_path / "there" / "deep" / "a b.txt").read_text() == "new\n"
    assert said[12] == "blue\n"
    assert some_isolation in said[13]
    assert said[14] == "none\n"
    assert said[15] == "The sandbox is ended.\n"
    assert said[16].startswith("No sandbox is running")


def test_a_second_run_shows_only_what_it_made(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "notebooks" / "data", tmp_path / "data")
    cells = ran(
        tmp_path,
        "%%sandbox -m scripted/first-task -i data/cities.csv\nDraw.",
        "%%sandbox -m scripted/strawberry -o second\nHow many r's?",
        "print(second.answer, list(second.files))",
        "%%sandbox -m scripted/strawberry -o third --fresh\nHow many r's?",
        "%sandbox sh ls",
    )
    first, second, third = records(cells)
    assert {"poster.png", "map.html", "chime.wav"} <= set(first["artifacts"])
    assert "poster.png" not in second["artifacts"]
    assert "There are 3 r's" in printed(cells[3])
    assert "cities.py" not in printed(cells[5]), "--fresh gave an empty sandbox"
    sandboxes = [
        next(event["sandbox_id"] for event in record["events"] if event["kind"] == "sandbox.ready")
        for record in (first, second, third)
    ]
    assert sandboxes[0] == sandboxes[1] != sandboxes[2]


FAILING = """
turns:
  - calls: [{tool: execute_bash, arguments: {command: "echo before the failure > output/kept.txt"}}]
  - error: {kind: authentication, message: the key is wrong}
"""


def test_a_failed_run_fails_the_cell_and_keeps_the_run(tmp_path: Path) -> None:
    (tmp_path / "failing.yaml").write_text(FAILING)
    failing = "%%sandbox -m scripted/./failing.yaml -o run --isolation process\nTry."
    with pytest.raises(CellExecutionError):
        execute(notebook_of(failing), tmp_path, kernel_environment(tmp_path))
    limit = "%%sandbox -m scripted/strawberry -o run --steps 1\nHow many?"
    unreachable = "-m openai/gpt-5 --api-base http://127.0.0.1:9/v1 --api-key-env KEY"
    cells = ran(
        tmp_path,
        failing,
        "print(run.stop_reason, list(run.files))",
        limit,
        "print(run.stop_reason)",
        f"%%sandbox {unreachable} -o run\nx",
        "print(run.stop_reason)",
        KEY="x",
    )
    for cell, kind, said in (
        (cells[1], "RunError", "the key is wrong"),
        (cells[3], "SandboxLimitError", "--steps"),
        (cells[5], "RunError", "127.0.0.1:9"),
    ):
        (error,) = errors(cell)
        assert (error.ename, error.traceback) == (kind, [f"{kind}: {error.evalue}"]), (
            "one sentence, no traceback"
        )
        assert said in error.evalue
        assert "\n" not in error.evalue
    pages = [bundle["text/html"] for bundle in cards(cells)]
    assert "Model error: key refused" in pages[0]
    assert "Model error: no server answers" in pages[2]
    assert [printed(cells[n]) for n in (2, 4, 6)] == [
        "model_error ['kept.txt']\n",
        "steps\n",
        "model_error\n",
    ]


BAD_CELLS = {
    "%%sandbox -m scripted/strawberry --stepss 3\nx": "did you mean --steps",
    "%%sandbox -m scripted/strawberry -i nope.csv\nx": "nope.csv",
    "%%sandbox -m scripted/strawberry -i nope\nx": "no file, folder or variable 'nope'",
    "%%sandbox -m scripted/strawberry\n   \n": "task is empty",
    "%%sandbox\nx": "No model is named",
    "%%sandbox -m scripted/nope\nx": "no script 'nope'",
    "%%sandbox -m scripted/strawberry --isolation jail\nx": "Unknown isolation 'jail'",
    "%%sandbox -m scripted/strawberry --profile loose\nx": "Unknown profile 'loose'",
    "%%sandbox -m scripted/strawberry --network wifi\nx": "Unknown network 'wifi'",
    "%%sandbox -m scripted/strawberry --steps none\nx": "--steps: must be a whole number",
    "%%sandbox -m scripted/strawberry --budget -3\nx": "--budget",
    "%%sandbox -m scripted/strawberry --time soon\nx": "--time: must be a time",
    "%%sandbox -m scripted/strawberry -o 1x\nx": "name of a variable",
    "%%sandbox -m scripted/strawberry --vars\n{nope}": "{nope}",
    "%%sandbox -m scripted/strawberry --prompt-config nope.yaml\nx": "nope.yaml",
    "%%sandbox -m scripted/strawberry --api-key-env NOPE_KEY\nx": "NOPE_KEY",
    "%%sandbox -m scripted/strawberry --api-key-env 'sk-12 34'\nx": "not the key itself",
    "%%sandbox -m scripted/strawberry 'x\nx": "quotes",
    "%%sandbox -m nonsense\nx": "nonsense",
    "%%sandbox -m openai/gpt-5\nx": "OPENAI_API_KEY",
    "%sandbox stats": "did you mean status",
    "%sandbox": "The subcommands of %sandbox are",
    "%sandbox get": "%sandbox get PATH",
    "%sandbox load nope": "no run 'nope'",
    "%sandbox files": "No sandbox is running",
    "%sandbox put nope.txt": "nope.txt",
    "%sandbox sh": "needs a command",
}


@pytest.fixture
def without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


@pytest.mark.usefixtures("without_a_key")
def test_bad_input_is_one_clear_sentence_and_starts_nothing(tmp_path: Path) -> None:
    *cells, status = ran(tmp_path, *BAD_CELLS, "%sandbox status")
    for cell, expected in zip(cells[1:], BAD_CELLS.values(), strict=True):
        (error,) = errors(cell)
        assert expected in error.evalue, cell.source
        assert error.traceback == [f"{error.ename}: {error.evalue}"], "one sentence, no traceback"
        assert "\n" not in error.evalue
        assert not cards([cell])
    assert printed(status).startswith("No sandbox is running"), "nothing was started"
    assert not list(tmp_path.glob("sandbox-runs/*/*"))


def test_an_engine_that_is_dead_is_one_clear_sentence(tmp_path: Path) -> None:
    cell = "%%sandbox -m scripted/strawberry --isolation docker -o run\nx"
    (error,) = errors(ran(tmp_path, cell, DOCKER_HOST=f"unix://{tmp_path}/no-such.sock")[1])
    assert error.traceback == [f"{error.ename}: {error.evalue}"]
    assert "ocker" in error.evalue


def test_options_of_another_sandbox_are_not_taken_silently(tmp_path: Path) -> None:
    cells = ran(
        tmp_path,
        "%sandbox sh true",
        "%%sandbox -m scripted/strawberry --profile strict -o run\nx",
        "%config SandboxMagics.isolation = 'docker'\n",
        "%sandbox sh true",
    )
    assert "--fresh" in errors(cells[2])[0].evalue
    assert "isolation=docker" in errors(cells[4])[0].evalue
    settings = "print(get_ipython().magics_manager.registry['SandboxMagics'].isolation, "
    cells = ran(tmp_path, settings + "'SandboxMagics' in get_ipython().config)")
    assert printed(cells[1]).split() == ["process", "False"], "the next test has a kernel as new"


def test_task_and_variables_are_taken_literally(tmp_path: Path) -> None:
    task = "Use {braces}, {0}, %s, $HOME, \\n and 'quotes' {unfinished\n%time this\n!ls"
    cells = ran(
        tmp_path,
        "fruit = 'straw{berry}'",
        f"%%sandbox -m scripted/strawberry -o run\n{task}",
        "print(run.task)",
        "%%sandbox -m scripted/strawberry -o run --vars\nThe {fruit} and {no way}.",
        "print(run.task)",
    )
    assert printed(cells[3]).strip() == task
    assert printed(cells[5]).strip() == "The straw{berry} and {no way}."


LOOK = """
turns:
  - calls: [{tool: execute_bash, arguments: {command: "head -n 2 input/*"}}]
  - calls: [{tool: submit}]
"""


def test_variables_are_handed_in(tmp_path: Path) -> None:
    (tmp_path / "look.yaml").write_text(LOOK)
    cells = ran(
        tmp_path,
        "import pandas\nframe = pandas.DataFrame({'a': [1, 2]})\nwords = ['x', 'ü']",
        "%%sandbox -m scripted/./look.yaml -i frame words -o run\nLook.",
        "print(run.steps[0].calls[0].output)",
    )
    assert "frame.csv <==\na\n1" in printed(cells[3])
    assert '["x", "ü"]' in printed(cells[3])


def test_runs_are_listed_and_loaded_again(tmp_path: Path) -> None:
    made = ran(tmp_path, "%%sandbox -m scripted/strawberry -o run\nHow many r's?", "print(run.folder.name)")
    short = printed(made[2]).strip().rpartition("-")[2][:4]
    again = ran(
        tmp_path, "%sandbox runs", f"%sandbox load {short} -o old", "print(old.answer)",
        "%sandbox runs --prune --keep 0", "%sandbox runs --prune --keep 0 --yes", "%sandbox runs",
        "%sandbox runs --prun",
    )  # fmt: skip
    assert re.match(rf"{short} .* Submitted, not checked +3 steps", printed(again[1]))
    assert "add --yes" in errors(again[4])[0].evalue
    assert "Removed 1 of 1." in printed(again[5])
    assert printed(again[6]).startswith("There are no runs in ")
    assert "did you mean --prune" in errors(again[7])[0].evalue
    assert cards(again)[0][MIME] == cards(made)[0][MIME]
    assert "There are 3 r's" in printed(again[3])
