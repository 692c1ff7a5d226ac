"""The output of a cell: shown once and updated in place while a run continues in the background."""

from __future__ import annotations

import contextvars
import html
import queue
import re
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, TypeVar

from llm_sandbox_nb.card.artifacts import relative_path
from llm_sandbox_nb.card.bundle import MIME, live_json
from llm_sandbox_nb.card.card import Bundle, Card
from llm_sandbox_nb.notebook.event_loop import CLEAN_UP_SECONDS, BackgroundTask
from llm_sandbox_nb.trajectory.events import Controlled, Event

if TYPE_CHECKING:
    from llm_sandbox_nb.notebook.panel import Panel

T = TypeVar("T")
Listener = Callable[[Event], None]

_BYTES_A_SECOND = 1_000_000
"""Maximum bytes per second sent to the page during a run."""
_RENDERING_SHARE = 0.1
"""Maximum share of the time that rendering may take."""
_TICK_SECONDS = 0.05
CLOCK_SECONDS = 1.0
"""Seconds after which the card is updated even without an event, so that its clock advances."""


class PageCell(TypedDict):
    """The cell that is being executed."""

    id: str
    """The id of the cell in the notebook; empty if the front end does not send the id."""
    request: str
    """The id of the message that asked for the execution; all output of the cell names this id."""
    client: str
    """The session id of the page that requested the execution."""
    count: int
    """The number in the cell's prompt."""


def page_cell(shell: Any) -> PageCell | None:
    """Return the cell that `shell` executes; None outside a kernel. Call this in the cell's thread."""
    get_parent = getattr(shell, "get_parent", None)
    if getattr(shell, "kernel", None) is None or get_parent is None:
        return None
    parent: dict[str, Any] = get_parent() or {}
    header, metadata = parent.get("header") or {}, parent.get("metadata") or {}
    return {
        "id": str(metadata.get("cellId") or ""),
        "request": str(header.get("msg_id") or ""),
        "client": str(header.get("session") or ""),
        # The history begins with an empty entry. `execution_count` is not used, because some versions of the shell have
        # already increased it for this cell.
        "count": len(shell.history_manager.input_hist_parsed) - 1,
    }


class UpdatedOutput:
    """An output in which each bundle replaces the previous one."""

    def __init__(self) -> None:
        self._id = uuid.uuid4().hex
        self._shown = False

    def publish(self, bundle: Mapping[str, Any], metadata: Mapping[str, Any] | None = None) -> None:
        """Show `bundle`. Pass `metadata` at every update: an update without metadata erases the earlier metadata."""
        from IPython import display

        publish: Any = display.publish_display_data
        options: dict[str, Any] = {"transient": {"display_id": self._id}, "update": self._shown}
        publish(bundle, metadata or {}, **options)
        self._shown = True

    def finish(self, bundle: Mapping[str, Any], metadata: Mapping[str, Any] | None = None) -> None:
        """Show the final bundle.

        A background run may end while another cell is executed. nbconvert reads only output that names the executing
        cell. So the final update is sent outside the context of the cell that began the run.
        """
        contextvars.Context().run(self.publish, bundle, metadata)

    def keep(self) -> None:
        """Do nothing: an update finds the output even after other text was printed."""


class TerminalOutput:
    """Terminal output in which each text replaces the previous text. Only the end of a long text is shown."""

    def __init__(self) -> None:
        self._rows = 0

    def publish(self, bundle: Mapping[str, Any], metadata: Mapping[str, Any] | None = None) -> None:
        """Show the text of `bundle`."""
        size = shutil.get_terminal_size()
        lines = str(bundle["text/plain"]).rstrip("\n").split("\n")
        # A letter that is not ASCII may take two columns.
        shown = [line[: size.columns if line.isascii() else max(1, size.columns // 2)] for line in lines]
        shown = shown[-max(1, size.lines - 1) :]
        self._write(shown)
        self._rows = len(shown)

    def finish(self, bundle: Mapping[str, Any], metadata: Mapping[str, Any] | None = None) -> None:
        """Show the final text in full."""
        self._write([str(bundle["text/plain"]).rstrip("\n")])
        self._rows = 0

    def keep(self) -> None:
        """Leave the shown text in place before other text is printed below."""
        self._rows = 0

    def _write(self, lines: list[str]) -> None:
        erased = f"\x1b[{self._rows}A\x1b[J" if self._rows else ""
        sys.stdout.write(erased + "\n".join(lines) + "\n")
        sys.stdout.flush()


Output = UpdatedOutput | TerminalOutput


def has_front_end(shell: Any) -> bool:
    """Return True if a front end can show updates while a cell runs; plain IPython only prints."""
    return getattr(shell, "kernel", None) is not None


_CONSOLE_MESSAGE = re.compile(r"_\d+_\d+")
"""Matches the end of a message id that a Python program made: process id and message number."""


def replaces_outputs(shell: Any) -> bool:
    """Return True if the front end of this cell replaces an output by an update. Call this in the cell's thread.

    A Jupyter console prints each output once and ignores updates. Its message ids have the form that Python programs
    use; a page's ids differ. nbclient uses this form too, but unlike a console, it cannot answer `input()`.
    """
    get_parent = getattr(shell, "get_parent", None)
    parent: dict[str, Any] = (get_parent() if get_parent else None) or {}
    header, content = parent.get("header") or {}, parent.get("content") or {}
    by_python = _CONSOLE_MESSAGE.search(str(header.get("msg_id") or ""))
    return not (by_python and content.get("allow_stdin") and not (parent.get("metadata") or {}).get("cellId"))


class Watch(Protocol):
    """A place outside the output where a run can be watched."""

    def run_id(self) -> str | None:
        """Return the id of the run at the server; None if people cannot watch the run there."""
        ...

    def pause_between_updates(self) -> float:
        """Return the seconds between updates of the output while people can watch the run at the server."""
        ...


class LiveDisplay:
    """A card that follows a run. A terminal shows the card as text; a Jupyter console shows only the final text."""

    def __init__(
        self,
        card: Card,
        shell: Any,
        interval: float = 0.25,
        watched: Watch | None = None,
        make_panel: Callable[[], Panel | None] = lambda: None,
        output: UpdatedOutput | None = None,
    ) -> None:
        """Prepare to show the card in place of the card in `output`, or in a new output if `output` is None.

        A terminal ignores `output`. `watched` reports if people can watch the run at the server. `make_panel` is called
        once, at the beginning of the run; its panel then follows the run to the end.
        """
        self._watched = watched
        self._make_panel = make_panel
        self._panel: Panel | None = None
        front_end = has_front_end(shell)
        terminal = not front_end and sys.stdout.isatty()
        self._live = terminal or (front_end and (output is not None or replaces_outputs(shell)))
        self.output = TerminalOutput() if terminal else output or UpdatedOutput()
        self._asked = not front_end
        """True if `make_panel` was called, or if no panel is needed."""
        self._card = card
        self._interval = interval
        self._watched_as: str | None = None
        """Id of the run that the server showed at the last update."""
        self._due = 0.0

    def add(self, event: Event) -> None:
        """Pass an event to the panel after the card has read the event."""
        if self._panel is not None:
            self._panel.add(event)

    def update_if_due(self) -> None:
        """Show the run so far, unless the last update was a moment ago."""
        if self._panel is not None:
            self._panel.push()
        elif time.monotonic() >= self._due or self._watched_as != self._run_id():
            self.show()

    def show_now(self) -> None:
        """Show the run so far at once."""
        self._due = 0.0
        self.update_if_due()

    def show(self) -> None:
        """Show the run so far. Before the run has begun, show nothing, because the run may be refused."""
        if not self._live or not self._card.trajectory.start:
            return
        if self._panel is not None or self._begin_panel():
            return
        started = time.monotonic()
        bundle, interval = self._card.live(), self._interval
        self._watched_as = self._run_id()
        if self._watched is not None and self._watched_as:
            bundle = {MIME: live_json(self._watched_as, relative_path(self._card.folder)), **bundle}
            interval = max(interval, self._watched.pause_between_updates())
        self._publish(bundle)
        elapsed = time.monotonic() - started
        pause = max(interval, elapsed / _RENDERING_SHARE, len(bundle["text/html"]) / _BYTES_A_SECOND)
        self._due = time.monotonic() + pause

    def show_loading(self, line: str) -> None:
        """Show the progress of loading the model in place of the card."""
        if line and self._live and not self._card.trajectory.start:
            self._publish({"text/plain": line, "text/html": f"<p>{html.escape(line)}</p>"})

    def keep(self) -> None:
        """Leave the shown card in place before other text is printed."""
        self.output.keep()

    def finish(self) -> None:
        """Show the whole run; the notebook saves this output."""
        self.output.finish(self._card.final(), self._card.metadata)
        if self._panel is not None:
            self._panel.close()

    def _begin_panel(self) -> bool:
        if self._asked:
            return False
        self._asked = True
        self._panel = self._make_panel()
        if self._panel is None:
            return False
        self._publish({**self._panel.bundle, **self._card.live()})
        self._panel.push()
        return True

    def _run_id(self) -> str | None:
        return self._watched.run_id() if self._watched is not None else None

    def _publish(self, bundle: Bundle) -> None:
        self.output.publish(bundle, self._card.metadata)


@dataclass(eq=False)
class RunFollower:
    """Follower that shows a run in the main thread until the run ends. The run itself is in the background loop."""

    card: Card
    display: LiveDisplay
    on_pause: Callable[[], None] = lambda: None
    """Function that is called in the main thread when the run has paused."""
    stop: Callable[[], bool] = lambda: False
    """Function that stops the run at an interrupt, in the main thread. If it returns False, the task is cancelled."""
    _events: queue.SimpleQueue[Event] = field(default_factory=queue.SimpleQueue)
    _loading: queue.SimpleQueue[str] = field(default_factory=queue.SimpleQueue)
    _paused: bool = False
    """True if the run has paused since the last call of `on_pause`."""

    def listen(self, event: Event) -> None:
        """Queue an event of the run, from any thread."""
        self._events.put(event)

    def show_loading(self, line: str) -> None:
        """Queue a line about the loading of the model, from any thread."""
        self._loading.put(line)

    def follow(self, task: BackgroundTask[T]) -> T:
        """Wait for `task` and show the events of its run.

        After an interrupt, stop the run, wait for its clean-up, show the end on the card, and raise the interrupt
        again. The wait ends at a second interrupt or after `CLEAN_UP_SECONDS`. The final card is shown in any case,
        unless the task failed before its run began.
        """
        try:
            self._show_until_done(task, None)
        except KeyboardInterrupt:
            if not self.stop():
                task.cancel()
            self._show_until_done(task, time.monotonic() + CLEAN_UP_SECONDS)
            raise
        finally:
            self._take_events()
            if self.card.trajectory.start:
                self.display.finish()
        return task.result()

    def _show_until_done(self, task: BackgroundTask[Any], deadline: float | None) -> None:
        shown = time.monotonic()
        while not task.wait(_TICK_SECONDS) and (deadline is None or time.monotonic() < deadline):
            if self._take_events() or time.monotonic() - shown > CLOCK_SECONDS:
                self.display.update_if_due()
                shown = time.monotonic()
            if deadline is None and self.card.trajectory.paused and self._paused:
                self._paused = False
                self.display.show_now()
                self.display.keep()
                self.on_pause()

    def _take_events(self) -> bool:
        line = ""
        while not self._loading.empty():
            line = self._loading.get()
        self.display.show_loading(line)
        taken = not self._events.empty()
        while not self._events.empty():
            event = self._events.get()
            self.card.add(event)
            self.display.add(event)
            self._paused = self._paused or (isinstance(event, Controlled) and event.action == "paused")
        return taken
