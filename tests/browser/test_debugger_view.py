"""The stop panel, the timeline and earlier files in a bare page: what they send; a hostile record stays text."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from card_runs import PROTECTION, start_event, step_events
from playwright.sync_api import Browser, Page, expect
from view_page import build, bundle, page_html

from llm_sandbox_nb.trajectory import events as ev

pytestmark = pytest.mark.slow
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
  const timeTravel = { rewind: take('rewind'), undo: take('undo'), fork: take('fork') };
  const { view } = lsn.show(bundle, server ? { controls, decisions, history: old, timeTravel } : {});
  view.setLive(server);
  view.flush();
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


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> str:
    script = f"const EVIL = {json.dumps(EVIL)};{_HOST}"
    return page_html(*build(tmp_path_factory.mktemp("view") / "built"), script)


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


def test_a_decision_is_sent_once_and_about_the_held_call(view: Page) -> None:
    show(view, rewound_run())
    panel = view.locator(".lsn-stop-panel")
    panel.focus()
    view.keyboard.press("F10")
    view.keyboard.press("F9")
    panel.get_by_role("button", name="Step").dispatch_event("click")
    assert done(view) == [["step", "call_5"]]


def test_an_edited_call_has_all_arguments_and_broken_json_is_said(view: Page) -> None:
    show(view, rewound_run())
    panel = view.locator(".lsn-stop-panel")
    fields = panel.locator(".lsn-arguments textarea")
    expect(fields.first).to_have_value(EVIL)
    fields.last.fill("[1, ")
    panel.get_by_role("button", name="Run edited").click()
    expect(panel.get_by_text("has to be JSON")).to_be_visible()
    fields.last.fill("[1, 2]")
    fields.first.fill("ls")
    panel.get_by_role("button", name="Run edited").click()
    assert done(view) == [["edit", "call_5", {"command": "ls", EVIL: [1, 2]}]]


def test_messages_skip_and_settings(view: Page) -> None:
    show(view, rewound_run())
    panel = view.locator(".lsn-stop-panel")
    panel.locator(".lsn-messages-box summary").click()
    expect(panel.locator(".lsn-messages li")).to_have_count(1 + 4 * 2 + 1)
    panel.get_by_text("Model and limits").click()
    panel.get_by_label("Model", exact=True).fill("openai/other")
    panel.get_by_label("Temperature").fill("0.2")
    panel.get_by_label("Most steps").fill("7")
    panel.get_by_role("button", name="Apply").click()
    panel.get_by_text("Skip this call").click()
    panel.get_by_label("What the model reads as the result").fill("No.")
    panel.get_by_role("button", name="Skip", exact=True).click()
    changed = {"model": "openai/other", "settings": {"temperature": 0.2}, "limits": {"steps": 7}}
    assert done(view) == [["change", changed], ["skip", "call_5", "No."]]


def test_an_observation_is_edited(view: Page) -> None:
    show(view, rewound_run("observation"))
    panel = view.locator(".lsn-stop-panel")
    expect(panel.get_by_label("Observation")).to_have_value(EVIL)
    panel.get_by_label("Observation").fill("as a person has it")
    panel.get_by_role("button", name="Give the edited observation").click()
    assert done(view) == [["observe", "call_5", "as a person has it"]]


def test_the_timeline_its_files_and_going_back(view: Page) -> None:
    show(view, rewound_run())
    timeline = view.get_by_role("navigation", name="Timeline")
    row = timeline.get_by_role("group", name="Steps of this branch").get_by_role("button")
    expect(row).to_have_count(6)
    expect(
        timeline.get_by_role("group", name="Branch that was left after step 4").get_by_role("button")
    ).to_have_count(1)
    expect(timeline.get_by_text("Fork of step 2")).to_be_visible()
    row.first.focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "Enter"):
        view.keyboard.press(key)
    panel = view.locator(".lsn-history")
    expect(panel.locator("h3")).to_have_text("Step 3")
    panel.get_by_role("button", name="Files as they were").click()
    panel.get_by_role("button", name="notes").click()
    expect(panel.locator(".lsn-old-file pre")).to_contain_text("c3 <img")
    panel.get_by_role("button", name="Changes").click()
    panel.get_by_label("Compare with").select_option("1")
    panel.locator("summary").first.click()
    expect(panel.locator(".lsn-diff-added")).to_have_text("+c1 to c3")
    panel.get_by_label("What goes back").select_option("files")
    expect(panel.get_by_text("2 paths change. The conversation stays as it is.")).to_be_visible()
    panel.get_by_role("button", name="Rewind to here").click()
    panel.get_by_role("button", name="Fork here").click()
    panel.get_by_role("button", name="Undo the last rewind").click()
    view.wait_for_function("() => window.done.length === 3")
    assert done(view) == [["rewind", 3, "files"], ["fork", 3], ["undo"]]


def test_without_a_server_the_timeline_is_for_reading(view: Page) -> None:
    show(view, rewound_run(), server=False)
    timeline = view.get_by_role("navigation", name="Timeline")
    timeline.get_by_role("group", name="Branch that was left after step 4").get_by_role("button").click()
    panel = view.locator(".lsn-history")
    expect(panel.locator(".lsn-code").first).to_have_text("echo 5")
    panel.get_by_role("button", name="Compare the branches").click()
    expect(panel.locator("caption")).to_have_text("They part at step 5.")
    expect(panel.locator("tbody tr")).to_have_count(2)
    expect(panel.locator(".lsn-divergence td").last).to_contain_text(EVIL[:30])
    timeline.get_by_role("button", name="Step 2", exact=False).click()
    expect(panel.get_by_text("can be read while the Jupyter server knows the run")).to_be_visible()
    expect(view.get_by_role("button", name="Rewind to here")).to_have_count(0)
    expect(view.locator(".lsn-stop-panel")).to_have_count(0)
