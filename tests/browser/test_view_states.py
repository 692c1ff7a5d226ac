"""Every state of the view in a bare page: axe finds nothing on any screen, and hostile words in it stay text."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from axe import violations
from failures import new_window
from playwright.sync_api import Browser, Page
from test_hostile import UNPROTECTED
from view_page import build
from view_states import ON_ALL, SCREENS, STATES, THEN, finished, long_run, show, show_state, state_page

CAMPAIGN = {screen: pytest.mark.campaign for screen in SCREENS if screen != "light"}
EVIL = "<img src=x onerror='window.hit=1'><script>window.hit=1</script>\u202e"
"""The canary: it sets `hit` wherever it is parsed as HTML."""
HIT = "() => window.hit === 1"


@pytest.mark.parametrize(
    ("state", "screen"),
    [
        pytest.param(state, screen, marks=CAMPAIGN.get(screen, ()))
        for screen in SCREENS
        for state in STATES
        if state in ON_ALL or screen in ("light", "dark")
    ],
)
def test_axe_finds_nothing(on_screen: Callable[[str], Page], state: str, screen: str) -> None:
    page = on_screen(screen)
    page.bring_to_front()
    show_state(page, state)
    page.evaluate("() => document.querySelectorAll('.lsn-sandbox').forEach(one => { one.open = true; })")
    assert violations(page) == []
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0, "nothing is scrolled sideways"


def test_between_side_panels_a_step_has_the_width_of_the_view_for_its_words(
    on_screen: Callable[[str], Page],
) -> None:
    """The window is wide and the view is not: its chips go to a second line, as in a narrow window."""
    page = on_screen("light")
    page.evaluate("document.getElementById('view').style.width = '560px'")
    show(page, long_run(3, (2,)))
    page.get_by_role("button", name="Close all").click()
    head, chips = ".lsn-step[data-step='2'] .lsn-step-head", ".lsn-step[data-step='2'] .lsn-chips"
    boxes = [page.locator(part).bounding_box() for part in (head, chips)]
    page.evaluate("document.getElementById('view').style.width = ''")
    (row, below) = boxes
    assert row is not None
    assert below is not None
    assert row["width"] > 500
    assert below["y"] >= row["y"] + row["height"]


def test_in_a_very_narrow_view_the_task_has_room_and_words_on_buttons_stay_whole(
    on_screen: Callable[[str], Page],
) -> None:
    page = on_screen("light")
    page.evaluate("document.getElementById('view').style.width = '320px'")
    show_state(page, "running")
    task = page.locator(".lsn-task-line").bounding_box()
    page.evaluate("document.querySelector('.lsn-acts').style.width = 'min-content'")
    lines = page.locator(".lsn-acts button", has_text="Rewind").first.evaluate(
        "button => { const text = new Range(); text.selectNodeContents(button); return text.getClientRects().length; }"
    )
    page.evaluate("document.getElementById('view').style.width = ''")
    assert task is not None
    assert task["width"] > 60
    assert lines == 1


def test_axe_finds_what_is_wrong(on_screen: Callable[[str], Page]) -> None:
    page = on_screen("light")
    show(page, finished())
    page.evaluate("document.querySelector('.lsn-search').removeAttribute('aria-label')")
    page.evaluate("document.querySelector('.lsn-search').placeholder = ''")
    page.evaluate("document.querySelector('.lsn-figures').style.color = '#bbb'")
    found = {line.partition(":")[0] for line in violations(page)}
    assert {"label", "color-contrast"} <= found


@pytest.fixture(scope="module")
def hostile(
    browser: Browser, assets: tuple[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Page]]:
    """A page whose server is hostile, with the view as it is and without its protection."""
    scripts = {"whole": assets, "bare": build(tmp_path_factory.mktemp("bare") / "built", UNPROTECTED)}
    with new_window(browser) as window:
        pages = {name: window.new_page() for name in scripts}
        for name, page in pages.items():
            page.set_content(state_page(*scripts[name], EVIL))
        yield pages


@pytest.mark.parametrize("state", STATES)
def test_hostile_words_stay_text(hostile: dict[str, Page], state: str) -> None:
    page = hostile["whole"]
    page.bring_to_front()
    show_state(page, state, EVIL)
    assert page.evaluate("() => document.body.innerText.includes('onerror')"), "the words are there"
    assert page.evaluate("() => document.querySelector('#view [onerror], #view script')") is None
    assert page.evaluate("() => window.hit ?? 0") == 0


@pytest.mark.parametrize("state", ["running", "held", "rewound", "comparing", "files", "rewinding"])
def test_without_the_protection_they_are_parsed(hostile: dict[str, Page], state: str) -> None:
    """The canary: once for the words of the record, once for what a button brings."""
    page = hostile["bare"]
    page.bring_to_front()
    make, live = STATES[state]
    page.evaluate("() => { window.hit = 0; }")
    show(page, make(), live, evil=EVIL)
    page.wait_for_function(HIT)
    if state in THEN:
        page.evaluate("() => { document.querySelectorAll('[onerror]').forEach(one => one.remove()); }")
        page.evaluate("() => { window.hit = 0; }")
        THEN[state](page)
        page.wait_for_function(HIT)
