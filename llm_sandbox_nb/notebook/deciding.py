"""`%sandbox step` and the like: decisions on the run under way, from another thread of the kernel than its cell's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llm_sandbox_nb.agent.words import carry_out, question
from llm_sandbox_nb.notebook.card_text import plain
from llm_sandbox_nb.notebook.errors import SandboxInputError

if TYPE_CHECKING:
    from llm_sandbox_nb.agent.run import Run

NO_RUN = (
    "No run is under way: start one with a %%sandbox cell; these words are for a second thread of this kernel "
    "(a subshell), the panel and the buttons of the card work without."
)


def decide(run: Run | None, word: str, rest: str) -> str:
    """Carry a word out; what to print.

    Raises:
        SandboxInputError: no run is under way, or it cannot do this now; nothing was changed.
    """
    if run is None or run.stop_reason is not None:
        raise SandboxInputError(NO_RUN)
    if word == "held":
        held = run.held
        if held is not None:
            return plain(question(held))
        return "The run is paused." if run.control.paused else "The run goes on; nothing waits."
    if word == "pause":
        run.control.pause(source="magic")
        return "The run halts at the next request, call or observation."
    if problem := carry_out(run.control, f"{word} {rest}", source="magic"):
        raise SandboxInputError(problem)
    return "Done."
