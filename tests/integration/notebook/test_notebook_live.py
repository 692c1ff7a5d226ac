"""A cell while it runs: one output updated in place, output as it streams, and the interrupt."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from live_kernel import LiveKernel, Message, cards_of, live_kernel
from support import own_mark, processes_with, record_of, until

from llm_sandbox_nb.runs.run import Run
from notebooks import MIME

SLOW = """
chunk: 4
delay: 0.2
turns:
  - text: I count slowly, and say so at some length.
    calls:
      - tool: execute_bash
        arguments:
          command: "seq -f 'line %g' 1 2; until [ -e /tmp/GO ]; do sleep 0.05; done; seq -f 'line %g' 3 4"
  - calls: [{tool: submit}]
"""
ENDLESS = """
turns:
  - calls: [{tool: execute_bash, arguments: {command: "export KEPT=yes"}}]
  - text: This goes on for long.
    calls:
      - tool: execute_bash
        arguments:
          command: "echo begun; setsid sleep MARK & (trap '' TERM INT; sleep MARK) & sleep MARK"
  - calls: [{tool: submit}]
"""
BEGUN = "<pre>begun"
THINKING = """
turns:
  - text: A reply that takes its time.
    delay: 600
    calls: [{tool: submit}]
"""


def page_of(message: Message) -> str:
    return str(message["content"].get("data", {}).get("text/html", ""))


def wait_for_sleepers(mark: str, count: int) -> None:
    """Until so many endless commands run; a job in the background may not yet when the shell goes on."""
    until(lambda: len(processes_with(mark)) == count, f"there are not {count}")


def test_one_output_is_updated_in_place(tmp_path: Path) -> None:
    go = tmp_path / "go"
    (tmp_path / "slow.yaml").write_text(SLOW.replace("/tmp/GO", str(go)))
    with live_kernel(tmp_path, LLM_SANDBOX_ISOLATION="process") as kernel:
        begun = time.monotonic()
        cell = kernel.start("%%sandbox -m scripted/./slow.yaml\nCount.")
        seen = kernel.messages(cell, until=lambda m: "line 2" in page_of(m))
        go.touch()
        shown = cards_of(seen + kernel.messages(cell))
        lasted = time.monotonic() - begun
    assert [message["msg_type"] for message in shown] == ["display_data"] + ["update_display_data"] * (
        len(shown) - 1
    )
    assert len({message["content"]["transient"]["display_id"] for message in shown}) == 1
    assert all(message["content"]["metadata"]["llm_sandbox"]["schema_version"] == 2 for message in shown)
    pages = [page_of(message) for message in shown]
    assert any("I count" in page and "at some length" not in page for page in pages), (
        "the thought as it streams"
    )
    assert any("line 2" in page and "line 4" not in page for page in pages), "the output as it streams"
    assert all(MIME not in message["content"]["data"] for message in shown[:-1])
    assert MIME in shown[-1]["content"]["data"]
    assert "Submitted" in pages[-1]
    assert len(shown) < 10 + 5 * lasted, "throttled"


def test_an_interrupt_kills_the_command_and_is_raised(isolation: str, tmp_path: Path) -> None:
    mark = own_mark()
    (tmp_path / "endless.yaml").write_text(ENDLESS.replace("MARK", mark))
    with live_kernel(tmp_path, LLM_SANDBOX_ISOLATION=isolation) as kernel:
        cell = kernel.start("%%sandbox -m scripted/./endless.yaml -o run\nWait.")
        kernel.messages(cell, until=lambda m: BEGUN in page_of(m))
        wait_for_sleepers(mark, 3)  # the canary: without the kill these would stay
        kernel.manager.interrupt_kernel()
        rest = kernel.messages(cell)
        wait_for_sleepers(mark, 0)
        (error,) = [message["content"] for message in rest if message["msg_type"] == "error"]
        assert error["ename"] == "KeyboardInterrupt"
        assert len(error["traceback"]) == 1
        last = cards_of(rest)[-1]["content"]["data"]
        assert "Stopped by you" in last["text/html"]
        assert record_of(last)["events"][-1]["stop_reason"] == "interrupted"
        assert "begun" in last["text/html"], "the output so far is kept"
        assert (
            kernel.printed("print(run.stop_reason, run.steps[1].calls[0].result.error)")
            == "interrupted interrupted\n"
        )
        assert kernel.printed("%sandbox sh pwd; echo $KEPT").endswith("yes\n"), "the shell lives on"


def test_a_kernel_that_ends_names_itself_as_the_cause(tmp_path: Path) -> None:
    """Jupyter interrupts the cell before it shuts down the kernel."""
    (tmp_path / "endless.yaml").write_text(ENDLESS.replace("MARK", own_mark()))
    with live_kernel(tmp_path, keep=False, LLM_SANDBOX_ISOLATION="process") as kernel:
        cell = kernel.start("%%sandbox -m scripted/./endless.yaml\nWait.")
        kernel.messages(cell, until=lambda m: BEGUN in page_of(m))
        kernel.manager.shutdown_kernel()
    (journal,) = tmp_path.glob("*/*/*/journal.jsonl")
    assert Run.load(journal.parent).trajectory.state(live=False).words == "Stopped by the end of the kernel"


def test_an_interrupt_ends_a_model_call(tmp_path: Path) -> None:
    (tmp_path / "thinking.yaml").write_text(THINKING)
    with live_kernel(tmp_path, LLM_SANDBOX_ISOLATION="process") as kernel:
        cell = kernel.start("%%sandbox -m scripted/./thinking.yaml -o run\nThink.")
        journals = tmp_path.glob
        until(lambda: any('"model.requested"' in one.read_text() for one in journals("*/*/*/journal.jsonl")))
        kernel.manager.interrupt_kernel()
        kernel.messages(cell)
        assert kernel.printed("print(run.stop_reason)") == "interrupted\n"


def test_an_interrupt_ends_a_command_of_the_line_magic(some_isolation: str, tmp_path: Path) -> None:
    mark = own_mark()
    with live_kernel(tmp_path, LLM_SANDBOX_ISOLATION=some_isolation) as kernel:
        cell = kernel.start(f"%sandbox sh echo begun; sleep {mark}")
        kernel.messages(cell, until=lambda m: "begun" in m["content"].get("text", ""))
        wait_for_sleepers(mark, 1)
        kernel.manager.interrupt_kernel()
        kernel.messages(cell)
        wait_for_sleepers(mark, 0)
        assert kernel.printed("%sandbox sh echo alive") == "alive\n"


def ends_with(isolation: str, folder: Path, end: Callable[[LiveKernel], None]) -> None:
    """Assert that nothing is left of a sandbox after this end of its kernel."""
    mark = own_mark()
    with live_kernel(folder, keep=False, LLM_SANDBOX_ISOLATION=isolation) as kernel:
        kernel.run(f"%sandbox sh sleep {mark} > /dev/null 2>&1 &")
        wait_for_sleepers(mark, 1)
        end(kernel)
        wait_for_sleepers(mark, 0)


def test_the_sandbox_ends_with_its_kernel(isolation: str, tmp_path: Path) -> None:
    ends_with(isolation, tmp_path, lambda kernel: kernel.client.shutdown())


@pytest.mark.parametrize(
    "isolation",
    [
        "process",
        pytest.param("bubblewrap", marks=pytest.mark.bubblewrap),
        pytest.param("docker", marks=[pytest.mark.docker, pytest.mark.campaign]),
    ],
    indirect=True,
)
def test_the_sandbox_ends_when_its_kernel_is_killed(isolation: str, tmp_path: Path) -> None:
    """A container ends after its lease of 45 s."""
    ends_with(isolation, tmp_path, lambda kernel: kernel.manager.shutdown_kernel(now=True))


def test_a_variable_with_the_name_of_the_shells_inputs_breaks_no_cell(tmp_path: Path) -> None:
    with live_kernel(tmp_path, LLM_SANDBOX_ISOLATION="process") as kernel:
        messages = kernel.run(
            "In = 5\nget_ipython().run_cell_magic('sandbox', '-m scripted/strawberry', 'Hi')"
        )
        assert cards_of(messages)
        assert not [m["content"] for m in messages if m["msg_type"] == "error"]
