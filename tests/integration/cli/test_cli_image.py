"""`llm-sandbox-nb image`: what it prints, and one clear sentence when something is wrong."""

from __future__ import annotations

import pytest
from cli_process import CommandLine

from llm_sandbox_nb.sandbox.docker.images import DEFAULT_IMAGE


@pytest.mark.docker
@pytest.mark.usefixtures("docker_engine")
def test_list_and_check_know_our_image(command_line: CommandLine) -> None:
    listed = command_line("image", "list")
    assert listed.code == 0
    assert any(line.startswith(DEFAULT_IMAGE) for line in listed.out.splitlines())
    checked = command_line("image", "check")
    assert checked.code == 0, checked.err
    assert f"{DEFAULT_IMAGE} (" in checked.out
    assert "python3 3." in checked.out
    assert "matplotlib" in checked.out


@pytest.mark.docker
@pytest.mark.usefixtures("docker_engine")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("check", "no/such-image:1"), "no/such-image:1"),
        (("pull", "localhost:9/no/such-image:1"), "localhost:9/no/such-image:1"),
        (("build", "--base-image", "localhost:9/no/such-base:1", "--tag", "nothing:1"), "nothing:1"),
    ],
    ids=["check", "pull", "build"],
)
def test_an_image_that_cannot_be_had(command_line: CommandLine, words: tuple[str, ...], said: str) -> None:
    done = command_line("image", *words)
    assert done.code == 4, done.out + done.err
    last = done.err.splitlines()[-1]
    assert said in last
    assert "Traceback" not in done.err


def test_a_ca_bundle_that_is_not_there(command_line: CommandLine) -> None:
    command_line("image", "build", "--ca-bundle", "nowhere.pem").is_one_sentence(2, "nowhere.pem")


@pytest.mark.parametrize("words", [("list",), ("check",), ("pull", "debian"), ("build",)], ids=" ".join)
def test_without_an_engine(command_line: CommandLine, words: tuple[str, ...]) -> None:
    done = command_line("image", *words, DOCKER_HOST="tcp://127.0.0.1:9")
    done.is_one_sentence(4, "Docker")
