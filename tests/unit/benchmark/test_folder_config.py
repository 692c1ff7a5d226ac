"""Settings of a results folder: every option of `benchmark run` is compared, except those that are listed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llm_sandbox_nb.benchmark.commands import folder_config, option_values
from llm_sandbox_nb.benchmark.options import NOT_COMPARED
from llm_sandbox_nb.cli.parser import make_parser

OPTIONS = {action.dest for action in make_parser()[1]["benchmark run"]._actions}
OPTIONS -= {"help", "tasks", "more_tasks", "settings"}
LISTS = {"allow": ["a.org"], "mcp": ["web=command"], "mcp_allow": ["web"]}
FIRST = {
    "model": "m", "judge_model": None, "data": None, "docker_image": None, "network": None, "extra_body": None,
    "max_tokens_per_call": 65536, "temperature": 1.0, "top_p": None, "top_k": None, "min_p": None,
    "repetition_penalty": None,
}  # fmt: skip
"""Content of `config.json` in a folder of the first version whose options have their default values."""


def config_of(given: dict[str, Any]) -> dict[str, Any]:
    flags = dict.fromkeys(OPTIONS) | {"model": "m"} | given
    return folder_config(option_values(flags, {}), flags)


@pytest.fixture(autouse=True)
def _no_settings_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_listed_options_exist() -> None:
    assert sorted(NOT_COMPARED - OPTIONS) == []


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_another_value_is_another_setting_unless_the_option_is_listed(name: str) -> None:
    values = option_values(dict.fromkeys(OPTIONS) | {"model": "m"}, {})
    other = folder_config(values | {name: LISTS.get(name, "other")}, {name: "other"})
    assert (other == FIRST) == (name in NOT_COMPARED)


def test_folders_of_the_first_version_stay_valid() -> None:
    assert config_of({}) == FIRST
    given = {
        "image": "i", "steps": "100", "tokens": "9", "total_tokens": "8", "budget": "7", "time": "2m",
        "command_timeout": "120", "max_response_len": "6", "nudges": "all", "same_failures": "8",
        "profile": "strict", "allow": ["b.org,a.org"], "mcp": ["web=command"], "mcp_allow": ["web", "a"],
    }  # fmt: skip
    assert config_of(given) == FIRST | {
        "docker_image": "i", "max_steps": 100, "max_token_limit": 9, "total_tokens": 8, "budget": 7.0,
        "time": 120.0, "command_timeout": 120.0, "max_response_len": 6, "nudges": "all", "profile": "strict",
        "allow": ["a.org", "b.org"], "mcp": ["web"], "mcp_allow": ["a", "web"],
    }  # fmt: skip
