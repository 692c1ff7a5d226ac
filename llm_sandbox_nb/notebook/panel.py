"""The widget that shows a live run in its cell if no server shows the run, as in VS Code and Colab.

While a cell runs, every kernel can send to the page, but not every kernel can receive. So the kernel writes all data
into the widget's state, where a page finds the data at any time without asking the kernel. Messages from the page
arrive during the run only with ipykernel 7, and only if the page sends them on a subshell; the buttons appear after
such a message.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_sandbox_nb.card.artifacts import load_artifacts
from llm_sandbox_nb.card.bundle import artifact_json
from llm_sandbox_nb.card.card import Card
from llm_sandbox_nb.notebook.server_client.address import started_by_server
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.decisions import (
    PauseDecision,
    ResumeDecision,
    SayDecision,
    StopDecision,
    parse_decision,
)
from llm_sandbox_nb.trajectory.live_tail import LiveTail

if TYPE_CHECKING:
    from llm_sandbox_nb.agent.control.run_control import RunControl

WIDGET_MIME = "application/vnd.jupyter.widget-view+json"
_PART_CHARACTERS = 512 * 1024
"""Approximate size, in characters, of the events in one `part_N` of the widget's state."""


def page_shows_widgets(namespace: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> bool:
    """Return True if a page that shows widgets uses this kernel: VS Code, Colab, or a page of a Jupyter server.

    Return False for nbclient and papermill, which would store the widget's whole state in the notebook.
    """
    if "__vsc_ipynb_file__" in namespace or "google.colab" in sys.modules:
        return True
    return started_by_server(environment)


class Panel:
    """A run shown in a widget. The cell's thread calls all methods but `_heard`, which receives the page's messages."""

    def __init__(self, card: Card, widget: Any, control: Callable[[], RunControl | None]) -> None:
        """Create the panel. `control` returns the run's controls, once the run has begun."""
        self._card = card
        self._widget = widget
        self._control = control
        self._written = 0
        self._parts = 0
        self._room = card.caps.live_files
        self._tail = LiveTail()
        self._seen: dict[int, int] = {}
        widget.on_msg(self._heard)

    @property
    def bundle(self) -> dict[str, Any]:
        """The output that shows the widget."""
        view = {"version_major": 2, "version_minor": 0, "model_id": self._widget.model_id}
        return {WIDGET_MIME: view}

    def add(self, event: ev.Event) -> None:
        self._tail.follow(event)

    def push(self) -> None:
        """Send the new events and the newest text of unfinished replies and commands to the page."""
        while part := self._next_part():
            self._widget.add_part(self._parts, part)
            self._parts += 1
        self._widget.send({"type": "live", "events": list(self._tail.since(self._seen))})

    def close(self) -> None:
        """Close the widget after the card has replaced it at the end of the run."""
        self.push()
        self._widget.send({"type": "over"})
        self._widget.close()

    def _next_part(self) -> str:
        lines: list[str] = []
        shown: dict[str, Any] = {}
        size = 0
        events = self._card.trajectory.events
        while self._written < len(events) and size < _PART_CHARACTERS:
            event = events[self._written]
            self._written += 1
            lines.append(ev.dump_event(event))
            size += len(lines[-1])
            if isinstance(event, ev.ArtifactSaved):
                shown[event.path] = self._file(event)
        return f'{{"events":[{",".join(lines)}],"artifacts":{json.dumps(shown)}}}' if lines else ""

    def _file(self, saved: ev.ArtifactSaved) -> dict[str, Any]:
        folder, each = self._card.folder, self._card.caps.live_files // 4
        (artifact,) = load_artifacts([saved], folder, each=each, together=self._room)
        self._room -= len(artifact.data or b"")
        return artifact_json(artifact)

    def _heard(self, _: Any, content: Any, __: Any) -> None:
        """Handle a message from the page, in the thread that delivers messages."""
        if not isinstance(content, dict) or (control := self._control()) is None:
            return
        if content.get("type") == "hello":
            self._widget.send({"type": "ready"})
        elif content.get("type") == "control":
            self._widget.send({"type": "answer", "id": content.get("id"), "error": _decide(control, content)})


def _decide(control: RunControl, asked: dict[str, Any]) -> str | None:
    """Execute a decision of the page. Return an error message, or None if there was no error."""
    from llm_sandbox_nb.agent.control.frontends import decide
    from llm_sandbox_nb.agent.errors import ControlError

    body = {name: value for name, value in asked.items() if name not in ("type", "id")}
    try:
        decision = parse_decision(body)
        if not isinstance(decision, PauseDecision | ResumeDecision | StopDecision | SayDecision):
            return f"This panel supports pause, resume, stop and say, not {decision.action}."
        decide(control, decision, source="cell")
    except (ValueError, ControlError) as error:
        return str(error)
    return None


def make_panel(card: Card, control: Callable[[], RunControl | None]) -> Panel | None:
    """Return the panel. Return None if a package for widgets is missing; the static card then shows the run."""
    folder = Path(str(files("llm_sandbox_nb.notebook") / "page"))
    try:
        script, style = ((folder / name).read_text("utf-8") for name in ("widget.js", "widget.css"))
        widget = _widget_class()(_esm=script, _css=style)
        # From version 7.4, ipykernel handles a page's messages in the shell that last sent to the page. Here this is
        # the shell of the cell, which is busy. None lets the subshell that the page chose handle them, as before 7.4.
        widget.comm._reply_subshell_for = None
    except (ImportError, OSError):
        return None
    return Panel(card, widget, control)


def _widget_class() -> Any:
    """Return the class of the widget. It is defined on first use, because importing anywidget is slow."""
    import anywidget
    from traitlets import Unicode

    class RunWidget(anywidget.AnyWidget):
        """A widget whose state holds the run in numbered parts, each sent once: `parts`, `part_0`, `part_1`..."""

        _esm = Unicode().tag(sync=True)
        _css = Unicode().tag(sync=True)

        def __init__(self, **traits: Any) -> None:
            self._run_parts: dict[str, Any] = {"parts": 0}
            super().__init__(**traits)

        def get_state(self, key: Any = None, drop_defaults: bool = False) -> dict[str, Any]:
            """Return the whole state, for a page that asks for it."""
            state: dict[str, Any] = super().get_state(key=key, drop_defaults=drop_defaults)
            return state | self._run_parts if key is None else state

        def add_part(self, number: int, text: str) -> None:
            added = {f"part_{number}": text, "parts": number + 1}
            self._run_parts |= added
            if self.comm is not None:
                self.comm.send(data={"method": "update", "state": added, "buffer_paths": []})

    return RunWidget
