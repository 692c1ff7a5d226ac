"""A kernel prepares a sandbox while it is idle: the next cell that needs one gets this one, if its options fit."""

from __future__ import annotations

from pathlib import Path

import pytest
from live_kernel import LiveKernel, live_kernel
from support import until

ASK = """
from IPython import get_ipython
_magics = get_ipython().magics_manager.registry["SandboxMagics"]
_keeper = _magics._sandboxes._keeper
for _entry in _keeper._prepared._entries if _keeper else ():
    if _entry.start.done():
        print(_entry.start.result().id, _entry.start.result().protection.network)
"""


def prepared_ids(kernel: LiveKernel) -> list[str]:
    """The ids and networks of the sandboxes that have been prepared; a silent cell is no cell of the notebook."""
    printed: list[str] = []
    kernel.client.execute_interactive(
        ASK,
        silent=True,
        store_history=False,
        output_hook=lambda message: printed.append(message["content"].get("text", "")),
    )
    return "".join(printed).split()


def wait_for_one(kernel: LiveKernel) -> str:
    until(lambda: len(prepared_ids(kernel)) == 2, "no sandbox was prepared")
    return prepared_ids(kernel)[0]


def running(kernel: LiveKernel) -> str:
    status = kernel.printed("%sandbox status")
    return status.partition(",")[0].removeprefix("Sandbox ")


def test_two_cells_in_a_row_use_prepared_sandboxes(strong_isolation: str, tmp_path: Path) -> None:
    with live_kernel(tmp_path, LLM_SANDBOX_ISOLATION=strong_isolation, LLM_SANDBOX_PREPARED="1") as kernel:
        first = wait_for_one(kernel)
        assert kernel.printed("%sandbox sh touch left; echo here") == "here\n"
        assert running(kernel) == first
        second = wait_for_one(kernel)
        assert second != first
        assert "prepared for the next cells: 1 sandbox" in kernel.printed("%sandbox status")
        kernel.run("%sandbox fresh")
        assert kernel.printed("%sandbox sh ls") == "documents\ninput\noutput\n"
        assert running(kernel) == second
        assert kernel.printed("%sandbox stop") == "The sandbox is ended.\n"
        assert prepared_ids(kernel) == []


@pytest.mark.usefixtures("bubblewrap_engine")
@pytest.mark.bubblewrap
class TestOptions:
    """Options that change between the preparation and the cell."""

    def test_a_cell_with_other_options_gets_what_it_asks_for(self, tmp_path: Path) -> None:
        task = "%%sandbox -m scripted/strawberry --network allow --allow example.org\nHow many?"
        with live_kernel(tmp_path, LLM_SANDBOX_ISOLATION="bubblewrap", LLM_SANDBOX_PREPARED="1") as kernel:
            first = wait_for_one(kernel)
            kernel.run(task)
            assert running(kernel) != first
            wait_for_one(kernel)
            assert prepared_ids(kernel)[1] == "allow", "the next one is like the newest"

    def test_a_changed_setting_prepares_another(self, tmp_path: Path) -> None:
        with live_kernel(tmp_path, LLM_SANDBOX_ISOLATION="bubblewrap", LLM_SANDBOX_PREPARED="1") as kernel:
            first = wait_for_one(kernel)
            kernel.run("%config SandboxMagics.network = 'public'")
            until(lambda: prepared_ids(kernel)[1:] == ["public"])
            assert prepared_ids(kernel)[0] != first
            kernel.run("%config SandboxMagics.prepared_sandboxes = 0")
            until(lambda: prepared_ids(kernel) == [])

    def test_cells_without_a_pause_prepare_nothing_in_between(self, tmp_path: Path) -> None:
        with live_kernel(tmp_path, LLM_SANDBOX_ISOLATION="bubblewrap", LLM_SANDBOX_PREPARED="1") as kernel:
            kernel.run("import time; time.sleep(2)")  # longer than the pause after which a kernel is idle
            assert prepared_ids(kernel) == []


@pytest.mark.parametrize("setting", [{"LLM_SANDBOX_PREPARED": "0"}, {"LLM_SANDBOX_ISOLATION": "process"}])
def test_nothing_is_prepared(setting: dict[str, str], tmp_path: Path) -> None:
    environment = {"LLM_SANDBOX_ISOLATION": "bubblewrap", "LLM_SANDBOX_PREPARED": "1", **setting}
    with live_kernel(tmp_path, **environment) as kernel:
        kernel.run("import time; from llm_sandbox_nb.notebook.preparation import IDLE_SECONDS")
        kernel.client.execute_interactive("time.sleep(2 * IDLE_SECONDS)", silent=True, store_history=False)
        assert prepared_ids(kernel) == []
