"""What a card says at its end, where outputs are not updated, and where nothing began."""

from __future__ import annotations

from pathlib import Path

import pexpect
import pytest
from live_kernel import Message, cards_of, live_kernel
from support import PATIENCE, record_of
from versions import console
from warm_kernels import kernel_environment

from notebooks import MIME, execute, notebook_of, outputs

RUN = "%%sandbox -m scripted/strawberry --isolation process\nHow many?"
BEGUN = """
import asyncio
from llm_sandbox_nb import solve
task = asyncio.ensure_future(solve('How many?', model='scripted/./slow.yaml', isolation='process'))
await asyncio.sleep(2)
"""
SLOW = """
turns:
  - calls: [{tool: execute_bash, arguments: {command: "until [ -e GO ]; do sleep 0.1; done"}}]
  - calls: [{tool: submit}]
"""
UNKNOWN_PROVIDER = """
from llm_sandbox_nb.runs import solve as module
class Slow:
    name, scripted = 'slow/one', False
    async def check(self):
        import asyncio
        await asyncio.sleep(2.5)
        from llm_sandbox_nb.model.contract import ModelError
        raise ModelError('There is no key for slow.')
    async def reply(self, *given):
        raise NotImplementedError
usual, module.make_model = module.make_model, lambda *given, **more: Slow()
"""
"""A model of which only a slow check finds out that it has no key."""


def shown(messages: list[Message]) -> list[str]:
    """The texts of the outputs that hold a page, in order, with `updated` before those that replace one."""
    kinds = {"display_data": "", "update_display_data": "updated "}
    found = [m for m in messages if m["msg_type"] in kinds and "text/html" in m["content"]["data"]]
    return [kinds[m["msg_type"]] + m["content"]["data"]["text/plain"] for m in found]


def test_a_console_prints_the_end_once(tmp_path: Path) -> None:
    with live_kernel(tmp_path) as kernel:
        (said,) = shown(kernel.messages(kernel.start(RUN, console=True)))
        assert said.startswith("Submitted")
        first, *_, last = shown(kernel.run(RUN))
        assert not first.startswith("updated ")
        assert last.startswith("updated Submitted")


@pytest.mark.campaign
def test_jupyter_console_prints_the_end_once(tmp_path: Path) -> None:
    """The real program, in a terminal."""
    words = ["-m", "jupyter_console", "--simple-prompt", "--no-confirm-exit"]
    environment = kernel_environment(tmp_path, LLM_SANDBOX_ISOLATION="process", TERM="dumb")
    with pexpect.spawn(str(console()), words, cwd=tmp_path, env=environment, encoding="utf-8") as program:
        program.timeout = PATIENCE
        program.expect("In \\[1\\]:")
        program.sendline("%load_ext llm_sandbox_nb")
        program.expect("In \\[2\\]:")
        program.sendline("get_ipython().run_cell_magic('sandbox', '-m scripted/strawberry', 'How many?')")
        program.expect("In \\[3\\]:")
        said = program.before
        program.sendline("exit")
        program.expect(pexpect.EOF)
    assert (said.count("Submitted"), said.count("Running"), said.count("Starting")) == (1, 0, 0), said
    assert "Error" not in said


@pytest.mark.parametrize("in_console", [True, False])
def test_a_run_that_is_refused_after_a_slow_check_leaves_no_card(in_console: bool, tmp_path: Path) -> None:
    with live_kernel(tmp_path) as kernel:
        kernel.run(UNKNOWN_PROVIDER)
        cell = kernel.start("%%sandbox -m slow/one --isolation process\nHow many?", console=in_console)
        messages = kernel.messages(cell)
        kernel.run("module.make_model = usual")
    (error,) = [m["content"] for m in messages if m["msg_type"] == "error"]
    assert "There is no key for slow." in str(error)
    assert shown(messages) == cards_of(messages) == []


def test_a_run_in_the_background_ends_in_its_own_cell_while_another_awaits_it(tmp_path: Path) -> None:
    go = tmp_path / "go"
    (tmp_path / "slow.yaml").write_text(SLOW.replace("GO", str(go)))
    notebook = notebook_of(BEGUN, f"open({str(go)!r}, 'w').close()\nawait task\nNone")
    execute(notebook, tmp_path, kernel_environment(tmp_path))
    (card,) = [one.data for one in outputs(notebook.cells[1]) if "text/html" in one.get("data", {})]
    assert MIME in card
    assert record_of(card)["events"][-1]["stop_reason"] == "submitted"
    assert card["text/plain"].startswith("Submitted")
