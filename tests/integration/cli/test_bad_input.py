"""Bad input to the command line: one clear sentence, the right exit code, nothing left running."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_process import CommandLine
from support import own_mark

CLOSED = "127.0.0.1:9"
STRAWBERRY = ("--query", "How many r's are in strawberry?", "--llm_name", "scripted/strawberry")
QUERY = ("--query", "Hello", "--isolation", "process")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--llm_name", "scripted/nosuchscript"), 3, "nosuchscript"),
        (("--llm_name", "openai/gpt-5"), 3, "OPENAI_API_KEY"),
        (("--llm_name", "anthropic/claude-sonnet-4-5"), 3, "ANTHROPIC_API_KEY"),
        (("--llm_name", "your-model", "--llm_base_url", f"http://{CLOSED}/v1"), 3, CLOSED),
        (("--llm_name", "your-model", "--llm_base_url", "not a url"), 3, "not a url"),
        ((), 2, "no model"),
    ],
    ids=["script", "openai-key", "anthropic-key", "unreachable", "no-url", "no-model"],
)
def test_a_model_that_cannot_be_asked(
    command_line: CommandLine, words: tuple[str, ...], code: int, said: str
) -> None:
    done = command_line("run", *QUERY, *words)
    done.is_one_sentence(code, said)


@pytest.mark.parametrize("host", [f"tcp://{CLOSED}", "unix:///nowhere/docker.sock", "nonsense://x"])
def test_a_dead_engine(command_line: CommandLine, host: str) -> None:
    done = command_line("run", *STRAWBERRY, "--isolation", "docker", DOCKER_HOST=host)
    done.is_one_sentence(4, "ocker")


@pytest.mark.docker
@pytest.mark.usefixtures("docker_engine")
def test_a_missing_image(command_line: CommandLine) -> None:
    image = "localhost:9/no/such-image:1"
    done = command_line("run", *STRAWBERRY, "--isolation", "docker", "--docker_image", image)
    done.is_one_sentence(4, image)


def test_no_isolation_that_works(command_line: CommandLine, tmp_path: Path) -> None:
    done = command_line("run", *STRAWBERRY, DOCKER_HOST=f"tcp://{CLOSED}", PATH=str(tmp_path))
    done.is_one_sentence(4, "process")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--input_dir", "nowhere.csv"), "nowhere.csv"),
        (("--query", ""), "task is missing"),
        (("--query", " \n\t"), "task is missing"),
        (("--settings", "broken.yaml"), "broken.yaml"),
        (("--prompt_config", "nowhere.yaml"), "nowhere.yaml"),
        (("--prompt_config", "broken.yaml"), "broken.yaml"),
        (("--prompt_config", "empty.yaml"), "system_prompt"),
        (("--output_dir", "broken.yaml"), "broken.yaml"),
        (("--output_dir", "/proc/nowhere"), "/proc/nowhere"),
        (("--isolation", "bubblewrap", "--secret", "NO_TOKEN=api.example"), "NO_TOKEN has no value"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_wrong_request_starts_nothing(
    command_line: CommandLine, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    (tmp_path / "broken.yaml").write_text("llm_name: [")
    (tmp_path / "empty.yaml").write_text("instance_prompt: '{problem_statement}'\n")
    done = command_line("run", *STRAWBERRY, "--isolation", "process", *words)
    done.is_one_sentence(2, said)
    assert not (tmp_path / "sandbox-runs").exists()


def test_a_good_request_passes_the_same_checks(command_line: CommandLine) -> None:
    """The checks would see a process that is left, or a second sentence: this run has neither and is fine."""
    done = command_line("run", *STRAWBERRY, "--isolation", "process")
    assert done.code == 0
    assert done.err == ""
    assert done.left == []


def test_the_check_sees_what_is_left_running(command_line: CommandLine) -> None:
    command_line.patience = 1.0
    mark = own_mark()
    done = command_line.program("sh", "-c", f"setsid sleep {mark} & echo done")
    assert [mark in left for left in done.left] == [True]
