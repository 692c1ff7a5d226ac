"""A run folder that someone else made shows nothing of this machine: not on the terminal and not in a page."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import pytest

from llm_sandbox_nb.agent.checks import checked_check
from llm_sandbox_nb.card import export
from llm_sandbox_nb.card.export import export_html
from llm_sandbox_nb.cli import main
from llm_sandbox_nb.formats.llm_in_sandbox import write_seed
from llm_sandbox_nb.model.connection import Access
from llm_sandbox_nb.model.local.local_model import SERVER_LOG
from llm_sandbox_nb.model.local.server import ModelServer, ServerPlan
from llm_sandbox_nb.model.remote_model import RemoteModel
from llm_sandbox_nb.runs.fork import _copy_folder
from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.journal import Journal
from llm_sandbox_nb.trajectory.run_folder import CHECK_FILES

SECRET = "the secret of this machine"
DIGEST = "ab" * 32


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    path = folder / DIGEST
    path.write_text(SECRET)
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "received"
    for part in ("blobs", "files"):
        (folder / part).mkdir(parents=True)
    return folder


def record(run: Path, digest: str) -> None:
    journal = Journal(run)
    journal.append(ev.RunStarted(run_id="r", task="Look.", model="scripted/x"))
    journal.append(ev.CallStarted(step=1, call_id="c", tool="execute_bash", arguments={"command": "true"}))
    journal.close()
    blob = {"sha256": digest, "size": 5, "preview": "shown"}
    finished = ev.CallFinished(step=1, call_id="c", observation="").model_dump(mode="json")
    with (run / "journal.jsonl").open("a") as file:
        file.write(json.dumps(finished | {"stdout": blob}) + "\n")
    end = Journal(run)
    end.append(ev.RunFinished(stop_reason="submitted", steps=1, wall_time=1.0))
    end.close()


WAYS = ["path up", "absolute", "link to a folder", "link below", "link", "pipe"]


def lead(folder: Path, secret: Path, way: str) -> str:
    """Make a name in this folder of a run lead to the secret; the name."""
    if way == "path up":
        return "../../home/" + DIGEST
    if way == "absolute":
        return str(secret)
    if way == "link below":
        (folder / "below").symlink_to(secret.parent)
        return "below/" + DIGEST
    if way == "link to a folder":
        folder.rmdir()
        folder.symlink_to(secret.parent)
    elif way == "link":
        (folder / DIGEST).symlink_to(secret)
    else:
        os.mkfifo(folder / DIGEST)
    return DIGEST


@pytest.mark.timeout(60)
@pytest.mark.parametrize("way", WAYS)
def test_an_output_is_read_from_its_own_file_only(
    way: str, run: Path, secret: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(run, lead(run / "blobs", secret, way))
    assert main(["show", str(run)]) != 0
    printed = capsys.readouterr()
    assert SECRET not in printed.out + printed.err
    assert len(printed.err.strip().splitlines()) == 1


def test_an_output_in_its_own_file_is_read(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "blobs" / DIGEST).write_text("what the command said")
    record(run, DIGEST)
    assert main(["show", str(run)]) == 0
    assert "what the command said" in capsys.readouterr().out


@pytest.mark.timeout(60)
@pytest.mark.parametrize("view", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_files_of_a_run_are_in_its_own_folder(
    way: str, view: bool, run: Path, secret: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the page with the view, and in the one that is the card alone."""
    monkeypatch.setattr(export, "has_view", lambda: view)
    monkeypatch.setattr(export, "_asset", str)
    name = lead(run / "files", secret, way)
    save(run, name)
    loaded = Run.load(run)
    assert name not in loaded.files
    assert DIGEST not in loaded.files
    page = export_html(loaded, tmp_path / "run.html").read_text()
    assert not_in(page)


def test_a_file_in_its_own_folder_is_in_the_page(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The canary: the page of an honest run holds its file."""
    monkeypatch.setattr(export, "has_view", lambda: True)
    monkeypatch.setattr(export, "_asset", str)
    (run / "files" / "answer.txt").write_text(SECRET)
    save(run, "answer.txt")
    assert not not_in(export_html(Run.load(run), tmp_path / "run.html").read_text())


@pytest.mark.parametrize("part", ["files", "blobs"])
def test_a_fork_copies_nothing_from_elsewhere(part: str, run: Path, secret: Path, tmp_path: Path) -> None:
    (run / part).rmdir()
    (run / part).symlink_to(secret.parent)
    _copy_folder(run / part, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def save(run: Path, name: str) -> None:
    journal = Journal(run)
    journal.append(ev.RunStarted(run_id="r", task="Look.", model="scripted/x"))
    journal.append(ev.ArtifactSaved(step=None, path=name, mime="text/plain", size=len(SECRET), sha256=DIGEST))
    journal.append(ev.RunFinished(stop_reason="submitted", steps=1, wall_time=1.0))
    journal.close()


def not_in(page: str) -> bool:
    return SECRET not in page and base64.b64encode(SECRET.encode()).decode() not in page


@pytest.mark.parametrize("name", ["run.html", ".run.html.partial"])
def test_an_export_into_the_folder_writes_no_other_file(name: str, run: Path, secret: Path) -> None:
    (run / "blobs" / DIGEST).write_text("what the command said")
    record(run, DIGEST)
    (run / name).symlink_to(secret)
    assert main(["export", str(run)]) == 0
    assert secret.read_text() == SECRET
    assert not (run / "run.html").is_symlink()


def test_a_record_of_the_folder_writes_no_other_file(run: Path, secret: Path) -> None:
    record(run, DIGEST)
    (run / "trajectory.json").symlink_to(secret)
    write_seed(Run.load(run).trajectory, run)
    assert secret.read_text() == SECRET


@pytest.mark.parametrize("way", ["link to a folder", "link", "pipe"])
@pytest.mark.timeout(60)
def test_files_of_a_new_check_replace_those_of_the_folder(way: str, run: Path, secret: Path) -> None:
    """A resume with other files of a check writes into the folder alone, and the check gets no earlier files."""
    (run / CHECK_FILES).mkdir()
    lead(run / CHECK_FILES, secret, way)
    given = checked_check("true", {DIGEST: b"new", "more/test.py": b"pass"})
    assert given is not None
    kept = given.kept_in(run)
    assert secret.read_text() == SECRET
    assert [path.name for path in secret.parent.iterdir()] == [DIGEST]
    assert kept.files.names() == [DIGEST, "more/test.py"]
    assert (run / CHECK_FILES / DIGEST).read_bytes() == b"new"
    given = checked_check("true", {"other.py": b""})
    assert given is not None
    assert given.kept_in(run).files.names() == ["other.py"]
    assert not [path for path in run.iterdir() if path.name.startswith(f"{CHECK_FILES}.")]


@pytest.mark.parametrize("way", ["file", "link", "hard link", "pipe"])
@pytest.mark.timeout(60)
def test_the_log_of_a_local_model_is_written_into_the_folder_alone(way: str, run: Path, secret: Path) -> None:
    log = run / SERVER_LOG
    if way == "hard link":
        os.link(secret, log)
    elif way == "link":
        log.symlink_to(secret)
    elif way == "pipe":
        os.mkfifo(log)
    server = ModelServer(ServerPlan(run / "m.gguf", "local/m", 4096, 1, 1, 0))
    server._tail.append(b"loaded\n")
    server.log_to(log)
    server.end_log(log)
    assert secret.read_text() == SECRET
    if way in ("file", "hard link"):
        assert log.read_bytes().endswith(b"loaded\n")


EVIL = "\x1b[2J\x1b]8;;http://evil\x07\u202e<script>alert(1)</script>"


def record_with_a_server(run: Path, model: str) -> None:
    """A journal whose MCP server, tools, model, connection and doubts have hostile names."""
    definition = {"name": "execute_bash", "tool": EVIL, "sha256": EVIL}
    server = {"url": f"https://{EVIL}/", "server": {"name": EVIL}, "tools": [definition, 1, {"name": []}]}
    tool = {"type": "function", "function": {"name": "execute_bash", "description": EVIL, "parameters": []}}
    settings = {"mcp": {EVIL: server, "odd": [1], "other": {"tools": {"a": 1}, "url": 7}}}
    journal = Journal(run)
    journal.append(
        ev.RunStarted(
            run_id="r", task="Look.", model=model, settings=settings, tools=[tool, {}, {"function": 1}]
        )
    )
    call = {"id": "c", "type": "function", "function": {"name": "execute_bash", "arguments": "{}"}}
    journal.append(ev.ModelReplied(step=1, message={"role": "assistant", "tool_calls": [call, {}, 1]}))
    arguments = {"command": "true"}
    journal.append(
        ev.CallProposed(step=1, call_id="c", tool="execute_bash", raw_arguments="{}", arguments=arguments)
    )
    journal.append(ev.CallStarted(step=1, call_id="c", tool="execute_bash", arguments=arguments))
    journal.append(
        ev.ConnectionMade(
            step=1, line=EVIL, host=EVIL, port=443, decision="refused", reason=EVIL, rule=EVIL, address=EVIL,
            secrets=[EVIL],
        )
    )  # fmt: skip
    journal.append(ev.CallFinished(step=1, call_id="c", observation=EVIL))
    journal.append(
        ev.ModelFailed(step=2, attempt=1, error=EVIL, message=EVIL, learned={"refused": [1, EVIL]})
    )
    journal.append(ev.RunFinished(stop_reason="model_error", error=EVIL, steps=1, wall_time=1.0))
    journal.close()


def harmless(text: str) -> bool:
    return not any(code in text for code in ("\x1b", "\x07", "\u202e"))


@pytest.mark.parametrize(
    "words", [("show",), ("show", "--steps", "1"), ("export",), ("analyze",), ("resume",)]
)
def test_names_in_a_record_do_not_reach_the_terminal_as_codes(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    record_with_a_server(run, f"scripted/{EVIL}")
    main([words[0], str(run), *words[1:]])
    shown = capsys.readouterr()
    assert harmless(shown.out + shown.err)
    assert "Traceback" not in shown.err
    assert shown.out + shown.err


def test_names_in_a_record_are_text_in_its_page(run: Path, tmp_path: Path) -> None:
    record_with_a_server(run, "scripted/x")
    page = export_html(Run.load(run), tmp_path / "page.html").read_text()
    assert "<script>alert(1)" not in page


def test_a_resume_with_messages_of_other_kinds_asks_the_model(run: Path) -> None:
    """Earlier refusals and replies of a server are read from the record."""
    model = RemoteModel("openai/m", Access("http://127.0.0.1:9/v1", "key-of-the-test"))
    for message in (
        {"tool_calls": [{}]},
        {"tool_calls": [1]},
        {"tool_calls": 7},
        {"tool_calls": {"a": 1}},
        {},
    ):
        model.recall(
            {"refused": [[], EVIL, {}], "wanted": 7, "dropped": [EVIL]}, [(message, "because", True)]
        )
    assert model._habits.recorded() == {}
