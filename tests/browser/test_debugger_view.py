"""The stop panel, the timeline and earlier files in a bare page: what they send; a hostile record stays text."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from card_runs import PROTECTION, start_event, step_events
from playwright.sync_api import Browser, Page
from test_hostile import UNPROTECTED
from view_page import build, bundle, page_html

from llm_sandbox_nb.trajectory import events as ev

EVIL = "<img src=x onerror='window.hit=1'><script>window.hit=1</script>\u202e"
"""The canary: it sets `hit` wherever it is parsed as HTML."""
_HOST = """
window.done = [];
const take = name => async (...given) => { window.done.push([name, ...given]); return EVIL; };
const old = {
  files: async (checkpoint, path) => ({ path: path || '/testbed', base: false, total: 9, files: [
    { path: `/testbed/${EVIL}`, kind: 'directory', size: 0 },
    { path: '/testbed/l', kind: 'link', size: 1, target: EVIL },
    { path: `/testbed/a${EVIL}`, kind: 'file', size: 5 }, { path: '/testbed/notes', kind: 'file', size: 5 } ] }),
  read: async (checkpoint, path) => new TextEncoder().encode(`${checkpoint} ${EVIL}`),
  changes: async (from, to) => ({ total: 2, incomplete: EVIL, changes: [
    { path: `/${EVIL}`, kind: 'modified', size: 1 }, { path: '/x', kind: EVIL, size: 1 } ] }),
  diff: async (from, to, path) => ({ diff: `--- a\\n+++ b\\n-${EVIL}\\n+${from} to ${to}\\n`, note: EVIL })
};
function begin(bundle, server) {
  const controls = { stop: take('stop'), pause: take('pause'), resume: take('resume'), say: take('say') };
  const decisions = Object.fromEntries(
    ['continue', 'step', 'edit', 'skip', 'observe', 'change'].map(name => [name, take(name)]));
  const timeTravel = { rewind: take('rewind'), undo: take('undo'), fork: take('fork'),
    resume: take('resume') };
  const { view } = lsn.show(bundle, server ? { controls, decisions, history: old, timeTravel } : {});
  view.setLive(server);
  view.flush();
  window.view = view;
}
"""


def chained(events: list[ev.Event]) -> list[ev.Event]:
    """Events that follow each other, as a recorder makes them."""
    for before, event in itertools.pairwise(events):
        event.parent = event.parent or before.id
    return events


def rewound_run(at: str = "call") -> list[ev.Event]:
    """Five steps, back to step 4, and a new call that is held; every text is hostile."""
    events: list[ev.Event] = [
        start_event(EVIL),
        ev.SandboxReady(sandbox_id="s", protection=PROTECTION, start_time=0.2),
        ev.MessageAdded(message={"role": EVIL, "content": EVIL}),
        ev.Checkpointed(step=0, checkpoint="c0"),
    ]
    for number in range(1, 6):
        events += [*step_events(number, EVIL, EVIL), ev.Checkpointed(step=number, checkpoint=f"c{number}")]
    back = next(one.id for one in events if isinstance(one, ev.Checkpointed) and one.step == 4)
    events += [ev.RewindStarted(to=back, step=4), ev.Rewound(to=back, step=4, target="c4", safety="c5")]
    fork = ev.Forked(run_id=EVIL, folder=EVIL, step=2, parent=back)
    again = step_events(5, EVIL, EVIL)
    proposed = next(one for one in again if isinstance(one, ev.CallProposed))
    proposed.tool, proposed.arguments = EVIL, {"command": EVIL, EVIL: [1]}
    shown = again[:3] if at == "call" else again
    held = ev.CallHeld(step=5, call_id="call_5", at=at, reason="breakpoint", text=EVIL)  # type: ignore[arg-type]
    return chained([*events, fork, *shown, held, ev.Controlled(action="paused")])


def ready_run() -> list[ev.Event]:
    """The same, paused where the rewind has led."""
    events = rewound_run()
    place, back = next((at, event) for at, event in enumerate(events) if isinstance(event, ev.Rewound))
    return [*events[: place + 1], ev.Controlled(action="paused", parent=back.to)]


def dangerous_run() -> list[ev.Event]:
    """A command that deletes files waits for a person."""
    events = rewound_run()
    proposed = [event for event in events if isinstance(event, ev.CallProposed)][-1]
    proposed.tool, proposed.arguments = "execute_bash", {"command": f"rm -rf {EVIL}"}
    return events


def press(name: str) -> Callable[[Page], None]:
    return lambda page: page.get_by_role("button", name=name).first.click()


PLACES: dict[str, tuple[Callable[[], list[ev.Event]], Callable[[Page], None], str]] = {
    "after a rewind": (
        ready_run,
        press("Say and continue"),
        ".lsn-ready-form textarea, .lsn-ready-form input",
    ),
    "a marked command": (
        dangerous_run,
        lambda page: None,
        ".lsn-stop-panel mark, .lsn-held-call :is(b, mark, strong)",
    ),
    "compare": (ready_run, press("Compare attempts"), ".lsn-compare-view"),
    "preview of a rewind": (ready_run, press("Rewind to the end of step 3"), ".lsn-history .lsn-primary"),
}
"""A record, what is pressed, and what shows that the place is drawn."""


@pytest.fixture(scope="module")
def html(assets: tuple[str, str]) -> str:
    return page_html(*assets, f"const EVIL = {json.dumps(EVIL)};{_HOST}")


@pytest.fixture
def view(browser: Browser, html: str) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1000, "height": 1200})
    context.set_default_timeout(60_000)
    page = context.new_page()
    page.set_content(html)
    yield page
    assert page.evaluate("() => window.hit ?? 0") == 0, "something was parsed as HTML"
    context.close()


def show(page: Page, events: list[ev.Event], server: bool = True) -> None:
    page.evaluate("([run, server]) => begin(run, server)", [bundle(events, {}), server])


def done(page: Page) -> list[Any]:
    found: list[Any] = page.evaluate("() => window.done")
    return found


def test_the_canary_fires_when_it_is_parsed(browser: Browser) -> None:
    page = browser.new_page()
    page.set_content(
        f"<div id=a></div><script>a.innerHTML = {json.dumps(EVIL).replace('/', chr(92) + '/')}</script>"
    )
    page.wait_for_function("() => window.hit === 1")
    page.close()


@pytest.fixture(scope="module")
def unprotected(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page with its protection taken off."""
    script, style = build(tmp_path_factory.mktemp("bare") / "built", UNPROTECTED)
    return page_html(script, style, f"const EVIL = {json.dumps(EVIL)};{_HOST}")


@pytest.mark.parametrize("place", PLACES)
def test_hostile_words_stay_text_after_a_rewind_and_in_comparisons(view: Page, place: str) -> None:
    make, act, drawn = PLACES[place]
    show(view, make())
    act(view)
    view.locator(drawn).first.wait_for(state="attached")
    assert view.evaluate("() => document.body.innerText.includes('onerror')"), "the words are there"


@pytest.mark.parametrize("place", ["a marked command", "compare"])
def test_without_the_protection_they_are_parsed(browser: Browser, unprotected: str, place: str) -> None:
    make, act, _ = PLACES[place]
    page = browser.new_page()
    page.set_content(unprotected)
    show(page, make())
    page.wait_for_function("() => window.hit === 1")
    page.evaluate("() => { window.hit = 0; }")
    if place == "a marked command":
        show(page, make())
    else:
        act(page)
    page.wait_for_function("() => window.hit === 1")
    page.close()


def test_a_decision_is_sent_once_and_about_the_held_call(view: Page) -> None:
    show(view, rewound_run())
    panel = view.locator(".lsn-stop-panel")
    panel.focus()
    view.keyboard.press("F10")
    view.keyboard.press("F9")
    panel.get_by_role("button", name="Step").dispatch_event("click")
    assert done(view) == [["step", "call_5"]]
