"""The view against the view before it was designed anew: both built, and measured in turns in one browser."""

from __future__ import annotations

import subprocess
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from playwright.sync_api import Browser, Page
from scale_run import long_run
from test_scale import HELPERS, OUTPUT, STEPS, keep, later_steps  # noqa: F401 - `keep` is a fixture
from view_page import ROOT, build, bundle, page_html

from llm_sandbox_nb.card.export import json_for_script

pytestmark = [pytest.mark.campaign, pytest.mark.alone, pytest.mark.timeout(600)]

BEFORE = "ea9a73b6d5a42cc9a31da41dfd9b5f807148bdef"
"""The last commit with the view as it was before."""
ENTRY = """
import { PlainHost } from '../src/plain-host';
import { TrajectoryView } from '../src/view/view';
function show(bundle) {
  const view = new TrajectoryView(Object.assign(new PlainHost(bundle), { trusted: true }));
  view.add(...bundle.events);
  document.getElementById('view').replaceChildren(view.node);
  view.flush();
  return { view };
}
Object.assign(window, { lsn: { show } });
"""
"""That commit has no file for this."""
TURNS = 9
MORE = 160
"""Steps that are added."""
MOST = 1.1

SETTLED = """
// Milliseconds from the events to the end of the last frame in which the page changed.
async function settled(draw) {
  place.replaceChildren();
  await frame();
  await frame();
  let changed = false;
  const observer = new MutationObserver(() => (changed = true));
  const from = performance.now();
  draw();
  observer.observe(place, { childList: true, subtree: true, characterData: true });
  let last = from;
  for (changed = true; changed; ) {
    changed = false;
    await frame();
    last = changed || last === from ? performance.now() : last;
  }
  observer.disconnect();
  return last - from;
}
Object.assign(window, { settled });
"""


def package_before() -> Path:
    """The `labextension` of that commit, unpacked once and kept."""
    folder = ROOT / ".cache" / f"view-{BEFORE[:12]}"
    if not (folder / "labextension" / "src").is_dir():
        paths = ["labextension/src", "labextension/style"]
        found = subprocess.run(["git", "archive", BEFORE, *paths], cwd=ROOT, capture_output=True, check=False)
        if found.returncode:
            pytest.fail(
                f"The view before is built from the commit {BEFORE}, which this clone lacks: run"
                " `git fetch --unshallow`, or take a clone with the whole history.",
                pytrace=False,
            )
        with tarfile.open(fileobj=BytesIO(found.stdout)) as archive:
            archive.extractall(folder, filter="data")
        (folder / "labextension" / "tests").mkdir()
        (folder / "labextension" / "tests" / "entry.ts").write_text(ENTRY, "utf-8")
    return folder / "labextension"


@pytest.fixture(scope="module")
def pages(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Page]]:
    """A page with the view of each commit, and the same run."""
    folder = tmp_path_factory.mktemp("speed")
    data = json_for_script(bundle(long_run(STEPS, OUTPUT), {}))
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    context.set_default_timeout(120_000)
    opened: dict[str, Page] = {}
    for name, options in (("before", {"package": package_before()}), ("now", {})):
        script, style = build(folder / name, **options)
        path = folder / f"{name}.html"
        run = f"<script type='application/json' id='run'>{data}</script>"
        path.write_text(page_html(script, style) + run + f"<script>{HELPERS}{SETTLED}</script>", "utf-8")
        opened[name] = context.new_page()
        opened[name].goto(path.as_uri())
        opened[name].wait_for_function("() => !!window.settled")
    yield opened
    context.close()


def test_it_is_painted_as_quickly_as_before(pages: dict[str, Page], keep: Any) -> None:  # noqa: F811
    times: dict[str, list[float]] = {name: [] for name in pages}
    for turn in range(TURNS + 1):
        for name, page in pages.items():
            page.bring_to_front()
            time = page.evaluate("settled(() => { window.shown = lsn.show(run).view; })")
            if turn:  # the first of each warms the browser up
                times[name].append(time)
    check("from events to paint", times, keep)


def test_an_added_step_is_as_quick_as_before(pages: dict[str, Page], keep: Any) -> None:  # noqa: F811
    for page in pages.values():
        page.bring_to_front()
        page.evaluate(
            "async () => { place.replaceChildren(); window.shown = lsn.show(run).view; shown.setLive(true);"
            " await frame(); scrollTo(0, document.body.scrollHeight); await frame(); await frame(); }"
        )
    groups = later_steps(MORE)
    times: dict[str, list[float]] = {name: [] for name in pages}
    add = "groups => added(groups, events => { shown.add(...events); shown.flush(); })"
    for start in range(0, MORE, 4):
        for name, page in pages.items():
            page.bring_to_front()
            times[name] += [layout for _, layout in page.evaluate(add, groups[start : start + 4])]
    for page in pages.values():
        assert page.locator(".lsn-step").count() == STEPS + MORE
    check("a step added, script and layout", {name: found[4:] for name, found in times.items()}, keep)


def check(what: str, times: dict[str, list[float]], keep: Any) -> None:  # noqa: F811
    """Keep both medians and their ratio, and hold the bar."""
    before, now = (median(times[name]) for name in ("before", "now"))
    note = f"{now:.1f} ms against {before:.1f} ms, medians of {len(times['now'])} in turns"
    keep(f"{STEPS} steps, {what}: now / before", now / before, "x", bar=f"at most {MOST} x", note=note)
    assert now / before <= MOST, f"{note}; {times}"
