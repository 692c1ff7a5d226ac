"""Reading a run where its layout counts: what is in sight at once, bars as wide as the view, frames of drawings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from card_runs import card_of, start_event, step_events
from playwright.sync_api import Page, expect
from view_states import SCREENS, chained, finished, long_run, show
from waiting import eventually, wait_until_in_sight

from llm_sandbox_nb.card.bundle import Caps
from llm_sandbox_nb.card.export import export_html
from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.trajectory import Trajectory


@pytest.fixture
def open_page(on_screen: Callable[[str], Page]) -> Callable[..., Page]:
    """The page of a screen, at its top; `show` puts a run in the place of the one before."""

    def opened(screen: str = "light") -> Page:
        page = on_screen(screen)
        page.bring_to_front()
        page.set_viewport_size(SCREENS[screen]["viewport"])
        page.mouse.move(0, 0)
        page.evaluate("() => { document.getElementById('view').replaceChildren(); scrollTo(0, 0); }")
        return page

    return opened


@pytest.mark.parametrize("capped", [False, True], ids=["page", "notebook"])
def test_answer_outcome_and_first_error_are_in_sight_at_once(
    open_page: Callable[..., Page], capped: bool
) -> None:
    page = open_page()
    show(page, long_run(60, (9, 18)), capped=capped)
    assert page.evaluate("scrollY") == 0
    for part in (
        ".lsn-header .lsn-badge",
        ".lsn-answer",
        ".lsn-facts button.lsn-chip",
        ".lsn-bars",
        ".lsn-calm",
    ):
        wait_until_in_sight(page, part)
    expect(page.locator(".lsn-header .lsn-badge")).to_have_text("Submitted, not checked")
    expect(page.locator(".lsn-answer")).to_have_text("The mean price is 12.50.")
    page.get_by_role("button", name="First error: step 9 →").click()
    step = page.locator(".lsn-step[data-step='9']")
    expect(step.locator(".lsn-stderr")).to_contain_text("KeyError: 'pop'")
    wait_until_in_sight(page, ".lsn-step[data-step='9'] .lsn-step-head")


@pytest.mark.parametrize("host", ["page", "export", "plain card"])
def test_sixty_steps_with_one_fault_fit_one_screen_and_the_fault_is_seen(
    open_page: Callable[..., Page], page: Page, host: str, tmp_path: Path
) -> None:
    events = chained(long_run(60, (31,)))
    if host == "page":
        page = open_page()
    page.set_viewport_size({"width": 1100, "height": 900})
    if host == "page":
        show(page, long_run(60, (31,)))
    elif host == "export":
        path = export_html(Run(tmp_path, Trajectory(events)), tmp_path / "run.html")
        page.goto(path.as_uri())
    else:
        page.set_content(card_of(events).final()["text/html"])
    fault = page.get_by_text("KeyError: 'pop'").last
    expect(fault).to_be_in_viewport()
    expect(page.get_by_text("30 reads, nothing changed")).to_be_in_viewport()
    card = page.locator(".lsn-view, .lsn").first
    assert card.evaluate("node => node.getBoundingClientRect().bottom + scrollY") <= 900


def test_an_exported_page_of_sixty_steps_answers_at_once(page: Page, tmp_path: Path) -> None:
    path = export_html(Run(tmp_path, Trajectory(chained(long_run(60, (9, 18))))), tmp_path / "run.html")
    page.set_viewport_size(SCREENS["light"]["viewport"])
    page.goto(path.as_uri())
    for part in (".lsn-header .lsn-badge", ".lsn-answer", ".lsn-facts button.lsn-chip"):
        wait_until_in_sight(page, part)


def test_the_plain_card_of_sixty_steps_answers_at_once(page: Page) -> None:
    card = card_of(chained(long_run(60, (9, 18))), Caps(), Path())
    page.set_viewport_size(SCREENS["light"]["viewport"])
    page.set_content(card.final()["text/html"])
    for part in (".lsn-answer", ".lsn-facts", ".lsn-row"):
        wait_until_in_sight(page, part)
    expect(page.locator(".lsn-answer")).to_contain_text("The mean price is")
    expect(page.locator(".lsn-facts")).to_contain_text("First error: step 9")


def test_the_card_in_a_notebook_scrolls_by_itself_and_its_timeline_stays(
    open_page: Callable[..., Page],
) -> None:
    page = open_page()
    show(page, long_run(60), capped=True)
    page.get_by_role("button", name="Open all").click()
    view = page.locator(".lsn-view")
    box = view.bounding_box()
    assert box is not None
    assert box["height"] <= 640
    view.evaluate("node => { node.scrollTop = node.scrollHeight / 2; }")
    wait_until_in_sight(page, ".lsn-bars")
    page.wait_for_function("() => document.querySelector('.lsn-view').scrollTop > 400")


def test_five_hundred_steps_fit_in_the_width_and_keys_lead_to_each(open_page: Callable[..., Page]) -> None:
    page = open_page()
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


def test_a_thumbnail_leads_to_the_file(open_page: Callable[..., Page]) -> None:
    page = open_page()
    show(page, finished())
    page.wait_for_function("() => document.querySelector('.lsn-pic img')?.naturalWidth === 1")
    expect(page.locator(".lsn-out b")).to_have_text(["poster.png", "plan.svg", "table.csv", "notes.txt"])
    widths = page.locator(".lsn-facts .lsn-chip").evaluate_all(
        "all => all.map(one => [one.scrollWidth, one.clientWidth])"
    )
    assert widths
    assert all(needed <= there for needed, there in widths), "no chip has a scroll bar"
    page.get_by_role("button", name="table.csv").first.click()
    wait_until_in_sight(page, ".lsn-artifact:has(.lsn-table) figcaption")
    expect(page.get_by_role("figure", name="File table.csv")).to_be_focused()


def test_the_frame_of_a_drawing_has_its_size(open_page: Callable[..., Page]) -> None:
    page = open_page()
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


@pytest.mark.parametrize("screen", ["light", "narrow"])
def test_actions_that_are_hidden_take_no_room_from_the_line(
    open_page: Callable[..., Page], screen: str
) -> None:
    page = open_page(screen)
    assert page.evaluate("matchMedia('(hover: hover)').matches")
    show(page, long_run(8, (5,)), live=True)
    line = page.locator(".lsn-step[data-step='2']")
    head, figures = line.locator(".lsn-step-head").bounding_box(), line.locator(".lsn-fig").bounding_box()
    assert head is not None
    assert figures is not None
    assert head["x"] + head["width"] >= figures["x"] - 20, "the text goes on to the figures"
    line.hover()
    line.get_by_role("button", name="Files at step 2").click()
    expect(page.locator(".lsn-history h3")).to_contain_text("Step 2")


@pytest.mark.parametrize("colour", ["", "\x1b[31m"])
def test_the_last_line_of_a_long_error_is_in_sight(open_page: Callable[..., Page], colour: str) -> None:
    page = open_page()
    errors = "".join(f"{colour}error {number} {'x' * 200}\n" for number in range(1, 101))
    failed = step_events(1, output="", stderr=errors + "KeyError: 'pop'\n", exit_code=1)
    show(page, [start_event(), *failed])
    box = page.locator(".lsn-stderr .lsn-output")
    expect(box).to_contain_text("KeyError: 'pop'")
    assert box.evaluate("box => box.scrollHeight > box.clientHeight + 100"), "not all of it fits"
    end = """box => {
      const range = document.createRange();
      const texts = document.createTreeWalker(box, NodeFilter.SHOW_TEXT);
      let last; while (texts.nextNode()) if (texts.currentNode.data.trim()) last = texts.currentNode;
      range.setStart(last, last.data.indexOf('KeyError')); range.setEnd(last, last.data.length);
      const [line, around] = [range.getBoundingClientRect(), box.getBoundingClientRect()];
      return line.top >= around.top && line.bottom <= around.bottom + 1;
    }"""
    assert box.evaluate(end)


@pytest.mark.parametrize(
    ("how", "mark", "note"),
    [
        (
            "mask",
            "context shortened",
            "old results are shortened for the model: 2,048 of 4,096 tokens are sent.",
        ),
        (
            "summary",
            "context summarized",
            "a summary in place of older messages: 2,048 of 4,096 tokens are sent.",
        ),
        ("repeats", "equal replies left out", "the equal replies are not sent to it."),
    ],
)
def test_a_step_says_that_the_model_no_longer_sees_all(
    open_page: Callable[..., Page], how: Any, mark: str, note: str
) -> None:
    reduced = ev.ContextReduced(step=7, how=how, tokens_before=4096, tokens_after=2048)
    events = [start_event()]
    for number in range(1, 16):
        events += [*([reduced] if number == 7 else []), *step_events(number)]
    page = open_page()
    show(page, [*events, ev.RunFinished(stop_reason="answered", answer="3", steps=15)])
    step = page.locator(".lsn-step[data-step='7']")
    wait_until_in_sight(page, ".lsn-step[data-step='7'] .lsn-step-head")
    expect(step.locator(".lsn-chip").first).to_have_text(mark)
    step.locator(".lsn-step-head").click()
    expect(step.locator(".lsn-note")).to_contain_text(note)
    expect(page.locator(".lsn-note:visible")).to_have_count(1)
