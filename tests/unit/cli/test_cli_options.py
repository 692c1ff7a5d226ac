"""Flags, environment, settings file, defaults: which one wins, and what is said about a bad value."""

from __future__ import annotations

import itertools
from datetime import date
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_sandbox_nb.cli import _MODULES, main
from llm_sandbox_nb.cli.parser import make_parser
from llm_sandbox_nb.options.table import (
    RUN_OPTIONS,
    UsageError,
    json_object,
    option,
    seconds,
    text,
    yes_or_no,
)
from llm_sandbox_nb.options.values import resolve

SEED_FLAGS = {
    "query", "llm_name", "docker_image", "max_steps", "temperature", "max_token_limit", "max_tokens_per_call",
    "input_dir", "output_dir", "llm_base_url", "api_key", "prompt_config", "save_litellm_response",
    "extra_body", "settings",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


PARSER, COMMANDS = make_parser()


def test_each_command_has_a_module_with_its_function() -> None:
    commands = {name for name in COMMANDS if name and " " not in name}
    assert commands == set(_MODULES)
    for name, module in _MODULES.items():
        assert callable(getattr(import_module(f"llm_sandbox_nb.cli.{module}"), f"{name}_command"))


def flags(*words: str) -> dict[str, object]:
    return vars(PARSER.parse_args(["run", *words]))


def test_every_flag_of_the_seed_is_taken_with_either_dash() -> None:
    for name in SEED_FLAGS:
        known = option(name).name if name not in ("query", "settings") else name
        for flag in ("--" + name, "--" + name.replace("_", "-")):
            assert flags(f"{flag}=1")[known] == flags(flag, "1")[known] == "1"


def test_defaults_are_the_seeds() -> None:
    values = resolve({}, {})
    assert values["steps"] == 100
    assert values["temperature"] == 1.0
    assert values["tokens"] == values["max_tokens_per_call"] == 65536
    assert values["save_litellm_response"] is False
    assert values["isolation"] == "auto"


@pytest.mark.parametrize("literal", ["424242", "True", "None", "[1, 2]", "{'a': 1}", "1e3", "a # b", ""])
def test_text_is_taken_literally(literal: str) -> None:
    values = resolve(flags("--query", literal, "--llm-name", literal or "x"), {})
    assert (values["query"], values["model"]) == (literal, literal or "x")


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
def test_any_text_survives_as_a_query(query: str) -> None:
    assert flags(f"--query={query}")["query"] == query


@pytest.mark.parametrize(("flag", "variable", "file"), list(itertools.product([True, False], repeat=3)))
def test_flag_then_environment_then_file_then_default(
    flag: bool, variable: bool, file: bool, tmp_path: Path
) -> None:
    settings = tmp_path / "llm-sandbox-nb.yaml"
    if file:
        settings.write_text("llm_name: from-file\ntemperature: 0.3\nllm_base_url: http://file/v1\n")
    words = ["--llm_name", "from-flag", "--temperature", "0.1", "--llm_base_url", "http://flag/v1"]
    environment = {
        "LLM_NAME": "from-variable",
        "LLM_TEMPERATURE": "0.2",
        "LLM_BASE_URL": "http://variable/v1",
    }
    values = resolve(flags(*words if flag else ()), environment if variable else {})
    source = "flag" if flag else "variable" if variable else "file" if file else None
    assert values["model"] == (f"from-{source}" if source else None)
    assert values["api_base"] == (f"http://{source}/v1" if source else None)
    assert values["temperature"] == {"flag": 0.1, "variable": 0.2, "file": 0.3, None: 1.0}[source]
    assert values["settings"] == ((settings,) if file else ())


@pytest.mark.parametrize(
    ("model", "environment", "key"),
    [
        ("openai/gpt-5", {"OPENAI_API_KEY": "o", "ANTHROPIC_API_KEY": "a"}, "o"),
        ("anthropic/claude", {"OPENAI_API_KEY": "o", "ANTHROPIC_API_KEY": "a"}, "a"),
        ("claude-sonnet", {"OPENAI_API_KEY": "o", "ANTHROPIC_API_KEY": "a"}, "a"),
        ("your-model", {"OPENAI_API_KEY": "o"}, "o"),
        ("gemini/pro", {"OPENAI_API_KEY": "o"}, "file"),
        ("openai/gpt-5", {"LLM_API_KEY": "l", "OPENAI_API_KEY": "o"}, "l"),
        ("openai/gpt-5", {}, "file"),
    ],
)
def test_a_key_comes_from_the_variable_of_its_provider(
    model: str, environment: dict[str, str], key: str, tmp_path: Path
) -> None:
    (tmp_path / "llm-in-sandbox.yaml").write_text("api_key: file\n")
    assert resolve({"llm_name": model}, environment)["api_key"] == key
    for word in ("--api_key", "-a"):
        assert resolve(flags("--llm_name", model, word, "flag"), environment)["api_key"] == "flag"


@pytest.mark.parametrize(
    "place", ["llm_in_sandbox.yaml", "home/.llm-in-sandbox/config.yaml", "home/.llm-in-sandbox.yaml"]
)
def test_the_seeds_settings_files_are_found(place: str, tmp_path: Path) -> None:
    path = tmp_path / place
    path.parent.mkdir(exist_ok=True)
    path.write_text("llm_name: 4\nmax_steps: 7\nextra_body: {thinking: 'true'}\n")
    values = resolve({}, {})
    assert (values["model"], values["steps"], values["extra_body"]) == ("4", 7, {"thinking": True})


def test_a_settings_file_named_in_the_environment_is_read(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("llm_name: mine\n")
    for variable in ("LLM_IN_SANDBOX_CONFIG", "LLM_SANDBOX_SETTINGS"):
        assert resolve({}, {variable: "mine.yaml"})["model"] == "mine"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("llm_name: [", "not valid YAML"),
        ("- a\n- b\n", "must hold lines like"),
        ("llm_nme: x\n", "did you mean llm_name?"),
        ("max_steps: many\n", "max_steps: must be a whole number"),
        ("max_steps: true\n", "max_steps: must be a whole number"),
        ("llm_name: [a]\n", "llm_name: must be text"),
        ("\xff", "is not UTF-8 text: save it as UTF-8."),
        ("query: hello\n", "unknown key 'query'"),
    ],
)
def test_a_bad_settings_file_is_one_sentence(content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_bytes(content.encode("latin-1"))
    with pytest.raises(UsageError, match=r"bad\.yaml") as caught:
        resolve({"settings": "bad.yaml"}, {})
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_steps", "0"), ("max_steps", "-3"), ("max_steps", "1.5"), ("temperature", "hot"),
        ("temperature", "nan"), ("temperature", "-1"), ("top_k", "x"),
        *(("time", word) for word in ("", "0", "-1", "soon", "1d", "1e3", "inf", "nan")),
        *(("budget", word) for word in ("", "0", "-1", "x", "inf", "nan")),
        ("network", "maybe"), ("isolation", "vm"), ("profile", "weak"),
        ("extra_body", "[1]"), ("extra_body", "{"), ("extra_body", "{" * 5000),
        ("extra_body", '{"a":' * 5000), ("extra_body", '{"a": NaN}'), ("extra_body", "{'a': {1}}"),
        ("extra_body", {"since": date(2026, 1, 1)}),
        ("save_litellm_response", "perhaps"),
    ],
)  # fmt: skip
def test_a_bad_value_names_its_flag(name: str, value: object) -> None:
    with pytest.raises(UsageError, match=rf"^--{name}: must be .*, not "):
        resolve({name: value}, {})


def test_a_bad_value_of_a_variable_names_the_variable() -> None:
    with pytest.raises(
        UsageError, match="environment variable LLM_TEMPERATURE: must be a number of at least 0"
    ):
        resolve({}, {"LLM_TEMPERATURE": "warm"})


def test_values_are_understood() -> None:
    assert [seconds(word) for word in ("90", "90s", "1.5m", "2h", "3 min", 30)] == [90, 90, 90, 7200, 180, 30]
    assert [yes_or_no(word) for word in ("True", "yes", True, "0", False)] == [True, True, True, False, False]
    assert json_object("{'a': [True, {'b': 'false'}]}") == {"a": [True, {"b": False}]}
    assert text(424242) == "424242"
    assert resolve({"temperature": "default"}, {})["temperature"] is None


def test_the_switch_alone_means_yes() -> None:
    assert resolve(flags("--save_litellm_response"), {})["save_litellm_response"] is True
    assert resolve(flags("--save-litellm-response", "False"), {})["save_litellm_response"] is False


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "--max-stepz", "3"], "Unknown option --max-stepz; did you mean --max-steps? see"),
        (["run", "--api_keys=secret"], "Unknown option --api_keys; did you mean --api_key?"),
        (["run", "how", "many"], "put quotes around"),
        (["run", "--query"], "--query: expected one argument"),
        (["fly"], "invalid choice: 'fly'"),
        (["image"], "required: ACTION"),
        (["image", "lst"], "invalid choice"),
        (["show"], "required: RUN"),
        (["show", "nowhere"], "There is no run 'nowhere'"),
        (["run", "--settings", "nowhere.yaml"], "the settings file nowhere.yaml does not exist"),
        (["mcp", "--notebook", "a.ipynb", "--image", "x"], "leave out --isolation and other"),
        (["mcp", "--notebook", "a.ipynb", "--allow", "pypi"], "leave out --isolation and other"),
        (["mcp", "--notebook", "a.ipynb", "--secret", "K=h.org"], "leave out --isolation and other"),
        (["mcp", "--notebook", "a.ipynb", "--memory_mb", "9"], "leave out --isolation and other"),
    ],
)
def test_a_wrong_command_line_is_one_sentence_and_exit_2(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert said in err
    assert err.count("\n") == 1
    assert "secret" not in err
    assert out == ""


@pytest.mark.parametrize("words", [[], ["run"], ["image"], ["image", "build"], ["doctor"], ["show"]])
def test_every_command_explains_itself(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*words, "--help"])
    out = capsys.readouterr().out
    assert ended.value.code == 0
    assert "usage: llm-sandbox-nb" in out
    for one in RUN_OPTIONS if words == ["run"] else ():
        assert f"--{one.name}" in out
        assert f"--{one.name.replace('_', '-')}" in out
