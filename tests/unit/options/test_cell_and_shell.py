"""A cell and the command line give the same value of an option to a run, from a flag and from a settings file."""

from __future__ import annotations

import asyncio
import json
import os
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import pytest

from llm_sandbox_nb.agent.run_options import ContextMode, ToolCalls
from llm_sandbox_nb.cli import run_command
from llm_sandbox_nb.cli.parser import make_parser
from llm_sandbox_nb.notebook.cell_task import cell_task
from llm_sandbox_nb.notebook.magic_line import parse_line
from llm_sandbox_nb.notebook.magics import SandboxMagics
from llm_sandbox_nb.notebook.settings import SandboxSettings
from llm_sandbox_nb.options.table import (
    NOTEBOOK_SETTINGS,
    RESOURCE_OPTIONS,
    RUN_OPTIONS,
    Option,
    option,
)
from llm_sandbox_nb.options.values import resolve
from llm_sandbox_nb.sandbox.network.secrets import parse_secrets

WORDS = {"context": ContextMode, "tool_calls": ToolCalls}


def test_words_of_an_option_are_those_of_its_type() -> None:
    for name, words in WORDS.items():
        assert sorted(option(name).convert.words) == sorted(get_args(words))


SHELL = make_parser()[1]["run"]
CELL = SandboxMagics.sandbox_cell.parser
FLAGS_OF_CELLS = {name.removeprefix("--").replace("-", "_") for name in CELL._option_string_actions}
VALUES: dict[str, Any] = {
    "model": "openai/other", "api_base": "http://127.0.0.1:9/v1", "api_key_env": "MY_KEY", "temperature": 0.25,
    "top_p": 0.5, "top_k": 7, "min_p": 0.1, "repetition_penalty": 1.5, "max_tokens_per_call": 900,
    "model_timeout": 77, "model_wait": 88, "extra_body": '{"a": 1}', "tool_calls": "text", "steps": 7,
    "tokens": 7000, "total_tokens": 9000, "budget": 1.5, "time": 600, "command_timeout": 90, "same_failures": 3,
    "nudges": "all", "context": "full", "isolation": "bubblewrap", "profile": "strict", "image": "other",
    "network": "none", "allow": "pypi.org", "secret": "MY_KEY=example.org", "ca_bundle": "site.pem",
    "index_url": "http://index.example", "proxy": "http://proxy.example:3128", "memory_mb": 300, "cpus": 0.5,
    "pids": 77, "disk_mb": 400, "files": 5000, "output_dir": "elsewhere", "prompt_config": "prompts.yaml",
    "prompts": "original", "step": True, "break": "tool == 'submit'", "break_when": "helper", "approve": "edits",
    "check": "true", "check_files": "site.pem", "check_tries": 3, "check_timeout": 45, "tool": "helper",
    "doubt": "helper", "mcp": "files=server --root .", "mcp_allow": "files__read",
}  # fmt: skip
"""A value of each option that is not its default."""
OTHERWISE = {
    "api_key": "a cell has no key in its text: `%sandbox key`, or the environment",
    "input_dir": "a cell has -i, for variables too",
    "on_pause": "a cell asks in its card",
    "output_dir": "the folder of a notebook's runs is named after the notebook",
    "save_litellm_response": "written by the command after the run",
}
"""Options that a cell lacks, or that it uses before the run, with the reason."""
NAMES_OF_FUNCTIONS = ("break_when", "tool", "doubt")
BOTH = [one for one in RUN_OPTIONS if one.name not in OTHERWISE]
ARGUMENTS = {"api_key_env": "api_key", "break_when": "break_when", "tool": "tools", "doubt": "doubts"} | {
    one.name: "sandbox.limits" for one in RESOURCE_OPTIONS
}
"""Arguments of `solve` of options whose value becomes another one, so that the table names none."""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty project with the files that options name, and an environment without settings."""
    for name in [name for one in RUN_OPTIONS for name in one.environment]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MY_KEY", "sk-of-mine")
    monkeypatch.chdir(tmp_path)
    Path("site.pem").write_text("-----BEGIN CERTIFICATE-----\n", "utf-8")
    Path("helper.py").write_text("def helper(*_):\n    return None\n", "utf-8")


def helper(*_: object) -> None:
    """A function of the user."""


def found(arguments: Mapping[str, Any], place: str) -> Any:
    """The value at a place such as `limits.steps`, in a form that does not depend on the host."""
    owner, _, field = place.rpartition(".")
    holder = arguments[owner] if owner else arguments
    value = holder.get(field) if isinstance(holder, Mapping) else getattr(holder, field)
    if field == "secrets":
        value = parse_secrets(value)
    if isinstance(value, Mapping):
        return {name: plain(part) for name, part in value.items()}
    return plain(value)


def plain(value: Any) -> Any:
    """The value without a difference of lists and tuples, of one and a list of one, of paths and texts."""
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, Path):
        return str(value)
    return value.__name__ if callable(value) else value


def of_shell(words: list[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The arguments that `run` gives to `solve`."""
    given: dict[str, Any] = {}

    async def solve(task: str, **arguments: Any) -> None:
        given.update(arguments)

    monkeypatch.setattr("llm_sandbox_nb.runs.solve.solve", solve)
    flags = vars(SHELL.parse_args(["Work.", *words]))
    flags["query"] = flags.pop("task")
    flags["model"] = flags["model"] or ("openai/first" if not Path("llm-sandbox-nb.toml").exists() else None)
    asyncio.run(run_command._solve(resolve(flags, os.environ), []))
    return given | {"sandbox": given["sandbox_options"]}


def of_cell(words: list[str]) -> dict[str, Any]:
    """The arguments that a cell gives to `solve`, and its sandbox."""
    options: Namespace = parse_line(CELL, " ".join(words))
    settings = SandboxSettings()
    settings.model = settings.model or "openai/first"
    task = cell_task(options, "Work.", settings, {"helper": helper})
    named = {name: getattr(task.sandbox, name) for name in ("isolation", "profile", "image", "network")}
    return {**task.arguments, **named, "sandbox": task.sandbox}


def flag(one: Option, function: str) -> list[str]:
    """The words of the option, quoted for a cell; `function` is the name of a function for this host."""
    if one.switch:
        return [f"--{one.name}".replace("_", "-")]
    value = function if one.name in NAMES_OF_FUNCTIONS else str(VALUES[one.name])
    return [f"--{one.name}".replace("_", "-"), value]


def place_of(one: Option) -> str:
    return one.sets or ARGUMENTS[one.name]


def test_every_option_has_a_value_here_or_a_reason() -> None:
    assert {one.name for one in RUN_OPTIONS} == VALUES.keys() - {"output_dir"} | OTHERWISE.keys()
    for one in BOTH:
        converted = one.convert(VALUES[one.name])
        assert converted not in (one.default, None), one.name
    in_files = {one.name for one in NOTEBOOK_SETTINGS if one in RUN_OPTIONS}
    assert {one.name for one in BOTH} <= FLAGS_OF_CELLS | in_files


@pytest.mark.parametrize("name", [one.name for one in BOTH if one.name in FLAGS_OF_CELLS])
def test_a_flag_has_the_same_value_in_a_cell_and_in_a_shell(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = option(name)
    words = flag(one, "helper.py:helper")
    first, second = of_shell(words, monkeypatch), of_cell([json.dumps(word) for word in flag(one, "helper")])
    value = found(first, place_of(one))
    assert value == found(second, place_of(one))
    assert value not in (None, [], one.default)


@pytest.mark.parametrize("name", [one.name for one in BOTH if one in NOTEBOOK_SETTINGS])
def test_a_line_of_a_file_has_the_same_value_in_a_cell_and_in_a_shell(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = option(name)
    others = {"check": "true"} if name.startswith("check_") else {}
    lines = {"model": "openai/first"} | others | {name: VALUES[name]}
    Path("llm-sandbox-nb.toml").write_text(
        "".join(f"{key} = {json.dumps(value)}\n" for key, value in lines.items()), "utf-8"
    )
    first, second = of_shell([], monkeypatch), of_cell([])
    value = found(first, place_of(one))
    assert value == found(second, place_of(one))
    assert value not in (None, [], one.default)
