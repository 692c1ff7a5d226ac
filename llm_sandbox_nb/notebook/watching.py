"""Who can watch and control the run of a cell: people at the Jupyter server, else the one who ran the cell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llm_sandbox_nb.trajectory.events import Event

if TYPE_CHECKING:
    from llm_sandbox_nb.agent.run import Run
    from llm_sandbox_nb.notebook.card import Card
    from llm_sandbox_nb.notebook.panel import Panel
    from llm_sandbox_nb.notebook.publisher import RunPublisher

_QUESTION = (
    "The run is paused. Press Enter to go on, write `stop` to end it, or write what to tell the model: "
)
_NOBODY = "stop"
"""What is done when nobody can be asked and the cell does not say: a halt must not hang a batch for ever."""


class Watching:
    """The publisher of a cell's run, and what happens when the run is paused."""

    def __init__(self, on_pause: str | None = None) -> None:
        """`on_pause` is `wait`, `stop` or `go`: done at a pause, without asking, when there is no server."""
        self.publisher: RunPublisher | None = None
        self._on_pause = on_pause
        self._run: Run | None = None

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
        answer = self._on_pause or _ask()
        if answer == "wait":
            return
        if answer == "stop":
            self._run.control.stop(source="cell")
            return
        if answer not in ("", "go"):
            self._run.control.say(answer, source="cell")
        self._run.control.resume(source="cell")


def _ask() -> str:
    try:
        return input(_QUESTION).strip()
    except (EOFError, NotImplementedError):
        return _NOBODY
