"""Why did the run fail? A mechanical person finds the faulty step of planted faults by docs/how-to/why-did-it-fail.md.

The person knows which output is wrong and follows the rules: no knowledge of the run, of the fault or of the true step.
One click or one key is one action. A step counts as reached when it is the current one, open in the card.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from card_runs import start_event, step_events
from chromium import PlaywrightLoop
from planted_faults import Fault, faults, play
from playwright.sync_api import Browser, Locator, Page, expect
from view_page import bundle, page_html

from llm_sandbox_nb.trajectory import events as ev

MOST_ACTIONS = 4
GIVEN_UP = 12
BEFORE = "before the last rules"
SHOWN = ".lsn-step:not([hidden])"


class Person:
    """Follows the rules; `search` yields the step that is open after each action."""

    def __init__(self, page: Page, wrong: str) -> None:
        self.page, self.wrong = page, wrong
        self.visited: list[int] = []

    def search(self) -> Iterator[int]:
        """Rules 1 to 4, in their order."""
        histories = self.page.locator(f".lsn-facts .lsn-file[data-path='{self.wrong}']")
        if not histories.count() and not self._changed_files_have_it():
            yield from self._rule_1()
        if (warning := self._button(re.compile("^First warning"))) is not None:
            yield self._click(warning)
        if not histories.count():
            yield self._click(self._button(re.compile(r"files? changed$")) or self.page.locator("body"))
            histories = self.page.locator(f".lsn-file-list .lsn-file[data-path='{self.wrong}']")
        if histories.count():
            yield self._click(histories.first.get_by_role("button").last)
            yield from self._rule_4()

    def _rule_1(self) -> Iterator[int]:
        error = self._button(re.compile("^First error"))
        if error is not None:
            yield self._click(error)
            while True:
                self.page.keyboard.press("e")
                yield self._current()

    def _rule_4(self) -> Iterator[int]:
        """The entries of *Made with*, as they are shown; then those of the steps before that were not clicked."""
        known: list[tuple[int, int, Locator]] = []
        while True:
            fresh = [entry for entry in self._made_with() if entry[1] not in self.visited]
            rest = sorted((e for e in known if e[1] not in self.visited), key=lambda e: (e[0], -e[1]))
            known += fresh
            if not (todo := fresh or rest):
                return
            yield self._click(todo[0][2])

    def _made_with(self) -> list[tuple[int, int, Locator]]:
        """What the open step was made with: its place in the order of rule 4, the step it names, the link."""
        links = self.page.locator(".lsn-step.lsn-current .lsn-made-with button")
        found = []
        for index in range(links.count()):
            link = links.nth(index)
            number = int(re.findall(r"\d+(?=\))", link.inner_text())[0])
            step = self.page.locator(f".lsn-step[data-step='{self._current()}']")
            place = step.locator(".lsn-made-with button").nth(index)
            found.append((0 if link.get_attribute("data-mark") else 1 + index, number, place))
        return found

    def _button(self, name: re.Pattern[str]) -> Locator | None:
        found = self.page.locator(".lsn-facts").get_by_role("button", name=name)
        return found.first if found.count() and found.first.is_visible() else None

    def _changed_files_have_it(self) -> bool:
        return self._button(re.compile(r"files? changed$")) is not None

    def _click(self, what: Locator) -> int:
        what.click()
        return self._current()

    def _current(self) -> int:
        current = self.page.locator(".lsn-step.lsn-current")
        if not current.count():
            return 0
        current.locator(".lsn-step-body").wait_for()
        number = int(current.get_attribute("data-step") or 0)
        self.visited.append(number)
        return number


@pytest.fixture(scope="module")
def cards(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What a saved card holds of each run."""
    folder = tmp_path_factory.mktemp("faults")
    with PlaywrightLoop.aside():
        return {
            fault.name: bundle(play(fault, folder / fault.name).trajectory.events, {}) for fault in faults()
        }


@pytest.fixture
def blank(browser: Browser, assets: tuple[str, str], tmp_path: Path) -> Iterator[Page]:
    """A page for a card, of a common size."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    path = tmp_path / "card.html"
    path.write_text(page_html(*assets), "utf-8")
    page.goto(path.as_uri())
    yield page
    context.close()


def actions_needed(page: Page, fault: Fault) -> tuple[int | None, list[int]]:
    """How many actions it takes until the faulty step is open, and the steps that were open on the way."""
    person = Person(page, fault.wrong)
    way: list[int] = []
    for step in person.search():
        way.append(step)
        if step == fault.faulty_step:
            return len(way), way
        if len(way) == GIVEN_UP:
            break
    return None, way


def test_the_faulty_step_is_reached_in_four_actions(blank: Page, cards: dict[str, dict[str, Any]]) -> None:
    reached: dict[str, list[bool]] = {}
    print(f"\n{'fault':24}{'step':>5}{'actions':>9}  way")
    for fault in faults():
        blank.evaluate("run => void (window.shown = lsn.show(run))", cards[fault.name])
        count, way = actions_needed(blank, fault)
        steps = blank.locator(".lsn-step").count()
        print(f"{fault.name:24}{fault.faulty_step:3}/{steps}{count or '-':>7}    {way}")
        reached.setdefault(fault.written, []).append(count is not None and count <= MOST_ACTIONS)
    first = reached.pop(BEFORE)
    (later,) = reached.values()
    print(
        f"at most {MOST_ACTIONS} actions: {sum(first)} of {len(first)}; later ones {sum(later)} of {len(later)}"
    )
    assert len(first) == 20
    assert sum(first) >= 18
    assert len(later) == 10
    assert sum(later) >= 8


def show(page: Page, run: dict[str, Any]) -> None:
    page.evaluate("run => void (window.shown = lsn.show(run))", run)


def shown_steps(page: Page) -> list[int]:
    """The steps that are not filtered away."""
    return page.evaluate(
        "shown => [...document.querySelectorAll(shown)].map(step => Number(step.dataset.step))", SHOWN
    )


def test_steps_are_filtered_by_a_file_and_by_changed_files(
    blank: Page, cards: dict[str, dict[str, Any]]
) -> None:
    show(blank, cards["wrong-filter"])
    blank.get_by_role("button", name="5 files changed").click()
    listed = blank.locator(".lsn-file-list .lsn-file")
    expect(listed).to_have_text([
        "notes.md: made 6, changed 12", "input/prices.csv: changed 7", "clean.csv: made 8", "mean.py: made 9",
        "output/mean.txt: made 13",
    ])  # fmt: skip
    row = blank.locator(".lsn-file-row", has_text="notes.md")
    row.get_by_role("button", name="Only these steps").click()
    expect(blank.locator(SHOWN)).to_have_count(2)
    assert shown_steps(blank) == [6, 12]
    blank.get_by_role("button", name="Show all steps again, not only those of notes.md").click()
    expect(blank.locator(SHOWN)).to_have_count(14)
    blank.get_by_label("changed files").check()
    expect(blank.locator(SHOWN)).to_have_count(6)
    assert shown_steps(blank) == [6, 7, 8, 9, 12, 13]


def test_a_step_that_loses_data_is_amber_and_the_key_w_leads_to_it(
    blank: Page, cards: dict[str, dict[str, Any]]
) -> None:
    show(blank, cards["wrong-filter"])
    chip = blank.locator(".lsn-step[data-step='7'] .lsn-chip[data-kind='warn']")
    expect(chip).to_have_text(["prices.csv −886 lines"])
    blank.locator(".lsn-view").focus()
    blank.keyboard.press("w")
    expect(blank.locator(".lsn-step.lsn-current")).to_have_attribute("data-step", "7")
    assert "input/prices.csv" not in "".join(
        blank.locator(".lsn-step[data-step='7'] .lsn-chip[data-kind='plain']").all_inner_texts()
    )


def test_a_step_shows_what_the_model_saw_and_how_full_its_context_was(
    blank: Page, cards: dict[str, dict[str, Any]]
) -> None:
    show(blank, cards["wrong-filter"])
    step = blank.locator(".lsn-step[data-step='5']")
    step.locator(".lsn-step-head").click()
    step.get_by_text("What the model saw").click()
    messages = step.locator(".lsn-messages > li")
    expect(messages).to_have_count(10)  # they are made when the list is opened
    for place, role in enumerate(["system", "user", *["assistant", "tool"] * 4]):
        expect(messages.nth(place)).to_have_attribute("data-role", role)
    expect(messages.nth(8)).to_contain_text("cut -d, -f2 input/prices.csv")
    expect(step.get_by_text("What the model saw (10)")).to_be_visible()
    expect(step.locator(".lsn-context-fill")).to_have_text(
        re.compile(r"^[\d,]+ of 65,536 tokens that the run may use \(\d %\)$")
    )


def test_after_a_rewind_a_step_shows_what_the_earlier_attempt_did(blank: Page) -> None:
    blank.evaluate("run => void (window.shown = lsn.show(run))", bundle(attempts(), {}))
    step = blank.locator(".lsn-step[data-step='2']")
    expect(step.locator(".lsn-earlier")).to_have_text(
        "Earlier attempt, step 2:\nawk '$5 < 25' cities.csv", use_inner_text=True
    )
    expect(step.locator(".lsn-earlier mark")).to_have_text("<")
    expect(blank.locator(".lsn-step[data-step='1'] .lsn-earlier")).to_have_count(0)


def attempts() -> list[ev.Event]:
    """A run that was rewound to its first step, after which the model filters in another way."""
    events: list[ev.Event] = [start_event()]
    for number, command in ((1, "ls"), (2, "awk '$5 < 25' cities.csv")):
        events += with_command(number, command)
    chained(events)
    first = next(event for event in reversed(events) if getattr(event, "step", 0) == 1)
    back = ev.Rewound(to=first.id, step=1, what="conversation", parent=events[-1].id)
    second = with_command(2, "awk '$5 > 25' cities.csv", attempt="b")
    second[0].parent = first.id
    chained(second)
    return [*events, back, *second]


def with_command(number: int, command: str, attempt: str = "a") -> list[ev.Event]:
    found = step_events(number)
    for event in found:
        if hasattr(event, "call_id"):
            event.call_id = f"{attempt}_{number}"
        if hasattr(event, "arguments"):
            event.arguments = {"command": command}
    return [event for event in found if event.kind not in ev.TRANSIENT]


def chained(events: list[ev.Event]) -> None:
    for before, event in pairwise(events):
        event.parent = before.id
