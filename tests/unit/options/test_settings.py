"""One settings file for cells and the command line: which place wins, and what a person sees of it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from plain_shell import magics_of, plain_shell
from traitlets.config import Config

from llm_sandbox_nb.cli import main
from llm_sandbox_nb.notebook.errors import SandboxUsageError
from llm_sandbox_nb.notebook.magics import SandboxMagics
from llm_sandbox_nb.options.settings_files import find_settings_files
from llm_sandbox_nb.options.table import FILE_SETTINGS, RUN_OPTIONS, UsageError
from llm_sandbox_nb.options.values import resolve, sandbox_options

KEY = "sk-very-secret"


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: a project below a home folder that is empty."""
    for name in [name for option in RUN_OPTIONS for name in option.environment]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("LLM_SANDBOX_ISOLATION", "process")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    folder = tmp_path / "home" / "project"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


def user_file(text: str) -> Path:
    path = Path.home() / ".config" / "llm-sandbox-nb" / "settings.toml"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def project_file(text: str) -> Path:
    path = Path("llm-sandbox-nb.toml").absolute()
    path.write_text(text)
    return path


@pytest.fixture
def shell() -> Iterator[Any]:
    with plain_shell() as made:
        magics_of(made).use_server = False
        yield made


def steps_of(shell: Any, options: str = "") -> int:
    """The limit with which a cell really runs."""
    shell.run_cell_magic("sandbox", f"-m scripted/strawberry -o result {options}", "How many?")
    steps: int = shell.user_ns["result"].trajectory.start.settings["limits"]["steps"]
    return steps


def test_a_cell_takes_the_value_of_the_strongest_place(shell: Any) -> None:
    user_file("steps = 40\n")
    assert steps_of(shell) == 40
    path = project_file("max_steps = 30\n")
    assert steps_of(shell) == 30
    path.write_text("steps = 31\n")
    assert steps_of(shell) == 31, "a changed file counts at the next cell"
    shell.run_line_magic("config", "SandboxMagics.steps = 100")
    assert steps_of(shell) == 100, "what is set is stronger than a file, even if it is the default"
    assert steps_of(shell, "--steps 10") == 10
    assert SandboxMagics(config=Config({"SandboxMagics": {"steps": 100}})).steps == 100


def test_the_command_line_reads_the_same_files_by_the_same_names() -> None:
    user_file("steps = 40\nbudget = 2\nimage = 'mine'\n")
    values = resolve({}, {})
    assert (values["steps"], values["budget"], values["image"], values["model"]) == (40, 2.0, "mine", None)
    project_file("steps = 30\nmodel = 'scripted/strawberry'\n")
    values = resolve({}, {})
    assert (values["steps"], values["budget"], values["model"]) == (30, 2.0, "scripted/strawberry")
    assert resolve({"max_steps": "3"}, {})["steps"] == 3


def test_the_environment_is_stronger_than_files_and_weaker_than_config(
    shell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    project_file("model = 'scripted/from-file'\n")
    monkeypatch.setenv("LLM_NAME", "scripted/strawberry")
    shell.run_cell_magic("sandbox", "-o result", "How many?")
    assert shell.user_ns["result"].model == "scripted/strawberry"
    monkeypatch.setenv("LLM_NAME", "scripted/none-such")
    shell.run_line_magic("config", "SandboxMagics.model = 'scripted/strawberry'")
    shell.run_cell_magic("sandbox", "-o result", "How many?")
    assert resolve({}, os.environ)["model"] == "scripted/none-such"


def test_every_name_of_the_table_is_a_key_of_a_file_and_a_setting_of_cells() -> None:
    for option in FILE_SETTINGS:
        sample = {bool: "true", float: "7", int: "7"}.get(type(option.default), '"x"')
        for name in (option.name, *option.aliases):
            project_file(f"{name} = {sample}\n")
            said = ""
            try:
                resolve({}, {})
            except UsageError as error:
                said = str(error)
            assert not said or f"llm-sandbox-nb.toml, {name}: " in said
    of_runs = {
        *("api_key", "input_dir", "save_litellm_response", "step", "break", "break_when", "tool", "doubt"),
        *("approve", "on_pause"),
    }
    assert {option.name for option in FILE_SETTINGS} - of_runs == set(
        SandboxMagics.class_traits(config=True)
    ) - {"log_level"}


def test_a_wrong_file_is_one_sentence_in_a_cell_and_in_a_shell(
    shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for text, said in (
        ("stps = 3\n", "unknown key 'stps'; did you mean steps?"),
        ("steps = \n", "is not valid TOML"),
        ("steps = 'many'\n", "llm-sandbox-nb.toml, steps: must be a whole number"),
        ("live_panel = 'perhaps'\n", "llm-sandbox-nb.toml, live_panel: must be one of"),
        ("profile = 'weak'\n", "llm-sandbox-nb.toml, profile: must be one of"),
        ("model_settings = {top_k = 'x'}\n", "llm-sandbox-nb.toml, model_settings.top_k: must be a whole"),
        ("model_settings = {topk = 3}\n", "unknown key 'model_settings.topk'; did you mean top_k?"),
    ):
        project_file(text)
        with pytest.raises(SandboxUsageError) as caught:
            shell.run_cell_magic("sandbox", "-m scripted/strawberry", "How many?")
        assert said in str(caught.value)
        assert main(["run", "How many?", "--model", "scripted/strawberry"]) == 2
        assert main(["settings"]) == 2
        assert capsys.readouterr().err.count(said) == 2
    assert not Path("sandbox-runs").exists()


def test_the_model_settings_of_a_file_count_in_a_shell_and_in_a_notebook() -> None:
    project_file("top_k = 5\n[model_settings]\ntemperature = 0.3\nmax_tokens = 77\ntop_k = 9\n")
    said = resolve({"temperature": "0.6"}, {})
    assert (said["temperature"], said["max_tokens_per_call"], said["top_k"]) == (0.6, 77, 5)
    with plain_shell() as shell:
        magics = magics_of(shell)
        assert (magics.temperature, magics.max_tokens_per_call, magics.top_k) == (0.3, 77, 5)
        assert magics.model_settings == {}


@pytest.mark.parametrize("content", ["time: 2026-13-01", "[" * 3000, "steps: ["])
def test_a_file_with_a_value_that_yaml_cannot_read_is_one_sentence(content: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(content)
    with pytest.raises(UsageError, match="is not valid YAML"):
        resolve({"settings": str(path)}, {})


def test_a_kernel_starts_with_a_wrong_file() -> None:
    project_file("stepz = 3\n")
    with plain_shell() as shell:
        assert magics_of(shell).steps == 100


def test_the_file_of_a_folder_above_counts(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = project_file("steps = 30\n")
    (project / "notebooks" / "deep").mkdir(parents=True)
    monkeypatch.chdir(project / "notebooks" / "deep")
    assert find_settings_files({}, {}) == (path,)
    near = project_file("steps = 31\n")
    assert find_settings_files({}, {}) == (near,)


def test_no_folder_above_the_home_folder_is_searched(tmp_path: Path) -> None:
    (tmp_path / "llm-sandbox-nb.toml").write_text("steps = 3\n")
    assert find_settings_files({}, {}) == ()
    (tmp_path / "home" / "llm-sandbox-nb.toml").write_text("steps = 3\n")
    assert find_settings_files({}, {}) == (tmp_path / "home" / "llm-sandbox-nb.toml",)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another user")
def test_the_file_of_another_user_in_a_folder_above_does_not_count(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = project_file("isolation = 'process'\n")
    (project / "notebooks").mkdir()
    monkeypatch.chdir(project / "notebooks")
    assert find_settings_files({}, {}) == (path,)
    os.chown(path, 12345, 12345)
    assert find_settings_files({}, {}) == ()


def test_a_named_file_replaces_both() -> None:
    user_file("steps = 40\n")
    project_file("tokens = 3000\n")
    Path("mine.toml").write_text("budget = 1\n")
    values = resolve({"settings": "mine.toml"}, {})
    assert (values["steps"], values["tokens"], values["budget"]) == (100, 65536, 1.0)


def test_settings_says_where_each_value_comes_from(
    shell: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    user = user_file(f"steps = 40\nbudget = 2\napi_key = '{KEY}'\n")
    project = project_file("max_steps = 30\n")
    monkeypatch.setenv("LLM_NAME", "scripted/strawberry")
    assert main(["settings"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [f"Read: {project}", f"Read: {user}"]
    shown = {line.split()[0]: line.split(maxsplit=2)[1:] for line in lines[3:]}
    assert shown["model"] == ["scripted/strawberry", "environment variable LLM_NAME"]
    assert shown["steps"] == ["30", f"{project}, max_steps"]
    assert shown["budget"] == ["2.0", f"{user}, budget"]
    assert shown["api_key"][0] == "(set)"
    assert shown["tokens"] == ["65536", "default"]

    shell.run_line_magic("config", "SandboxMagics.tokens = 9000")
    shell.run_line_magic("sandbox", "settings")
    said = capsys.readouterr().out
    shown = {line.split()[0]: line.split(maxsplit=2)[1:] for line in said.splitlines()[3:]}
    assert shown["tokens"] == ["9000", "%config SandboxMagics.tokens"]
    assert shown["steps"] == ["30", f"{project}, max_steps"]

    assert main(["settings", "--json"]) == 0
    out = capsys.readouterr().out
    found = json.loads(out)
    assert found["settings"]["steps"] == {"value": 30, "source": f"{project}, max_steps"}
    assert found["files"] == [str(project), str(user)]
    assert KEY not in said + out + "\n".join(lines)


def test_settings_shows_addresses_without_their_passwords(capsys: pytest.CaptureFixture[str]) -> None:
    project_file(
        "api_base = 'https://me:word@models.example/v1?api-version=1'\nproxy = 'http://me:word@[broken'\n"
        "index_url = 'https://token:word@pypi.example/simple'\nmcp = ['x=https://me:word@mcp.example/']\n"
    )
    for words in (["settings"], ["settings", "--json"]):
        assert main(words) == 0
        said = capsys.readouterr().out
        assert "word" not in said
        assert "https://(hidden)@models.example/v1" in said
        assert "http://(hidden)@[broken" in said
        assert "https://(hidden)@pypi.example/simple" in said
        assert "x=https://(hidden)@mcp.example/" in said


def test_settings_says_where_a_file_can_be_made(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert "llm-sandbox-nb.toml here" in first
    assert str(Path.home() / ".config" / "llm-sandbox-nb" / "settings.toml") in first


def test_the_key_of_a_cell_comes_from_where_the_command_line_takes_it(
    shell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    magics = magics_of(shell)
    monkeypatch.setenv("OPENAI_API_KEY", "of-the-provider")
    for text, model, expected in (
        ("", "openai/gpt-5", "of-the-provider"),
        ("", "gemini/pro", None),
        ("api_key = 'of-the-file'\n", "gemini/pro", "of-the-file"),
        ("api_key_env = 'MINE'\n", "openai/gpt-5", "of-mine"),
    ):
        project_file(text)
        monkeypatch.setenv("MINE", "of-mine")
        magics.read_files()
        assert magics.api_key(model, None) == expected
        assert resolve({"model": model}, os.environ)["api_key"] == expected
    project_file("api_key = 'of-the-file'\n")
    magics.read_files()
    monkeypatch.setenv("GEMINI_API_KEY", "of-gemini")
    assert magics.api_key("gemini/pro", None) == "of-gemini"
    with pytest.raises(SandboxUsageError, match="not the key itself") as caught:
        magics.api_key("openai/gpt-5", KEY)
    assert KEY not in str(caught.value)
    with pytest.raises(SandboxUsageError, match="NONE_SUCH is not set"):
        magics.api_key("openai/gpt-5", "NONE_SUCH")


def test_resources_of_a_file_reach_the_sandbox_of_a_cell_and_of_a_shell(shell: Any) -> None:
    project_file("pids = 77\nmemory_mb = 300\n")
    limits = magics_of(shell)
    limits.read_files()
    assert (limits.limits().pids, limits.limits().memory_bytes) == (77, 300 * 1024**2)
    assert sandbox_options(resolve({}, {}))["limits"] == limits.limits()


def test_a_chosen_model_is_that_of_the_next_cell(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    project_file("model = 'scripted/none-such'\napi_base = 'http://127.0.0.1:9/v1'\n")
    shell.run_line_magic("sandbox", "model scripted/strawberry")
    said = capsys.readouterr().out
    assert "%config SandboxMagics.model = 'scripted/strawberry'" in said
    assert "The api_base set before is not used any more" in said
    shell.run_cell_magic("sandbox", "-o result", "How many?")
    assert shell.user_ns["result"].model == "scripted/strawberry"
    shell.run_line_magic("sandbox", "model openai/qwen3 --api-base http://127.0.0.1:8000/v1")
    magics = magics_of(shell)
    assert (magics.model, magics.api_base) == ("openai/qwen3", "http://127.0.0.1:8000/v1")


def test_an_impossible_number_is_refused_when_it_is_set(shell: Any, caplog: pytest.LogCaptureFixture) -> None:
    before = magics_of(shell)
    kept = before.steps, before.temperature, before.prepared_sandboxes, before.isolation
    for line, sentence in {
        "steps = -1": "SandboxMagics.steps: must be a whole number of at least 1, not -1",
        "temperature = -0.5": "SandboxMagics.temperature: must be a number of at least 0",
        "prepared_sandboxes = -2": "SandboxMagics.prepared_sandboxes: must be a whole number of at least 0",
        "isolation = 'dokcer'": "did you mean 'docker'?",
    }.items():
        caplog.clear()
        shell.run_line_magic("config", f"SandboxMagics.{line}")  # IPython logs the error
        assert sentence in caplog.text
    after = magics_of(shell)
    assert (after.steps, after.temperature, after.prepared_sandboxes, after.isolation) == kept


def test_a_model_that_cannot_be_chosen_changes_nothing(shell: Any) -> None:
    wrong = {
        "scripted/none-such": "There is no script",
        "openai/x --api-base nonsense": "is not the address of a model server",
    } | dict.fromkeys(("a b", "a --local", "--api-base", "'a"), "The command is %sandbox model")
    before = magics_of(shell).model
    for line, sentence in wrong.items():
        with pytest.raises(SandboxUsageError, match=sentence):
            shell.run_line_magic("sandbox", f"model {line}")
        assert magics_of(shell).model == before


def test_models_are_listed_without_keys(
    shell: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MISTRAL_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_API_KEY", "")
    project_file(f"api_base = 'http://user:{KEY}@127.0.0.1:9/v1'\n")
    shell.run_line_magic("sandbox", "model")
    told = capsys.readouterr().out
    shell.run_line_magic("sandbox", "model --json")
    listed = capsys.readouterr().out
    found = json.loads(listed)
    assert "mistral (its key is set): mistral/" in told
    assert "openai (" not in told
    assert "mistral/mistral-large-latest" in found["providers"]["mistral"]
    assert "openai" not in found["providers"]
    assert "scripted/strawberry" in found["scripted"]
    assert "local/qwen2.5-coder-1.5b" in found["on_this_machine"]
    assert found["local"] is None
    assert KEY not in told + listed
