"""The first line of a cell, and `--vars`: understood, or refused in one clear sentence."""

from __future__ import annotations

import argparse
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_sandbox_nb.agent.recorder import new_run_folder
from llm_sandbox_nb.card.bundle import MIME
from llm_sandbox_nb.notebook import magic_line as arguments
from llm_sandbox_nb.notebook.cell_task import sandbox_options
from llm_sandbox_nb.notebook.errors import SandboxInputError, SandboxUsageError
from llm_sandbox_nb.notebook.magics import SandboxMagics
from llm_sandbox_nb.notebook.saved_runs import moved_runs, notebook_name, runs_folder
from llm_sandbox_nb.notebook.settings import SandboxSettings
from llm_sandbox_nb.options.table import NOTEBOOK_SETTINGS, option
from llm_sandbox_nb.sandbox.limits import DEFAULT_COMMAND_TIMEOUT

PARSER: argparse.ArgumentParser = SandboxMagics.sandbox_cell.parser


def parse(line: str) -> argparse.Namespace:
    return arguments.parse_line(PARSER, line)


def test_options_that_only_a_cell_has() -> None:
    options = parse("-m openai/gpt-5 -i a.csv 'b c.txt' -i df -o run --fresh --vars")
    assert (options.model, options.input, options.out) == ("openai/gpt-5", ["a.csv", "b c.txt", "df"], "run")
    assert (options.fresh, options.vars) == (True, True)


SAID_OTHERWISE = {
    "check",
    *(
        "input",
        "out",
        "fresh",
        "from_files_of",
        "vars",
        "api_key_env",
        "help",
        "break_when",
        "tool",
        "doubt",
        "on_pause",
    ),
}
"""Options that only a cell has, or that mean something else there."""


def test_an_option_that_the_command_line_has_too_is_described_once() -> None:
    for action in PARSER._actions:
        name = action.option_strings[-1].removeprefix("--").replace("-", "_")
        if name not in SAID_OTHERWISE:
            assert action.help == option(name).help


def test_the_defaults_of_cells_are_those_of_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LLM_SANDBOX_PREPARED")
    settings = SandboxSettings()
    other = {}
    for setting in NOTEBOOK_SETTINGS:
        value = getattr(settings, setting.name)
        if value != setting.default and (
            value or setting.default
        ):  # an empty text or mapping stands for None
            other[setting.name] = value
    assert other == {"temperature": None, "max_tokens_per_call": None, "profile": ""}, (
        "table.py gives the reasons"
    )
    assert option("command_timeout").default == DEFAULT_COMMAND_TIMEOUT


def test_nothing_is_shared_between_lines() -> None:
    assert parse("-i a").input == ["a"]
    assert parse("-i b").input == ["b"]
    assert parse("").input == []


def refuse(line: str) -> str:
    with pytest.raises(SandboxUsageError) as caught:
        parse(line)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_wrong_lines() -> None:
    assert "Unknown option --budgt: did you mean --budget?" in refuse("--budgt 3")
    assert "Unknown option --zzz" in refuse("--zzz")
    assert "'draw'" in refuse("draw a poster")
    assert "expected one argument" in refuse("-m").lower()
    assert "quotes" in refuse("-m 'x")
    assert "-key" in refuse("--api-key sk-123")


@given(st.text(max_size=40))
def test_any_line_is_parsed_or_refused(line: str) -> None:
    with suppress(SandboxUsageError):
        assert isinstance(parse(line).input, list)


def test_a_wrong_value_is_one_sentence() -> None:
    with pytest.raises(SandboxUsageError, match="--time: must be a time"):
        arguments.option_value("time", "soon")


def test_variables_in_the_task() -> None:
    namespace = {"n": 3, "name": "{n}", "größe": 1.5}
    filled = arguments.fill_in("Take {n} of {name} at {größe}; {a.b} {0} {} {{n}} { n } ${n}", namespace)
    assert filled == "Take 3 of {n} at 1.5; {a.b} {0} {} {3} { n } $3"


def test_a_variable_that_is_not_there() -> None:
    with pytest.raises(SandboxInputError, match=r"names \{nope\}.*--vars"):
        arguments.fill_in("{nope}", {})


@given(st.text())
def test_text_without_plain_names_is_not_touched(text: str) -> None:
    if "{" not in text:
        assert arguments.fill_in(text, {}) == text


def test_names_of_variables() -> None:
    for name in ("1a", "a b", "class", "", "a.b", "None"):
        with pytest.raises(SandboxUsageError, match="name of a variable"):
            arguments.variable_name(name)
    for line in ("", '"', "a b", "a -o 1x", "a -o"):
        with pytest.raises(SandboxUsageError):
            arguments.load_arguments(line)


@pytest.mark.parametrize(
    ("environment", "namespace", "name"),
    [
        ({"JPY_SESSION_NAME": "/home/me/My Notebook.ipynb"}, {}, "My-Notebook"),
        ({"JPY_SESSION_NAME": "/home/me/"}, {}, "notebook"),
        ({"JPY_SESSION_NAME": "/x/../...ipynb"}, {}, "notebook"),
        ({}, {"__vsc_ipynb_file__": "/w/a.ipynb"}, "a"),
        ({}, {}, "notebook"),
    ],
)
def test_the_notebook_name(environment: dict[str, str], namespace: dict[str, Any], name: str) -> None:
    assert notebook_name(namespace, environment) == name


# --- variables ---

VARIABLES = {"model": "openai/gpt-5", "name": "gpt-5", "steps": 7, "frame": [1, 2]}


def test_variables_are_replaced_as_in_other_magics() -> None:
    line = "-m $model --steps {steps} -i data.csv --break \"command == '{name}' or '$name' in command\" --image x/$name"
    options = arguments.parse_line(PARSER, line, VARIABLES)
    assert (options.model, options.steps, options.image) == ("openai/gpt-5", "7", "x/gpt-5")
    assert options.breakpoints == ["command == '{name}' or '$name' in command"]
    assert arguments.parse_line(PARSER, "--break $name", VARIABLES).breakpoints == ["$name"]
    assert arguments.parse_line(PARSER, "-i price$5 a{b}c", VARIABLES).input == ["price$5", "a{b}c"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("-m $modle", "The variable modle of $modle is not defined: define it first."),
        ("-i $frame", "$frame is a list, neither text, a path nor a number: name it without $ and braces."),
    ],
)
def test_a_variable_that_is_none_is_one_sentence(line: str, said: str) -> None:
    with pytest.raises(SandboxInputError) as caught:
        arguments.parse_line(PARSER, line, VARIABLES)
    assert str(caught.value) == said


def test_a_line_after_a_subcommand_keeps_its_quotes() -> None:
    assert arguments.line_with_variables("RUN -o other", VARIABLES) == "RUN -o other"
    assert arguments.line_with_variables("$name 'a b'", VARIABLES) == "gpt-5 'a b'"
    assert arguments.line_with_variables("--say 'costs $name'", VARIABLES) == "--say 'costs $name'"
    assert arguments.line_with_variables("'open", VARIABLES) == "'open"


@given(st.text(max_size=40))
def test_any_line_with_variables_is_parsed_or_refused(line: str) -> None:
    with suppress(SandboxUsageError, SandboxInputError):
        assert isinstance(arguments.parse_line(PARSER, line, VARIABLES).input, list)


def test_a_secret_without_a_value_is_refused_before_the_model_is_asked() -> None:
    options = parse("-m scripted/strawberry --isolation bubblewrap --secret NO_TOKEN=api.example")
    with pytest.raises(SandboxUsageError, match="NO_TOKEN has no value"):
        sandbox_options(SandboxSettings(), options)


def test_runs_below_the_home_folder_are_found_where_they_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    settings = SandboxSettings(output_dir="~/runs")
    made = new_run_folder(Path(settings.output_dir), "lecture")
    card = {"data": {MIME: {"run_id": made.name}}}
    (tmp_path / "renamed.ipynb").write_text(json.dumps({"cells": [{"outputs": [card]}]}))
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "lecture.ipynb"))
    assert made.parent == runs_folder(settings, {})
    (made / "journal.jsonl").touch()
    moved = moved_runs(settings, {}, {"JPY_SESSION_NAME": str(tmp_path / "renamed.ipynb")})
    assert (moved.folders, moved.missing) == ((made,), 0)
