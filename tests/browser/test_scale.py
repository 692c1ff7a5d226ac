"""Long runs in a real browser: 500 steps with 20 MB of output, against the same content as plain outputs.

Plain outputs stand for the cells of a notebook without the view: the same bare page, in which a script puts every
thought, command, output and diff, whole, into a `<pre>` of its own, as a notebook does with what a cell printed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from failures import new_window
from playwright.sync_api import Browser, CDPSession, Page
from scale_run import long_run
from support import module_at
from view_page import build, bundle, page_html

from llm_sandbox_nb.card.export import export_html, json_for_script
from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.trajectory import Trajectory

STEPS, OUTPUT, ADDED = 500, 20_000_000, 40
pytestmark = [pytest.mark.campaign, pytest.mark.alone, pytest.mark.timeout(600)]

HELPERS = """
const run = JSON.parse(document.getElementById('run').textContent);
const running = { ...run, events: run.events.slice(0, -1) }; // without its end: the newest steps of a live run are open
const place = document.getElementById('view');
const frame = () => new Promise(done => requestAnimationFrame(() => setTimeout(done)));
function plain(events) {
  const texts = [];
  for (const event of events) {
    if (event.kind === 'model.replied') texts.push(event.message.content, event.reasoning);
    if (event.kind === 'call.started') texts.push(event.arguments.command);
    if (event.kind === 'call.finished') texts.push(event.observation, ...event.changes.map(change => change.diff));
  }
  for (const text of texts) {
    const output = document.createElement('pre');
    output.textContent = text;
    place.append(output);
  }
}
// Milliseconds from the events to the end of the first frame that shows a step, or a text of it.
async function painted(draw) {
  place.replaceChildren();
  await frame();
  const from = performance.now();
  draw();
  for (let there = false; !there; ) {
    there = !!place.querySelector('pre, .lsn-what');
    await frame();
  }
  return performance.now() - from;
}
// Script time that the view spends when steps come near the visible part.
let observed = 0;
window.IntersectionObserver = class extends IntersectionObserver {
  constructor(callback, options) {
    super(entries => {
      const from = performance.now();
      callback(entries);
      observed += performance.now() - from;
    }, options);
  }
};
// For each group of events, while the page stays at its end: milliseconds of script, and with the layout it causes.
async function added(groups, add) {
  const times = [];
  for (const events of groups) {
    observed = 0;
    const from = performance.now();
    add(events);
    const script = performance.now() - from;
    scrollTo(0, document.documentElement.scrollHeight);
    const layout = performance.now() - from;
    await frame();
    await frame();
    times.push([script + observed, layout + observed]);
  }
  return times;
}
Object.assign(window, { run, running, place, frame, plain, painted, added });
"""


@pytest.fixture(scope="module")
def keep() -> Any:
    """Where measured numbers are kept: the file of the performance tests."""
    path = Path(__file__).parents[1] / "performance" / "conftest.py"
    return module_at(path, "performance_results").keep


@pytest.fixture(scope="module")
def events() -> list[ev.Event]:
    found = long_run(STEPS, OUTPUT)
    shown = sum(len(event.observation.encode()) for event in found if isinstance(event, ev.CallFinished))
    assert shown >= OUTPUT
    return found


@pytest.fixture(scope="module")
def bare(events: list[ev.Event], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page that has the run as data and the view as a script, and shows nothing yet."""
    folder = tmp_path_factory.mktemp("scale")
    script, style = build(folder)
    data = f"<script type='application/json' id='run'>{json_for_script(bundle(events, {}))}</script>"
    path = folder / "bare.html"
    path.write_text(page_html(script, style) + data + f"<script>{HELPERS}</script>", "utf-8")
    return path


@pytest.fixture
def scale_page(browser: Browser, bare: Path) -> Iterator[Page]:
    with new_window(browser) as window:
        opened = window.new_page()
        opened.goto(bare.as_uri())
        opened.wait_for_function("() => !!window.added")
        yield opened


def metrics(client: CDPSession) -> dict[str, float]:
    return {row["name"]: row["value"] for row in client.send("Performance.getMetrics")["metrics"]}


def heap(client: CDPSession) -> float:
    """Megabytes of script objects that are in use once all garbage is gone."""
    client.send("HeapProfiler.collectGarbage")
    return metrics(client)["JSHeapUsedSize"] / 1e6


def connected(page: Page) -> CDPSession:
    client = page.context.new_cdp_session(page)
    client.send("Performance.enable")
    client.send("HeapProfiler.enable")
    return client


def later_steps(count: int) -> list[list[dict[str, Any]]]:
    """The events of steps that come after the run, each with as much output as the others."""
    following = long_run(STEPS + count, OUTPUT // STEPS * (STEPS + count))
    groups: dict[int, list[dict[str, Any]]] = {}
    for event in following:
        number = getattr(event, "step", 0) or 0
        if number > STEPS:
            groups.setdefault(number, []).append(json.loads(ev.dump_event(event)))
    return list(groups.values())


def test_an_exported_page_shows_a_long_run_at_once(
    browser: Browser, events: list[ev.Event], tmp_path: Path, keep: Any
) -> None:
    path = export_html(Run(tmp_path, Trajectory(events)), tmp_path / "run.html")
    times = [first_paint(browser, path) for _ in range(3)]
    size = f"{path.stat().st_size / 1e6:.0f} MB of HTML, from a file"
    keep(
        f"exported page of {STEPS} steps, opened and painted",
        median(times),
        "ms",
        bar="under 1500 ms",
        note=size,
    )
    assert median(times) < 1500, times


def first_paint(browser: Browser, path: Path) -> float:
    """Milliseconds from the start of the navigation to the frame that shows the first steps."""
    page = browser.new_page()  # without what is kept of a failure, which takes its time
    page.add_init_script(
        "new MutationObserver(() => { if (!window.shown && document.querySelector('.lsn-what')) {"
        " window.shown = true; requestAnimationFrame(() => setTimeout(() => { window.at = performance.now(); })); } })"
        ".observe(document, { childList: true, subtree: true })"
    )
    page.goto(path.as_uri(), wait_until="commit")
    page.wait_for_function("() => window.at", timeout=60_000)
    at = float(page.evaluate("window.at"))
    assert page.locator(".lsn-step").count() == STEPS
    page.close()
    return at


def test_it_is_painted_at_least_five_times_quicker_than_plain_outputs(scale_page: Page, keep: Any) -> None:
    # The first of each warms the browser up.
    view = [scale_page.evaluate("painted(() => lsn.show(run))") for _ in range(4)][1:]
    plain = [scale_page.evaluate("painted(() => plain(run.events))") for _ in range(2)]
    ratio = min(plain) / max(view)
    keep(
        f"{STEPS} steps: from events to paint",
        max(view),
        "ms",
        bar="under 1500 ms",
        note="without reading the file",
    )
    keep(
        f"{STEPS} steps as plain outputs: to paint",
        min(plain),
        "ms",
        bar="none",
        note="every text in a <pre>",
    )
    keep(f"{STEPS} steps: quicker than plain outputs", ratio, "times", bar="at least 5 times")
    assert max(view) < 1500
    assert ratio >= 5, f"{view} ms, plain {plain} ms"


def live_output(count: int) -> list[list[dict[str, Any]]]:
    """A command whose output arrives in pieces of a kilobyte, more of it than is kept."""
    call, step = "live", STEPS + ADDED + 1
    proposed = ev.CallProposed(
        step=step, call_id=call, tool="execute_bash", raw_arguments="{}", arguments={"command": "make"}
    )
    started = ev.CallStarted(step=step, call_id=call, tool="execute_bash", arguments={"command": "make"})
    piece = "cc -O2 -c part.c -o part.o\n" * 38
    pieces = [ev.CallOutput(call_id=call, stream="stdout", text=piece) for _ in range(count)]
    return [[json.loads(ev.dump_event(event))] for event in (proposed, started, *pieces)]


def test_an_added_step_takes_less_than_a_frame(scale_page: Page, keep: Any) -> None:
    scale_page.evaluate(
        "async () => { window.shown = lsn.show(running).view; shown.setLive(true); await frame(); }"
    )
    scale_page.evaluate(
        "async () => { scrollTo(0, document.body.scrollHeight); await frame(); await frame(); }"
    )
    add = "groups => added(groups, events => { shown.add(...events); shown.flush(); })"
    groups = later_steps(ADDED)
    script, layout = zip(*scale_page.evaluate(add, groups), strict=True)
    assert scale_page.locator(".lsn-step").count() == STEPS + ADDED
    assert scale_page.locator(".lsn-step").last.locator(".lsn-call .lsn-output").count() >= 1
    keep(f"a step added to {STEPS}: script", median(script), "ms", bar="under 16 ms")
    keep(f"a step added to {STEPS}: script and layout", median(layout), "ms", bar="under 16 ms")
    keep(f"a step added to {STEPS}: most script", max(script), "ms", bar="none", note=f"of {ADDED} steps")
    assert median(script) < 16, script
    assert median(layout) < 16, layout
    streamed = [times[0] for times in scale_page.evaluate(add, live_output(100))[-30:]]
    keep(
        "a kilobyte of live output: script",
        median(streamed),
        "ms",
        bar="under 16 ms",
        note="64 KiB are shown",
    )
    assert median(streamed) < 16, streamed


def test_an_added_step_is_quicker_than_as_plain_outputs(scale_page: Page, bare: Path, keep: Any) -> None:
    """In turns, so that both meet the same load; with the step's body, as the view shows it at once at its end."""
    other = scale_page.context.new_page()
    other.goto(bare.as_uri())
    other.wait_for_function("() => !!window.added")
    end = "scrollTo(0, document.body.scrollHeight); await frame(); await frame();"
    scale_page.evaluate(
        f"async () => {{ window.shown = lsn.show(running).view; shown.setLive(true); await frame(); {end} }}"
    )
    other.evaluate(f"async () => {{ plain(run.events); await frame(); {end} }}")
    groups = later_steps(ADDED)
    view, plain = [], []
    for start in range(0, ADDED, 4):
        for page, add, times in (
            (scale_page, "events => { shown.add(...events); shown.flush(); }", view),
            (other, "plain", plain),
        ):
            page.bring_to_front()
            times += page.evaluate(f"groups => added(groups, {add})", groups[start : start + 4])
    assert scale_page.locator(".lsn-step").last.locator(".lsn-call .lsn-output").count() >= 1
    layouts = [median(layout for _, layout in times) for times in (view, plain)]
    ratio = layouts[1] / layouts[0]
    keep(f"a step added to {STEPS} as plain outputs: script and layout", layouts[1], "ms", bar="none")
    keep(
        f"a step added to {STEPS}: quicker than plain outputs",
        ratio,
        "times",
        bar="at least 5 times; fails under 1.5",
        note="against a bare <pre> for each text, without what a notebook adds to it",
    )
    assert ratio >= 1.5, f"{view} ms, plain {plain} ms"


SCROLL = """async ([from, to]) => {
  let most = 0;
  const height = document.documentElement.scrollHeight;
  for (let part = 0; part <= 100; part++) {
    scrollTo(0, height * (from + (to - from) * part / 100));
    await frame();
    await frame();
    most = Math.max(most, place.getElementsByTagName('*').length);
  }
  return most;
}"""


def test_memory_stays_flat_while_scrolling(scale_page: Page, keep: Any) -> None:
    client = connected(scale_page)
    scale_page.evaluate("async () => { window.shown = lsn.show(run).view; await frame(); await frame(); }")
    scale_page.evaluate(SCROLL, [0, 0.05])
    first, nodes = heap(client), metrics(client)["Nodes"]
    most = 0
    for way in ([0, 1], [1, 0], [0, 1], [1, 0]):
        most = max(most, scale_page.evaluate(SCROLL, way))
    last = heap(client)
    grown = last - first
    note = f"{first:.0f} MB before, {last:.0f} MB after, {most} elements at most"
    keep(
        f"{STEPS} steps scrolled through four times: more memory",
        grown,
        "MB",
        bar="flat: under 5 MB",
        note=note,
    )
    assert grown < 5, note
    assert most < STEPS * 5 + 3000, note
    assert metrics(client)["Nodes"] < nodes * 1.5 + 1000


def test_search_goes_through_all_of_it_within_a_moment(scale_page: Page, keep: Any) -> None:
    scale_page.evaluate("async () => { window.shown = lsn.show(run).view; await frame(); await frame(); }")
    search = """async text => {
      const field = document.querySelector('.lsn-search');
      const from = performance.now();
      field.value = text;
      field.dispatchEvent(new Event('input'));
      const time = performance.now() - from;
      await frame();
      return [time, document.querySelectorAll('.lsn-step:not([hidden])').length];
    }"""
    first, shown = scale_page.evaluate(search, "target 77*")
    again, shown_again = scale_page.evaluate(search, "target 250*")
    assert (shown, shown_again) == (1, 1)
    keep(f"search in {STEPS} steps: first letter", first, "ms", bar="under 300 ms")
    keep(f"search in {STEPS} steps: each further letter", again, "ms", bar="under 100 ms")
    assert first < 300
    assert again < 100
