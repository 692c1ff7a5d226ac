"""The one output of a cell: shown once, updated in place, never more often than it can bear."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from llm_sandbox_nb.notebook.card import Bundle, Card
from llm_sandbox_nb.notebook.card_bundle import MIME, live_json
from llm_sandbox_nb.notebook.card_files import relative_path
from llm_sandbox_nb.notebook.updated_output import UpdatedOutput, has_front_end
from llm_sandbox_nb.trajectory.events import Event

if TYPE_CHECKING:
    from llm_sandbox_nb.notebook.panel import Panel

_BYTES_A_SECOND = 1_000_000
"""What a page is asked to take while a run is under way."""
_SHARE = 0.1
"""Share of the time that rendering may take."""
_WATCHED_INTERVAL = 1.0
"""Seconds between updates while the front end can watch the run at the server: they are for others only."""


class LiveDisplay:
    """Shows a card. A shell without a front end (plain IPython) gets the final text only."""

    def __init__(
        self,
        card: Card,
        shell: Any,
        interval: float = 0.25,
        watched: Callable[[], str | None] = lambda: None,
        make_panel: Callable[[], Panel | None] = lambda: None,
    ) -> None:
        """`watched` gives the run's id while it can be watched at the server.

        `make_panel` is asked once, when the run has begun: a panel is shown once, and told of the run until it is over.
        """
        self._watched = watched
        self._make_panel = make_panel
        self._panel: Panel | None = None
        self._asked = False
        self._card = card
        self._interval = interval
        self._live = has_front_end(shell)
        self._output = UpdatedOutput()
        self._due = 0.0

    def add(self, event: Event) -> None:
        """An event of the run, which the card has taken."""
        if self._panel is not None:
            self._panel.add(event)

    def update_if_due(self) -> None:
        """Show the run as it stands, unless that was done a moment ago."""
        if self._panel is not None:
            self._panel.push()
        elif time.monotonic() >= self._due:
            self.show()

    def show_now(self) -> None:
        """Show the run as it stands, however short a time ago that was done."""
        self._due = 0.0
        self.update_if_due()

    def show(self) -> None:
        """Show the run as it stands."""
        if not self._live:
            return
        if self._panel is not None or self._begin_panel():
            return
        started = time.monotonic()
        bundle, interval = self._card.live(), self._interval
        if run_id := self._watched():
            bundle = {MIME: live_json(run_id, relative_path(self._card.folder)), **bundle}
            interval = max(interval, _WATCHED_INTERVAL)
        self._publish(bundle)
        spent = time.monotonic() - started
        pause = max(interval, spent / _SHARE, len(bundle["text/html"]) / _BYTES_A_SECOND)
        self._due = time.monotonic() + pause

    def finish(self) -> None:
        """Show the whole run; this is what the notebook keeps."""
        self._publish(self._card.final())
        if self._panel is not None:
            self._panel.close()

    def _begin_panel(self) -> bool:
        if self._asked or not self._card.trajectory.start:
            return False
        self._asked = True
        self._panel = self._make_panel()
        if self._panel is None:
            return False
        self._publish({**self._panel.bundle, **self._card.live()})
        self._panel.push()
        return True

    def _publish(self, bundle: Bundle) -> None:
        self._output.publish(bundle, self._card.metadata)
