"""The magics in a shell: what loading costs, what they keep, and what is left behind."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from plain_shell import magics_of, plain_shell

from llm_sandbox_nb.card.bundle import MIME
from llm_sandbox_nb.notebook.errors import SandboxCheckError, SandboxUsageError
from llm_sandbox_nb.notebook.magic_line import OPTIONS

LOADED = """
import sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
before = set(sys.modules)
shell.run_line_magic("load_ext", "llm_sandbox_nb")
print(*set(sys.modules) - before)
"""


def test_loading_imports_only_what_the_magics_need() -> None:
    """test_imports.py looks for heavy libraries, sockets and threads."""
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "llm_sandbox_nb.notebook.magics" in loaded
    assert not {"tornado.httpclient", "mistune", "llm_sandbox_nb.runs.solve"} & loaded


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.chdir(tmp_path)
    with plain_shell() as made:
        magics_of(made).use_server = False
        magics_of(made).isolation = "process"
        yield made


def test_help_lists_every_option(shell: Any) -> None:
    text = shell.find_cell_magic("sandbox").__doc__
    for option in OPTIONS:
        assert option.args[-1] in text
    assert text.lstrip(":\n ").startswith("%%sandbox")


def test_a_run_in_plain_ipython(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a front end there are no updates: the card's text is printed once, at the end."""
    shell.run_cell_magic("sandbox", "-m scripted/strawberry -o run", "How many r's are in strawberry?")
    assert shell.user_ns["run"].answer == "There are 3 r's in strawberry."
    printed = capsys.readouterr().out
    assert printed.count("scripted/strawberry · scripted: free") == 1
    assert "Submitted" in printed


def test_the_result_has_the_name_that_python_reads_in_code(shell: Any) -> None:
    decomposed = "u\u0308"
    shell.run_cell_magic("sandbox", f"-m scripted/strawberry -o {decomposed}", "Hi")
    assert shell.run_cell(f"{decomposed}.stop_reason").result == "submitted"


def test_a_deleted_working_folder_is_named(
    shell: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(SandboxUsageError, match="working folder of this kernel is gone: choose one with %cd"):
        shell.run_line_magic("sandbox", "status")
    with pytest.raises(SandboxUsageError, match="is gone"):
        shell.run_cell_magic("sandbox", "-m scripted/strawberry", "Hi")
    monkeypatch.chdir(tmp_path)
    shell.run_line_magic("sandbox", "status")


def test_settings_reach_the_run(shell: Any) -> None:
    magics = magics_of(shell)
    magics.model = "scripted/strawberry"
    magics.steps = 50
    magics.budget = 2.5
    magics.tokens = 9_000
    magics.total_tokens = 40_000
    magics.time = 77.0
    magics.model_settings = {"temperature": 0.25}
    magics.output_dir = "elsewhere"
    shell.run_cell_magic("sandbox", "-o run --steps 7 --command-timeout 3m", "How many?")
    run = shell.user_ns["run"]
    assert run.folder.parent.parent.name == "elsewhere"
    settings = run.trajectory.start.settings
    assert settings["limits"] == {
        "steps": 7,
        "tokens": 9_000,
        "total_tokens": 40_000,
        "cost": 2.5,
        "time": 77.0,
    }
    assert settings["sampling"]["temperature"] == 0.25
    assert settings["command_timeout"] == 180


def test_settings_that_make_no_sense_are_refused(shell: Any) -> None:
    magics_of(shell).model_settings = {"temprature": 1}
    with pytest.raises(SandboxUsageError, match=r"holds only: temperature"):
        shell.run_cell_magic("sandbox", "-m scripted/strawberry", "x")
    magics_of(shell).model_settings = {}
    magics_of(shell).ca_bundle = "nope.pem"
    with pytest.raises(SandboxUsageError, match=r"nope\.pem"):
        shell.run_cell_magic("sandbox", "-m scripted/strawberry", "x")


def test_nothing_runs_before_the_first_use(shell: Any) -> None:
    assert not [
        thread for thread in threading.enumerate() if thread.name == "llm-sandbox-nb" and thread.is_alive()
    ]
    assert not magics_of(shell)._background.started


def test_reloading_keeps_the_sandbox_and_what_was_set(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run_line_magic("sandbox", "sh echo kept > kept.txt")
    magics_of(shell).steps = 7
    before = magics_of(shell)
    shell.run_line_magic("reload_ext", "llm_sandbox_nb")
    shell.run_line_magic("sandbox", "sh cat kept.txt")
    assert "kept" in capsys.readouterr().out
    assert magics_of(shell) is before
    assert magics_of(shell).steps == 7


def test_a_variable_names_the_model_and_the_run(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    shell.user_ns["chosen"] = "scripted/strawberry"
    shell.run_cell_magic("sandbox", "-m $chosen -o first", "How many r's are in strawberry?")
    shell.user_ns["name"] = shell.user_ns["first"].folder.name
    shell.run_line_magic("sandbox", "load $name -o again")
    assert shell.user_ns["again"].folder == shell.user_ns["first"].folder
    capsys.readouterr()
    shell.run_line_magic("sandbox", "sh echo $name-is-empty-here")
    assert "-is-empty-here" in capsys.readouterr().out
    assert shell.user_ns["name"] not in capsys.readouterr().out


def test_runs_are_found_after_a_rename_a_copy_and_a_move(
    shell: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The name of the notebook changes with the restart of its kernel; its saved cards say which runs are its."""
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "first.ipynb"))
    shell.run_cell_magic("sandbox", "-m scripted/strawberry -o run", "How many r's are in strawberry?")
    run = shell.user_ns["run"]
    assert run.folder.parent.name == "first"
    card = {"output_type": "display_data", "metadata": {}, "data": {MIME: {"run_id": run.id}}}
    lost = {
        "output_type": "display_data",
        "metadata": {},
        "data": {MIME: {"run_id": "20200101-000000-gone1234"}},
    }
    hostile: list[Any] = [{"data": {MIME: {"run_id": "../../etc"}}}, {"data": {MIME: {"run_id": 7}}}]
    cells = [
        {"cell_type": "markdown", "source": ""},
        {"cell_type": "code", "outputs": [card, lost, *hostile]},
    ]
    (tmp_path / "second.ipynb").write_text(json.dumps({"cells": cells}))
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "second.ipynb"))
    magics_of(shell)._live = None  # as after the restart
    magics_of(shell)._recent.clear()
    capsys.readouterr()
    shell.run_line_magic("sandbox", "runs")
    out = capsys.readouterr().out
    assert out.startswith(f"{run.folder.name.rpartition('-')[2][:4]}  ")
    assert "→ There are 3 r's in strawberry." in out
    assert "1 run of this notebook's cards is not here" in out
    shell.run_line_magic("sandbox", "preview 1")
    assert "Back to step 1" in capsys.readouterr().out
    shell.run_line_magic("sandbox", "runs --prune --keep 0 --yes")
    assert run.folder.is_dir(), "another notebook's runs are not removed from here"
    for broken in (
        "{",
        '{"cells": 3}',
        '{"cells": [{"outputs": [3]}]}',
        '{"cells": [{"outputs": [{"data": {"x": 1}}]}]}',
    ):
        (tmp_path / "second.ipynb").write_text(broken)
        capsys.readouterr()
        shell.run_line_magic("sandbox", "runs")
        assert "There are no runs in" in capsys.readouterr().out


def test_a_cell_checks_its_result_with_a_command_a_setting_or_a_function(
    shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    task = "How many r's are in strawberry?"
    magics = magics_of(shell)
    magics.check = "exit 4"
    for check in ("", '--check "grep -q 7"', "--check is_right"):
        shell.user_ns["is_right"] = lambda run: "7" in run.answer
        with pytest.raises(SandboxCheckError, match=r"^Submitted, check failed: .*\.$"):
            shell.run_cell_magic("sandbox", f"-m scripted/strawberry -o run {check}", task)
    Path("expected.txt").write_text("3 r's")
    checked = '--check "grep -qf expected.txt" --check-files expected.txt --check-tries 2 --check-timeout 1m'
    shell.run_cell_magic("sandbox", f"-m scripted/strawberry -o run {checked}", task)
    assert shell.user_ns["run"].checks[-1].verdict.outcome == "passed"
    assert "Submitted, checked without protection: grep -qf expected.txt" in capsys.readouterr().out
