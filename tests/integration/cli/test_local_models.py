"""Runs with a small real model on this machine: what is recorded, and that no server outlives its command or kernel."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import psutil
import pytest
from cli_process import CommandLine
from live_kernel import cards_of, live_kernel
from local_engines import engines_of
from support import child_pids, until

from llm_sandbox_nb.cli import LIMIT_REACHED, MODEL_ERROR, NO_ANSWER
from llm_sandbox_nb.model.local.local_model import SERVER_LOG
from llm_sandbox_nb.model.local.store import FOLDER_VARIABLE, models_folder
from llm_sandbox_nb.model.local.table import MODELS

NAME = "local/smollm2-135m"
STORE = {FOLDER_VARIABLE: str(models_folder())}
RUN = (
    "run",
    "-q",
    "Say hello.",
    "-m",
    NAME,
    "--isolation",
    "process",
    "--max_tokens_per_call",
    "8",
    "--output_dir",
    "runs",
)


def test_a_run_ends_says_which_model_it_was_and_leaves_no_server(command_line: CommandLine) -> None:
    done = command_line(*RUN, "--steps", "1", **STORE)
    assert done.code in (0, LIMIT_REACHED, NO_ANSWER), done.err + done.out
    assert done.left == []
    assert "A real model, on this machine: SmolLM2-135M-Instruct" in done.out
    assert "scripted" not in done.out
    events = [json.loads(line) for line in Path(done.folder, "journal.jsonl").read_text().splitlines()]
    start = events[0]
    assert (start["model"], start["scripted"]) == (NAME, False)
    assert start["settings"]["served_by"]["sha256"] == MODELS["smollm2-135m"].sha256
    assert start["settings"]["served_by"]["engine"].startswith("xllamacpp ")
    changed = [event["settings"] for event in events if event["kind"] == "settings.changed"]
    assert {"tool_calls": "text"} in changed
    replies = [event for event in events if event["kind"] == "model.replied"]
    assert replies
    assert {event["usage"]["cost"] for event in replies} == {0.0}
    assert "model loaded" in Path(done.folder, SERVER_LOG).read_text()


def test_a_command_that_is_killed_leaves_no_server(command_line: CommandLine) -> None:
    before = child_pids()
    process = command_line.start(*command_line.words(*RUN, "--steps", "100"), **STORE)
    until(lambda: "Step 1" in command_line.shown())
    assert len(engines_of(process.pid)) == 1
    process.kill()
    assert command_line.finish(process, before).left == []


@pytest.mark.campaign
def test_a_cell_shows_the_loading_where_its_card_will_be_and_a_killed_kernel_leaves_no_server(
    tmp_path: Path,
) -> None:
    with live_kernel(tmp_path, keep=False, **STORE) as kernel:
        kernel.run("%config SandboxMagics.max_tokens_per_call = 4")
        cell = f"%%sandbox -m {NAME} --isolation process --steps 1\nSay hello."
        shown = cards_of(kernel.run(cell))
        first, last = shown[0]["content"], shown[-1]["content"]
        assert first["data"]["text/plain"].startswith("Loading ")
        assert first["transient"]["display_id"] == last["transient"]["display_id"]
        assert "A real model, on this machine" in last["data"]["text/html"]
        pid = int(kernel.printed("import os; print(os.getpid())"))
        (engine,) = engines_of(pid)
        os.kill(pid, signal.SIGKILL)
        until(lambda: not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("local/smollm", "did you mean local/smollm2-135m?"),
        ("local/none.gguf", "is missing: check the path."),
        ("local/hf:only/two.gguf", "write hf:OWNER/REPOSITORY/FILE.gguf."),
    ],
)
def test_what_is_missing_is_said_in_one_sentence(model: str, said: str, command_line: CommandLine) -> None:
    done = command_line("run", "-q", "x", "-m", model, "--isolation", "process", **STORE)
    done.is_one_sentence(MODEL_ERROR, said)
    assert not (command_line.folder / "sandbox-runs").exists()
