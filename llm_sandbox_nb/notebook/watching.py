"""Who can watch and control the run of a cell: people at the Jupyter server, else the one who ran the cell."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from llm_sandbox_nb.agent.words import Prompt, answers
from llm_sandbox_nb.notebook.card_text import plain
from llm_sandbox_nb.notebook.errors import SandboxUsageError
from llm_sandbox_nb.trajectory.events import Event

if TYPE_CHECKING:
    from llm_sandbox_nb.agent.control import RunControl
    from llm_sandbox_nb.agent.run import Run
    from llm_sandbox_nb.notebook.card import Card
    from llm_sandbox_nb.notebook.panel import Panel
    from llm_sandbox_nb.notebook.publisher import RunPublisher
_SHOWN = 10_000
"""Characters of a call or observation that are printed to be decided about; the card has all."""
NOBODY = (
    "{option} needs somebody who decides when the run halts, and here nobody can be asked: the notebook runs "
    "without a front end, as with nbclient or papermill. Leave it out, or say what to do instead: --on-pause stop "
    "ends the run at its first halt, --on-pause continue only records the halts, and --break EXPR --on-pause stop "
    "ends it at certain calls."
)


class Watching:
    """The publisher of a cell's run, and what happens when the run is paused."""

    def __init__(self, on_pause: str | None = None) -> None:
        """`on_pause` is done at a halt when there is no server: `wait`, `stop`, `continue`; else the cell asks."""
        self.publisher: RunPublisher | None = None
        self._on_pause = "continue" if on_pause == "go" else None if on_pause == "ask" else on_pause
        self._run: Run | None = None

    def check(self, shell: Any, option: str | None) -> None:
        """Refuse an option that halts the run for sure when nobody can decide then. `option` is None without one.

        Raises:
            SandboxUsageError: there is no server, nobody can be asked in the cell, and the cell does not say.
        """
        if option and self._on_pause is None and self.publisher is None and not _somebody(shell):
            raise SandboxUsageError(NOBODY.format(option=option))

    def start(self, run: Run) -> None:
        """The run is there. In the run's loop."""
        self._run = run
        if self.publisher is not None:
            self.publisher.start(run)

    def listen(self, event: Event) -> None:
        """An event of the run. In the run's loop."""
        if self.publisher is not None:
            self.publisher.listen(event)

    async def finish(self) -> None:
        """The run is over."""
        if self.publisher is not None:
            await self.publisher.finish()

    def run_id(self) -> str | None:
        """The run as the server knows it, while it can be watched there."""
        publisher = self.publisher
        return publisher.run_id if publisher is not None and publisher.watched else None

    def make_panel(self, card: Card, shell: Any, use: str) -> Panel | None:
        """The panel of a run that no server can tell of, where a page shows it; `use` is auto, always or never."""
        from llm_sandbox_nb.notebook.panel import make_panel, page_shows_widgets

        if self.publisher is not None or use == "never":
            return None
        if use == "auto" and not page_shows_widgets(shell.user_ns):
            return None
        return make_panel(card, lambda: self._run.control if self._run else None)

    def paused(self) -> None:
        """The run has come to a halt: decide, or ask, unless somebody can decide at the server."""
        if self._run is None or self.run_id() is not None:
            return
        control = self._run.control
        match self._on_pause:
            case "wait":
                return
            case "stop":
                control.stop(source="cell")
            case "continue":
                control.resume(source="cell")
            case _:
                _ask(control)


def _ask(control: RunControl) -> None:
    """Ask in the cell until the halt is over; a run that nobody can be asked about is ended."""
    prompt = Prompt(control, source="cell")
    if prompt.open and prompt.text:
        print(plain(prompt.text[:_SHOWN]))
    while prompt.open:
        try:
            line = input(prompt.hint)
        except (EOFError, NotImplementedError):
            control.stop(source="cell")
            return
        if shown := prompt.answer(line):
            print(plain(shown))


def _somebody(shell: Any) -> bool:
    """Whether a cell can ask for input: a kernel is told with each cell, a terminal has one."""
    kernel = getattr(shell, "kernel", None)
    return bool(getattr(kernel, "_allow_stdin", True)) if kernel is not None else answers(sys.stdin)
