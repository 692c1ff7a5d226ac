"""Reading a run: what is in sight at once, the timeline by pointer and keys, frames of drawings, axe on every state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from axe import violations
from card_runs import PROTECTION, start_event, step_events
from playwright.sync_api import Browser, Page, expect
from test_debugger_view import _HOST, chained
from view_page import bundle, page_html
from waiting import eventually, wait_until_in_sight

from llm_sandbox_nb.card.export import export_html
from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.trajectory import Trajectory

SCREENS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "dark"},
    "narrow": {"viewport": {"width": 800, "height": 800}, "color_scheme": "light"},
    "zoomed": {"viewport": {"width": 640, "height": 400}, "device_scale_factor": 2, "color_scheme": "dark"},
}
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000" "1f15c4890000000d49444154789c6360f8cfc0000000030001"
    "5b0c0f9c0000000049454e44ae426082"
)  # fmt: skip
LINES = "".join(f"line {number}\n" for number in range(1, 61))
FAILING: dict[str, Any] = {"exit_code": 2, "stderr": "Traceback\nKeyError: 'pop'\n"}


def long_run(count: int, failing: tuple[int, ...] = ()) -> list[ev.Event]:
    """A run of so many steps, of which some failed, to its end."""
    events: list[ev.Event] = [
        start_event("What is the mean price in the four files?"),
        ev.SandboxReady(sandbox_id="s", protection=PROTECTION, start_time=0.2, root="/testbed"),
    ]
    for number in range(1, count + 1):
        more = FAILING if number in failing else {}
        events += step_events(number, f"I look at part {number}. Then I go on.", LINES, **more)
    answer = "The mean price is **12.50**."
    return [*events, ev.RunFinished(stop_reason="submitted", answer=answer, steps=count, wall_time=90.0)]


def edit_events(number: int) -> list[ev.Event]:
    """A step that makes a file."""
    made = {"command": "create", "path": "/testbed/a.py", "file_text": "import os\nprint(os.name)\n"}
    diff = "--- /dev/null\n+++ b/testbed/a.py\n@@ -0,0 +1,2 @@\n+import os\n+print(os.name)\n"
    change = ev.FileDiff(path="/testbed/a.py", kind="added", size=24, diff=diff)
    events = step_events(number, "I write **a module**.", "/testbed/a.py was created.", changes=[change])
    for event in events:
        if isinstance(event, ev.CallProposed | ev.CallStarted):
            event.tool, event.arguments = "str_replace_editor", made
        if isinstance(event, ev.CallFinished):
            event.stdout, event.exit_code = "", None
    return events


def saved(path: str, size: int = 100) -> ev.ArtifactSaved:
    return ev.ArtifactSaved(step=2, path=path, mime="", size=size, sha256=f"{hash(path) % 10**8:064d}")


SVG = (
    b"<svg xmlns='http://www.w3.org/2000/svg' width='200' height='100'><rect width='200' height='100'/></svg>"
)
FILES = {"poster.png": PIXEL, "plan.svg": SVG, "table.csv": b"a,b\n1,2\n", "notes.txt": b"hello\n"}


def finished() -> list[ev.Event]:
    end = ev.RunFinished(
        stop_reason="submitted", answer="See `a.py` and [this](https://example.org).", steps=4
    )
    start = long_run(2, (2,))[:-1]
    files = [saved(path, len(data)) for path, data in FILES.items()]
    return [
        *start,
        *edit_events(3),
        *step_events(4),
        *files,
        ev.Noted(text="The budget is nearly spent."),
        end,
    ]


def refused() -> list[ev.Event]:
    message = "openai/x refused the key: set OPENAI_API_KEY."
    return [
        *long_run(1)[:-1],
        ev.ModelRequested(step=2),
        ev.ModelFailed(step=2, attempt=1, error="authentication", message=message),
        ev.RunFinished(stop_reason="model_error", error=message, steps=2),
    ]


def running() -> list[ev.Event]:
    """A command whose output is under way."""
    events = step_events(3, "I train the model.", LINES)
    return [*long_run(2, (1,))[:-1], *events[:-1]]


def rewound() -> list[ev.Event]:
    """Five steps, back to step 4, and a run that was forked off."""
    events = chained([*long_run(4)[:-1], ev.Checkpointed(step=4, checkpoint="c4"), *step_events(5)])
    back = next(one.id for one in events if isinstance(one, ev.Checkpointed))
    gone = [ev.RewindStarted(to=back, step=4), ev.Rewound(to=back, step=4, target="c4", safety="c5")]
    fork = ev.Forked(run_id="r2", folder="20260101-fork", step=2, parent=back)
    return chained([*events, *gone, fork])


def held(at: str = "call") -> list[ev.Event]:
    """A command that destroys files waits for a person; or it is over, and its result waits."""
    events = step_events(3, "I clean up.", LINES)
    for event in events:
        if isinstance(event, ev.CallProposed | ev.CallStarted):
            event.arguments = {"command": "rm -rf input && curl -d @answer.txt https://example.org"}
    reason = "approval" if at == "call" else "step"
    waits = ev.CallHeld(step=3, call_id="call_3", at=at, reason=reason, text="")  # type: ignore[arg-type]
    shown = events[:3] if at == "call" else events
    return [*long_run(2, (1,))[:-1], *shown, waits, ev.Controlled(action="paused")]


def ended(reason: Any) -> list[ev.Event]:
    return [*long_run(2)[:-1], ev.RunFinished(stop_reason=reason, steps=2, usage=ev.Usage(cost=0.5))]


def press(*names: str) -> Callable[[Page], None]:
    """Buttons, one after the other; what the last opens has been read."""

    def pressed(page: Page) -> None:
        for name in names:
            page.get_by_role("button", name=name).first.click()
        page.wait_for_function(
            "() => !/…$|Looking at/.test(document.querySelector('.lsn-told, .lsn-note')?.textContent)"
        )

    return pressed


def away(page: Page) -> None:
    page.evaluate("() => { view.setAway('server'); view.flush(); }")
    expect(page.locator(".lsn-badge").first).to_contain_text("does not answer")


THEN: dict[str, Callable[[Page], None]] = {
    "server away": away,
    "editing": press("Edit…"),
    "denying": press("Deny"),
    "rewinding": press("Rewind to the end of step 4"),
    "files": press("Files at step 4"),
    "comparing": press("Compare attempts"),
    "keys": lambda page: page.locator(".lsn-view").press("?"),
}
"""What a person does in the states of these names."""

STATES: dict[str, tuple[Callable[[], list[ev.Event]], bool]] = {
    "finished": (finished, False),
    "failed": (refused, False),
    "long": (lambda: long_run(30, (9, 18)), False),
    "running": (running, True),
    "thinking": (lambda: [*long_run(2)[:-1], ev.ModelRequested(step=3)], True),
    "rewound": (rewound, False),
    "cut off": (lambda: long_run(2)[:-1], False),
    "held": (held, True),
    "editing": (held, True),
    "denying": (held, True),
    "held result": (lambda: held("observation"), True),
    "paused": (lambda: [*running(), ev.Controlled(action="paused")], True),
    "ready": (rewound, True),
    "rewinding": (rewound, True),
    "files": (rewound, True),
    "comparing": (rewound, False),
    "server away": (running, True),
    "budget reached": (lambda: ended("cost"), False),
    "step limit": (lambda: ended("steps"), False),
    "interrupted": (lambda: ended("interrupted"), False),
    "keys": (finished, False),
}
ON_ALL = {"finished", "failed", "long", "running", "thinking", "rewound", "cut off", "held", "ready"}
"""The other states differ from these in a few elements only: light and dark, side by side with nothing else."""


@pytest.fixture(scope="module")
def html(assets: tuple[str, str]) -> str:
    return page_html(*assets, f"const EVIL = 'x';{_HOST}").replace(
        "<!doctype html>", "<!doctype html><html lang='en'><title>run</title>"
    )


@pytest.fixture
def open_page(browser: Browser, html: str) -> Iterator[Callable[..., Page]]:
    """Opens a bare page as a screen has it."""
    contexts = []

    def opened(**screen: Any) -> Page:
        context = browser.new_context(**screen)
        contexts.append(context)
        context.set_default_timeout(60_000)
        page = context.new_page()
        page.set_content(html)
        return page

    yield opened
    for context in contexts:
        context.close()


def show(page: Page, events: list[ev.Event], live: bool = False, capped: bool = False) -> None:
    """The run, with everything that a server offers while it is live."""
    run = bundle(chained(events), FILES)
    page.evaluate(
        "([run, live, capped]) => { begin(run, live); if (capped) { place = document.getElementById('view');"
        " const view = new lsn.TrajectoryView(new lsn.PlainHost(run), { live, capped }); view.add(...run.events);"
        " place.replaceChildren(view.node); view.flush(); } }",
        [run, live, capped],
    )
    page.wait_for_function("() => !document.querySelector('[aria-busy=true]')")


@pytest.mark.parametrize(
    ("state", "screen"),
    [
        (state, screen)
        for state in STATES
        for screen in SCREENS
        if state in ON_ALL or screen in ("light", "dark")
    ],
)
def test_axe_finds_nothing(open_page: Callable[..., Page], state: str, screen: str) -> None:
    page = open_page(**SCREENS[screen])
    make, live = STATES[state]
    show(page, make(), live)
    for summary in page.locator(".lsn-sandbox > summary").all():
        summary.click()
    if state in THEN:
        THEN[state](page)
    assert violations(page) == []
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0, "nothing is scrolled sideways"


def test_axe_finds_what_is_wrong(open_page: Callable[..., Page]) -> None:
    page = open_page(**SCREENS["light"])
    show(page, finished())
    page.evaluate("document.querySelector('.lsn-search').removeAttribute('aria-label')")
    page.evaluate("document.querySelector('.lsn-search').placeholder = ''")
    page.evaluate("document.querySelector('.lsn-figures').style.color = '#bbb'")
    found = {line.partition(":")[0] for line in violations(page)}
    assert {"label", "color-contrast"} <= found


@pytest.mark.parametrize("capped", [False, True], ids=["page", "notebook"])
def test_answer_outcome_and_first_error_are_in_sight_at_once(
    open_page: Callable[..., Page], capped: bool
) -> None:
    page = open_page(**SCREENS["light"])
    show(page, long_run(60, (9, 18)), capped=capped)
    assert page.evaluate("scrollY") == 0
    for part in (
        ".lsn-header .lsn-badge",
        ".lsn-answer",
        ".lsn-facts button.lsn-chip",
        ".lsn-bars",
        ".lsn-step",
    ):
        wait_until_in_sight(page, part)
    expect(page.locator(".lsn-header .lsn-badge")).to_have_text("Submitted")
    expect(page.locator(".lsn-answer")).to_have_text("The mean price is 12.50.")
    page.get_by_role("button", name="First error: step 9 →").click()
    step = page.locator(".lsn-step[data-step='9']")
    expect(step.locator(".lsn-stderr")).to_contain_text("KeyError: 'pop'")
    wait_until_in_sight(page, ".lsn-step[data-step='9'] .lsn-step-head")


def test_an_exported_page_of_sixty_steps_answers_at_once(browser: Browser, tmp_path: Path) -> None:
    path = export_html(Run(tmp_path, Trajectory(chained(long_run(60, (9, 18))))), tmp_path / "run.html")
    context = browser.new_context(**SCREENS["light"])
    page = context.new_page()
    page.goto(path.as_uri())
    for part in (".lsn-header .lsn-badge", ".lsn-answer", ".lsn-facts button.lsn-chip"):
        wait_until_in_sight(page, part)
    context.close()


def test_the_card_in_a_notebook_scrolls_by_itself_and_its_timeline_stays(
    open_page: Callable[..., Page],
) -> None:
    page = open_page(**SCREENS["light"])
    show(page, long_run(60), capped=True)
    view = page.locator(".lsn-view")
    box = view.bounding_box()
    assert box is not None
    assert box["height"] <= 640
    view.evaluate("node => { node.scrollTop = node.scrollHeight / 2; }")
    wait_until_in_sight(page, ".lsn-bars")
    page.wait_for_function("() => document.querySelector('.lsn-view').scrollTop > 400")


def test_five_hundred_steps_fit_in_the_width_and_keys_lead_to_each(open_page: Callable[..., Page]) -> None:
    page = open_page(**SCREENS["light"])
    show(page, long_run(500, (9,)))
    bars = page.locator(".lsn-bars rect")
    expect(bars).to_have_count(500)
    assert page.evaluate(
        """() => {
          const place = document.querySelector('.lsn-bars').getBoundingClientRect();
          const boxes = [...document.querySelectorAll('.lsn-bars rect')].map(bar => bar.getBoundingClientRect());
          return boxes.every(box => box.left >= place.left - 1 && box.right <= place.right + 1 && box.height >= 3);
        }"""
    )
    picture = page.get_by_role("listbox")
    picture.focus()
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    active = page.locator(f"#{picture.get_attribute('aria-activedescendant')}")
    expect(active).to_have_attribute("aria-label", "Step 499")
    page.keyboard.press("Enter")
    wait_until_in_sight(page, ".lsn-step[data-step='499'] .lsn-step-head")
    expect(page.locator(".lsn-step[data-step='499'] .lsn-call")).to_be_visible()
    page.locator(".lsn-bars rect[data-step='250']").click()
    wait_until_in_sight(page, ".lsn-step[data-step='250'] .lsn-step-head")
    expect(page.locator(".lsn-bars [data-kind='failed']")).to_have_attribute("data-step", "9")


def test_the_height_of_the_bars_is_that_of_what_is_chosen(open_page: Callable[..., Page]) -> None:
    events = long_run(3)
    for event, tokens, seconds in zip(
        [one for one in events if isinstance(one, ev.ModelReplied)],
        (100, 200, 400),
        (8.0, 4.0, 2.0),
        strict=True,
    ):
        event.usage, event.model_time = ev.Usage(prompt_tokens=tokens), seconds
    page = open_page(**SCREENS["light"])
    show(page, events)
    heights = "() => [...document.querySelectorAll('.lsn-bars rect')].map(bar => Number(bar.getAttribute('height')))"
    page.wait_for_function(f"() => (([one, two, three]) => one < two && two < three)(({heights})())")
    page.get_by_label("Height of the bars").select_option("time")
    page.wait_for_function(f"() => (([one, two, three]) => one > two && two > three)(({heights})())")


def test_attempts_that_were_left_have_lanes(open_page: Callable[..., Page]) -> None:
    page = open_page(**SCREENS["light"])
    show(page, rewound())
    lane = page.get_by_role("group", name="Earlier attempt after step 4")
    expect(lane.get_by_role("option")).to_have_count(1)
    picture = page.get_by_role("listbox")
    picture.focus()
    for key in ("End", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    expect(lane.get_by_role("option")).to_have_attribute("aria-selected", "true")
    expect(page.locator(".lsn-history h3")).to_contain_text("Step 5 of an earlier attempt")


def test_a_thumbnail_leads_to_the_file(open_page: Callable[..., Page]) -> None:
    page = open_page(**SCREENS["light"])
    show(page, finished())
    page.wait_for_function("() => document.querySelector('.lsn-pic img')?.naturalWidth === 1")
    expect(page.locator(".lsn-out b")).to_have_text(["poster.png", "plan.svg", "table.csv", "notes.txt"])
    page.get_by_role("button", name="table.csv").first.click()
    wait_until_in_sight(page, ".lsn-artifact:has(.lsn-table) figcaption")
    expect(page.get_by_role("figure", name="File table.csv")).to_be_focused()


def test_the_frame_of_a_drawing_has_its_size(open_page: Callable[..., Page]) -> None:
    page = open_page(**SCREENS["light"])
    show(page, finished())
    page.locator(".lsn-frame-place").scroll_into_view_if_needed()
    inner = page.frame_locator(".lsn-frame").frame_locator("iframe").locator("svg")
    expect(inner).to_be_visible()

    def fits() -> bool:
        box, drawn = page.locator(".lsn-frame-place").bounding_box(), inner.bounding_box()
        assert box is not None
        assert drawn is not None
        size = 100 <= box["height"] <= 140 and 200 <= box["width"] <= 240 and drawn["width"] == 200
        return size and drawn["y"] + drawn["height"] <= box["y"] + box["height"]

    assert eventually(page, fits), "all of it is in sight, and nothing around it"


def test_the_whole_is_read_by_the_keyboard(open_page: Callable[..., Page]) -> None:
    page = open_page(**SCREENS["light"])
    show(page, long_run(20, (5, 9)))
    page.locator(".lsn-view").focus()
    page.keyboard.press("f")
    expect(page.locator(".lsn-step-head[aria-expanded='true']")).to_have_count(0)
    page.keyboard.press("e")
    expect(page.locator(".lsn-step-head[aria-expanded='true']")).to_have_count(1)
    page.keyboard.press("/")
    page.keyboard.type("part 17.")
    page.keyboard.press("Enter")
    expect(page.locator(".lsn-current")).to_have_attribute("data-step", "17")
    expect(page.locator(".lsn-step:visible")).to_have_count(1)
    expect(page.locator(".lsn-search")).to_be_focused()
