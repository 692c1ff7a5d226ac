"""People who watch and control a cell's run: users of the Jupyter server, or else the person who ran the cell."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from llm_sandbox_nb.agent.control.frontends import Prompt, can_answer
from llm_sandbox_nb.agent.errors import ControlError
from llm_sandbox_nb.notebook.errors import SandboxUsageError
from llm_sandbox_nb.plain_text import plain
from llm_sandbox_nb.trajectory.events import Event

if TYPE_CHECKING:
    from llm_sandbox_nb.card.card import Card
    from llm_sandbox_nb.notebook.display import PageCell
    from llm_sandbox_nb.notebook.panel import Panel
    from llm_sandbox_nb.notebook.server_client.publisher import RunPublisher
    from llm_sandbox_nb.runs.run import Run
_MAX_PRINTED_CHARACTERS = 10_000
"""Maximum printed characters of a waiting call or observation; the card shows all."""
_WATCHED_SECONDS, _SHARED_SECONDS = 1.0, 3600.0
NOBODY = (
    "{option} needs a person who decides when the run pauses, but no front end of this notebook can ask a person, as "
    "with nbclient or papermill. Leave out {option}, or choose another action: --on-pause stop ends the run at its "
    "first pause, --on-pause continue only records the pauses, and --break EXPR --on-pause stop ends the run at "
    "certain calls."
)


class Watchers:
    """The publisher of a cell's run, and the decision when the run pauses."""

    def __init__(self, on_pause: str | None = None, cell: PageCell | None = None) -> None:
        """Create the watchers for the run that `cell` shows.

        `on_pause` says what happens at a pause if there is no server: `wait`, `stop`, `continue`, or `ask` in the cell.
        None means `ask`, and `go` means `continue`.
        """
        self._cell = cell
        self.publisher: RunPublisher | None = None
        self._on_pause = "continue" if on_pause == "go" else None if on_pause == "ask" else on_pause
        self._run: Run | None = None

    def check(self, shell: Any, option: str | None) -> None:
        """Refuse `option`, with which the run always pauses, if nobody can decide at a pause.

        Raises:
            SandboxUsageError: if there is no server, the cell cannot ask, and its options do not name an action.
        """
        if option and self._on_pause is None and self.publisher is None and not _can_ask(shell):
            raise SandboxUsageError(NOBODY.format(option=option))

    def start(self, run: Run) -> None:
        """Begin to publish the run. Call this in the run's loop once the run has begun."""
        self._run = run
        if self.publisher is not None:
            self.publisher.start(run, self._cell)

    def listen(self, event: Event) -> None:
        """Publish an event of the run. Call this in the run's loop."""
        if self.publisher is not None:
            self.publisher.listen(event)

    async def finish(self) -> None:
        """End the publication after the run has ended."""
        if self.publisher is not None:
            await self.publisher.finish()

    def run_id(self) -> str | None:
        """Return the id of the run at the server; None if people cannot watch the run there."""
        publisher = self.publisher
        return publisher.run_id if publisher is not None and publisher.watched else None

    def pause_between_updates(self) -> float:
        """Return the seconds between updates of the output while people can watch the run at the server.

        Only front ends without the extension need these updates. A shared notebook is open only in front ends with the
        extension, and each update would rebuild the card on every page. So a shared notebook gets almost no updates.
        """
        shared = self.publisher is not None and self.publisher.shared
        return _SHARED_SECONDS if shared else _WATCHED_SECONDS

    def make_panel(self, card: Card, shell: Any, use: str) -> Panel | None:
        """Return a panel if no server shows the run and a page can show widgets. `use` is auto, always or never."""
        from llm_sandbox_nb.notebook.panel import make_panel, page_shows_widgets

        if self.publisher is not None or use == "never":
            return None
        if use == "auto" and not page_shows_widgets(shell.user_ns):
            return None
        return make_panel(card, lambda: self._run.control if self._run else None)

    def stop(self) -> bool:
        """Stop the run after the person's interrupt; return False if there is no run to stop."""
        if self._run is None or self._run.control.stopped:
            return False
        try:
            self._run.control.stop(source="cell")
        except ControlError:
            return False
        return True

    def paused(self) -> None:
        """Execute the pause action, or ask the person in the cell. Do nothing if people can decide at the server."""
        if self._run is None or self.run_id() is not None:
            return
        control = self._run.control
        match self._on_pause:
            case "wait":
                return
            case "stop":
                control.stop(source="on_pause")
            case "continue":
                control.resume(source="on_pause")
            case _:
                _ask(self._run)


def _ask(run: Run) -> None:
    """Ask in the cell until the pause is over. Without an answer, the call is refused or the run is stopped."""
    control = run.control
    prompt = Prompt(control, source="cell", trajectory=run.trajectory)
    if prompt.open and prompt.text:
        print(plain(prompt.text[:_MAX_PRINTED_CHARACTERS]))
    while prompt.open:
        try:
            line = input(prompt.hint)
        except (EOFError, NotImplementedError):
            if not control.refuse():
                control.stop(source="on_pause")  # nobody answered
            return
        if shown := prompt.answer(line):
            print(plain(shown))


def _can_ask(shell: Any) -> bool:
    """Return True if a cell can ask for input. A request to a kernel states this; without a kernel, stdin decides."""
    kernel = getattr(shell, "kernel", None)
    return bool(getattr(kernel, "_allow_stdin", True)) if kernel is not None else can_answer(sys.stdin)
