"""`%sandbox step` and the like: decisions about the running cell, from another thread of its kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llm_sandbox_nb.agent.control.debug_commands import execute_debug_command, question
from llm_sandbox_nb.agent.control.dispatch import decide
from llm_sandbox_nb.card.text import plain
from llm_sandbox_nb.notebook.errors import SandboxInputError
from llm_sandbox_nb.trajectory.decisions import PauseDecision

if TYPE_CHECKING:
    from llm_sandbox_nb.runs.run import Run

NO_RUN = (
    "No run is active: start one with a %%sandbox cell. These commands are for a second thread of this kernel "
    "(a subshell); the panel and the buttons of the card need none."
)


def execute_line_command(run: Run | None, command: str, rest: str) -> str:
    """Execute the decision of a `%sandbox` line; returns what to print.

    Raises:
        SandboxInputError: no run is active, or this is not possible now; nothing was changed.
    """
    if run is None or run.stop_reason is not None:
        raise SandboxInputError(NO_RUN)
    if command == "held":
        held = run.held
        if held is not None:
            return plain(question(held))
        return "The run is paused." if run.control.paused else "The run continues; nothing waits."
    if command == "pause":
        decide(run.control, PauseDecision(), source="magic")
        return "The run pauses before the next request, call or observation."
    if problem := execute_debug_command(run.control, f"{command} {rest}", source="magic"):
        raise SandboxInputError(problem)
    return "Done."
