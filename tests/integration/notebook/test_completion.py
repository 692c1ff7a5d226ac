"""The Tab key in `%%sandbox` and `%sandbox`, as a real kernel and IPython in a terminal answer it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from live_kernel import LiveKernel, live_kernel
from plain_shell import plain_shell
from support import PATIENCE

from llm_sandbox_nb import load_ipython_extension
from llm_sandbox_nb.notebook.magics import SandboxMagics
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.journal import Journal

RUNS = ("20260101-120000-abcd1111", "20260101-130000-abce2222")


def offered(shell: Any, code: str) -> set[str]:
    """The lines that the Tab key offers at the end of `code`, as both kinds of front end ask for them."""
    from IPython.core.completer import provisionalcompleter

    with provisionalcompleter():
        return {
            code[: one.start] + one.text + code[one.end :]
            for one in shell.Completer.completions(code, len(code))
        }


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.endswith(("_KEY", "_TOKEN"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("JPY_SESSION_NAME", "nb.ipynb")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    make_runs(tmp_path / "sandbox-runs" / "nb")
    (tmp_path / "data.csv").write_text("a\n")
    (tmp_path / "with space.csv").write_text("a\n")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "play.yaml").write_text("turns: []\n")
    with plain_shell() as made:
        yield made


def make_runs(folder: Path) -> None:
    for name in RUNS:
        journal = Journal(folder / name)
        journal.append(ev.RunStarted(run_id=name, task="Draw.", model="scripted/x"))
        journal.close()


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("%%sandbox --iso", {"%%sandbox --isolation"}),
        ("%%sandbox -m scripted/strawberry --budg", {"%%sandbox -m scripted/strawberry --budget"}),
        ("%%sandbox --isolation ",
         {f"%%sandbox --isolation {one}" for one in ("auto", "docker", "bubblewrap", "process")}),
        ("%%sandbox --isolation=bub", {"%%sandbox --isolation=bubblewrap"}),
        ("%%sandbox --profile s", {"%%sandbox --profile standard", "%%sandbox --profile strict"}),
        ("%%sandbox --network ", {f"%%sandbox --network {one}" for one in ("none", "allow", "public", "open")}),
        ("%%sandbox --approve e", {"%%sandbox --approve edits"}),
        ("%%sandbox -m scripted/st", {"%%sandbox -m scripted/strawberry"}),
        ("%%sandbox -m scripted/more/", {"%%sandbox -m scripted/more/play.yaml"}),
        ("%%sandbox -m anth", {"%%sandbox -m anthropic/"}),
        ("%%sandbox -i da", {"%%sandbox -i data.csv"}),
        ("%%sandbox -i data.csv mor", {"%%sandbox -i data.csv more/"}),
        ("%%sandbox --from-files-of abc", {"%%sandbox --from-files-of abcd", "%%sandbox --from-files-of abce"}),
        ("%%sandbox --prompt-config more/", {"%%sandbox --prompt-config more/play.yaml"}),
        ("%sandbox sta", {"%sandbox status"}),
        ("%sandbox re", {f"%sandbox {one}" for one in ("reset", "rewind", "replay", "resume")}),
        ("%sandbox load ", {"%sandbox load abcd", "%sandbox load abce"}),
        ("%sandbox export abcd", {"%sandbox export abcd"}),
        ("%sandbox load 20260101-12", {"%sandbox load 20260101-120000-abcd1111"}),
        ("%sandbox rewind 3 --run abce", {"%sandbox rewind 3 --run abce"}),
        ("%sandbox rewind 3 f", {"%sandbox rewind 3 files"}),
        ("%sandbox runs --o", {"%sandbox runs --older-than"}),
        ("%sandbox put more/", {"%sandbox put more/play.yaml"}),
        ("x = 1\n%sandbox sta", {"x = 1\n%sandbox status"}),
        ("\n%%sandbox --bud", {"\n%%sandbox --budget"}),
    ],
)  # fmt: skip
def test_tab_completes(code: str, expected: set[str], shell: Any) -> None:
    assert offered(shell, code) == expected


def test_a_variable_of_the_user_can_be_an_input(shell: Any) -> None:
    shell.user_ns["measured"] = [1, 2]
    shell.user_ns["decide"] = print
    assert "%%sandbox -i measured" in offered(shell, "%%sandbox -i me")
    assert offered(shell, "%%sandbox --break-when dec") == {"%%sandbox --break-when decide"}


def test_models_are_those_of_providers_with_keys_and_never_of_an_import(
    shell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    assert "%%sandbox -m openai/" in offered(shell, "%%sandbox -m ")
    assert "%%sandbox -m anthropic/" not in offered(shell, "%%sandbox -m ")
    named = offered(shell, "%%sandbox -m openai/gpt-5")
    assert "%%sandbox -m openai/gpt-5-mini" in named
    assert all(one.startswith("%%sandbox -m openai/gpt-5") for one in named)
    assert any("claude" in one for one in offered(shell, "%%sandbox -m anthropic/"))


# Jedi reads the small module `keyword` in a moment; for `os`, or a method of a text, it reads for seconds.
@pytest.mark.parametrize(
    ("code", "rest"),
    [
        ("%%sandbox -m x\nimport keyword; keyword.kwl", "ist"),
        ("import keyword; keyword.kwl", "ist"),
        ("import keyword; x = '%sandbox'; keyword.kwl", "ist"),
    ],
)
def test_elsewhere_ipython_completes_as_always(code: str, rest: str, shell: Any) -> None:
    assert offered(shell, code) == {code + rest}


def test_loading_twice_offers_everything_once(shell: Any) -> None:
    load_ipython_extension(shell)
    matchers = [one for one in shell.Completer.custom_matchers if "llm_sandbox" in one.matcher_identifier]
    assert len(matchers) == 1


def test_every_option_that_takes_a_value_from_a_list_has_one(shell: Any) -> None:
    parser = SandboxMagics.sandbox_cell.parser
    chosen = [action for action in parser._actions if action.choices]
    assert chosen
    for action in chosen:
        assert len(offered(shell, f"%%sandbox {action.option_strings[-1]} ")) >= 3


# --- a real kernel ---


def completed(kernel: LiveKernel, code: str) -> list[str]:
    reply = kernel.client.complete(code, len(code), reply=True, timeout=PATIENCE)["content"]
    return [code[: reply["cursor_start"]] + match for match in reply["matches"]]


def test_a_kernel_answers_without_litellm(tmp_path: Path) -> None:
    with live_kernel(tmp_path, keep=False) as kernel:
        make_runs(tmp_path / "sandbox-runs" / "notebook")
        assert completed(kernel, "%%sandbox --isola") == ["%%sandbox --isolation"]
        assert "%%sandbox -m openai/gpt-5" in completed(kernel, "%%sandbox -m openai/gpt-")
        assert completed(kernel, "%sandbox load ab") == ["%sandbox load abce", "%sandbox load abcd"]
        assert "%sandbox status" in completed(kernel, "%sandbox sta")
        loaded = kernel.printed("import sys; print('litellm' in sys.modules, 'docker' in sys.modules)")
    assert loaded == "False False\n"
