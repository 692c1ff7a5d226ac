"""Why did the run fail? A mechanical person finds the faulty step of planted faults by docs/how-to/why-did-it-fail.md.

The person knows which output is wrong and follows the rules: no knowledge of the run, of the fault or of the true step.
One click or one key is one action. A step counts as reached when it is the current one, open in the card.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import PlaywrightLoop
from failures import new_window
from planted_faults import Fault, faults, play
from playwright.sync_api import Browser, Locator, Page
from view_page import bundle, page_html

MOST_ACTIONS = 4
GIVEN_UP = 12
BEFORE = "before the last rules"


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
        if (warning := self._button(re.compile(r"^Step \d+: .* →$"))) is not None:
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
    folder = tmp_path_factory.mktemp("faults")
    with PlaywrightLoop.aside():
        return {
            fault.name: bundle(play(fault, folder / fault.name).trajectory.events, {}) for fault in faults()
        }


@pytest.fixture
def blank(browser: Browser, assets: tuple[str, str], tmp_path: Path) -> Iterator[Page]:
    path = tmp_path / "card.html"
    path.write_text(page_html(*assets), "utf-8")
    with new_window(browser) as window:
        page = window.new_page()
        page.goto(path.as_uri())
        yield page


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


@pytest.mark.campaign
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
