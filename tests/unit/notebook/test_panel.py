"""The panel in the cell: what is told to the page, when there is one, and what the page may say."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from card_runs import run_events, saved_file, start_event, step_events

from llm_sandbox_nb.agent.errors import ControlError
from llm_sandbox_nb.card.bundle import MIME, Caps
from llm_sandbox_nb.card.card import Card
from llm_sandbox_nb.notebook import panel as panel_module
from llm_sandbox_nb.notebook.display import LiveDisplay
from llm_sandbox_nb.notebook.panel import WIDGET_MIME, Panel, page_shows_widgets
from llm_sandbox_nb.notebook.watchers import Watchers
from llm_sandbox_nb.trajectory import events as ev


class Widget:
    """Notes what the page would get."""

    model_id = "m"

    def __init__(self) -> None:
        self.parts: list[dict[str, Any]] = []
        self.sent: list[dict[str, Any]] = []
        self.closed = False
        self.heard: Any = None

    def on_msg(self, heard: Any) -> None:
        self.heard = heard

    def add_part(self, number: int, text: str) -> None:
        assert number == len(self.parts)
        self.parts.append(json.loads(text))

    def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)

    def close(self) -> None:
        self.closed = True

    def say(self, **content: Any) -> dict[str, Any]:
        self.heard(self, content, [])
        return self.sent[-1]


class Control:
    def __init__(self) -> None:
        self.done: list[tuple[str, ...]] = []

    def stop(self, source: str) -> None:
        self.done.append(("stop", source))

    def say(self, text: str, source: str) -> None:
        if not text.strip():
            raise ControlError("The message is empty. Type a message for the model.")
        self.done.append(("say", text, source))


def panel_of(
    folder: Path | None = None, control: Any = None, caps: Caps | None = None
) -> tuple[Panel, Card, Widget]:
    card, widget = Card(caps, folder), Widget()
    return Panel(card, widget, lambda: control), card, widget


def tell(panel: Panel, card: Card, *events: ev.Event) -> None:
    for event in events:
        card.add(event)
        panel.add(event)


def test_each_event_is_told_once() -> None:
    panel, card, widget = panel_of()
    events = run_events(30)
    for event in events:
        tell(panel, card, event)
        panel.push()
    told = [event["id"] for part in widget.parts for event in part["events"]]
    assert told == [event.id for event in events if event.kind not in ev.TRANSIENT]
    sizes = [len(json.dumps(part)) for part in widget.parts]
    assert max(sizes[-20:]) < 2 * max(sizes[:20]), "a part holds what is new and nothing else"


def test_text_under_way_is_told_as_it_grows_and_never_kept() -> None:
    panel, card, widget = panel_of()
    for piece in ("a", "b", "c"):
        tell(panel, card, ev.ModelDelta(step=1, text=piece))
        panel.push()
    assert [event["text"] for message in widget.sent for event in message["events"]] == ["a", "b", "c"]
    tell(panel, card, ev.ModelReplied(step=1, message={"role": "assistant", "content": "abc"}))
    panel.push()
    assert widget.sent[-1] == {"type": "live", "events": []}, "a sign of life"
    assert [event["kind"] for part in widget.parts for event in part["events"]] == ["model.replied"]


def test_files_are_told_within_their_bound(tmp_path: Path) -> None:
    panel, card, widget = panel_of(tmp_path, caps=Caps(live_files=4_000))
    for number in range(6):
        tell(panel, card, saved_file(tmp_path, f"{number}.bin", b"\xff" * 900))
    panel.push()
    files = widget.parts[0]["artifacts"]
    held = [name for name, entry in files.items() if "data" in entry]
    assert held == ["0.bin", "1.bin", "2.bin", "3.bin"]
    assert base64.b64decode(files["0.bin"]["data"]) == b"\xff" * 900
    assert "omitted" in files["5.bin"]


def test_a_decision_of_the_page_is_carried_out_and_answered() -> None:
    control = Control()
    _, _, widget = panel_of(control=control)
    assert widget.say(type="hello") == {"type": "ready"}
    assert widget.say(type="control", id=4, action="stop") == {"type": "answer", "id": 4, "error": None}
    assert widget.say(type="control", id=5, action="say", text="hi")["error"] is None
    assert control.done == [("stop", "cell"), ("say", "hi", "cell")]
    assert "'say' needs 'text'" in widget.say(type="control", id=6, action="say")["error"]
    assert "message is empty" in widget.say(type="control", id=6, action="say", text=" ")["error"]
    assert "'action' must be one of" in widget.say(type="control", id=7, action="__class__")["error"]
    assert "not fork" in widget.say(type="control", id=8, action="fork", step=1)["error"]
    before = len(widget.sent)
    for nonsense in (7, None, "stop", {"type": 7}, {}):
        widget.heard(widget, nonsense, [])
    assert len(widget.sent) == before
    _, _, early = panel_of()
    early.heard(early, {"type": "hello"}, [])
    assert not early.sent, "there is no run to control yet"


def test_only_a_page_gets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    server = {"JPY_PARENT_PID": "77"}
    assert not page_shows_widgets({}, {})
    assert not page_shows_widgets({}, server), "its parent is a program that runs notebooks"
    (tmp_path / "jpserver-77.json").write_text(json.dumps({"url": "http://localhost:8888/"}))
    assert page_shows_widgets({}, server)
    assert page_shows_widgets({"__vsc_ipynb_file__": "/x.ipynb"}, {})


@pytest.mark.parametrize(("use", "server", "made"), [
    ("auto", False, True), ("always", False, True), ("never", False, False), ("always", True, False),
])  # fmt: skip
def test_it_is_used_where_no_server_tells_of_the_run(
    monkeypatch: pytest.MonkeyPatch, use: str, server: bool, made: bool
) -> None:
    monkeypatch.setattr(panel_module, "make_panel", lambda card, control: "a panel")
    watching = Watchers()
    watching.publisher = SimpleNamespace() if server else None  # type: ignore[assignment]
    shell = SimpleNamespace(user_ns={"__vsc_ipynb_file__": "/x.ipynb"})
    assert watching.make_panel(Card(), shell, use) == ("a panel" if made else None)


def test_it_is_shown_once_and_the_card_takes_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    panel, card, widget = panel_of()
    display = LiveDisplay(card, SimpleNamespace(kernel=object()), make_panel=lambda: panel)
    shown: list[dict[str, Any]] = []
    for name in ("publish", "finish"):
        monkeypatch.setattr(display.output, name, lambda bundle, metadata: shown.append(bundle))
    display.update_if_due()
    assert shown == [], "no run yet"
    for event in [start_event(), *step_events(1)]:
        card.add(event)
        display.add(event)
        display.show_now()
    display.finish()
    assert [WIDGET_MIME in bundle for bundle in shown] == [True, False]
    assert MIME in shown[-1]
    assert widget.closed
    assert widget.sent[-1] == {"type": "over"}
    told = [event["kind"] for part in widget.parts for event in part["events"]]
    assert told[:2] == ["run.started", "model.requested"]


def test_the_real_widget_sends_a_part_once_and_keeps_it_for_who_comes_late() -> None:
    made = panel_module.make_panel(Card(), lambda: None)
    if made is None and os.environ.get("LLM_SANDBOX_REQUIRE_ENGINES") != "1":
        pytest.skip("the widget's script is not built: `make labextension` does it")
    assert made is not None
    widget = made._widget
    widget.add_part(0, "first")
    widget.add_part(1, "second")
    state = widget.get_state()
    assert (state["parts"], state["part_0"], state["part_1"]) == (2, "first", "second")
    assert "render" in state["_esm"]
    assert ".lsn-view" in state["_css"]
    assert "body" not in state["_css"].split(".lsn-view")[0], "the page's own style is left alone"
    assert "part_0" not in widget.get_state("_css")
    widget.close()


def test_without_its_script_the_static_card_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(panel_module, "files", lambda package: tmp_path)
    assert panel_module.make_panel(Card(), lambda: None) is None
