"""A call of a run in a wrong state, or with a wrong argument: one sentence, and no traceback in a notebook."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from card_runs import run_events, written
from plain_shell import plain_shell

from llm_sandbox_nb import Run
from llm_sandbox_nb.agent.control.run_control import RunControl
from llm_sandbox_nb.agent.errors import RunError
from llm_sandbox_nb.errors import LLMSandboxError
from llm_sandbox_nb.model.contract import ModelError

WRONG: dict[str, tuple[Callable[[Any], object], str]] = {
    "load nothing": (lambda run: Run.load(None), "needs a folder, a file, or a part of a run's id, not None"),  # type: ignore[arg-type]
    "load a number": (lambda run: Run.load(3), "not 3"),  # type: ignore[arg-type]
    "load what is not there": (lambda run: Run.load("/no/such/run"), "There is no run at /no/such/run"),
    "rewind too far": (lambda run: run.rewind(99), "There is no step 99 in this attempt: it has the steps 0 to 2."),
    "rewind to a name": (lambda run: run.rewind("two"), "There is no step 'two'"),
    "rewind to nothing": (lambda run: run.rewind(None), "There is no step None"),
    "rewind something else": (lambda run: run.rewind(1, "file"), "both, files or conversation"),
    "preview too far": (lambda run: run.preview(-1), "There is no step -1"),
    "fork too far": (lambda run: run.fork(99), "There is no step 99"),
    "undo": (lambda run: run.undo(), "There is no rewind to undo."),
    "compare alone": (lambda run: run.compare(), "There is only one attempt"),
    "compare with a name": (lambda run: run.compare("other"), "Run.load(folder) returns a run"),
    "resume without files": (lambda run: run.resume(), "The files of this run are not kept"),
    "resume with a number": (lambda run: run.resume(5), "is a text for the model, not 5"),
    "resume with a typing error": (lambda run: run.resume("x", modle="m"), "has no option 'modle'"),
    "edit": (lambda run: run.edit(command="ls"), "No call waits to be executed"),
    "edit a number": (lambda run: run.edit(5), "No call waits to be executed"),
    "deny": (lambda run: run.deny(), "No call waits to be executed"),
    "observe": (lambda run: run.observe("x"), "The model has seen every observation already"),
    "pause": (lambda run: run.pause(), "loaded from its record"),
    "step": (lambda run: run.step(), "loaded from its record"),
    "say": (lambda run: run.say("x"), "loaded from its record"),
    "say nothing": (lambda run: RunControl().say(None), "The model reads text: give a string, not None."),  # type: ignore[arg-type]
    "stop": (lambda run: run.stop(), "loaded from its record"),
    "change": (lambda run: run.change(model="x"), "loaded from its record"),
    "an event that is none": (lambda run: run.at("zz"), "There is no event 'zz' in this run"),
    "an attempt by its number": (lambda run: run.at(1), "at() needs one of result.attempts"),
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run.load(written(tmp_path_factory.mktemp("wrong") / "run", run_events(2)))


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_is_one_sentence(name: str, run: Run) -> None:
    call, said = WRONG[name]
    with pytest.raises(Exception, match=r"\w") as caught:
        call(run)
    error: Any = caught.value
    assert isinstance(error, LLMSandboxError)
    assert said in str(error)
    assert "\n" not in str(error)
    assert len(str(error)) < 250
    assert error._render_traceback_() == [f"{type(error).__name__}: {error}"]


def test_a_notebook_shows_the_sentence_and_no_traceback(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with plain_shell() as shell:
        shell.user_ns["result"] = run
        for cell in (
            "result.rewind(99)",
            "await result.rewind(99)",
            "result.edit(command='ls')",
            "result.resume()",
        ):
            assert not shell.run_cell(cell).success
            out, err = capsys.readouterr()
            assert len((out + err).strip().splitlines()) == 1, cell
        shell.run_cell("1 / 0")
        assert "Traceback" in "".join(capsys.readouterr())


def test_what_failed_in_a_users_own_function_keeps_its_traceback() -> None:
    def fail() -> None:
        raise KeyError("typo")

    error = RunError("The run broke off with KeyError: 'typo'", None)
    try:
        fail()
    except KeyError as cause:
        error.__cause__ = cause
    shown = "".join(error._render_traceback_())
    assert "in fail" in shown
    assert shown.endswith("RunError: The run broke off with KeyError: 'typo'")
    error.__cause__ = ModelError("The key was refused.", kind="authentication")
    assert len(error._render_traceback_()) == 1
