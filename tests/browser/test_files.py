"""Records outside of notebooks: opened as files in JupyterLab and Notebook, and exported as one HTML file."""

from __future__ import annotations

import shutil
from pathlib import Path

import course
import pytest
from chromium import PlaywrightLoop, go
from failures import new_window
from nbclient import NotebookClient
from nbconvert import HTMLExporter
from playwright.sync_api import Browser, Page, expect
from servers import APPS, ROOT, FrontEnd, empty_lab, open_as_run
from view_states import PIXEL
from warm_kernels import kernel_environment

from llm_sandbox_nb.formats.llm_in_sandbox import write_seed
from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.journal import Journal
from llm_sandbox_nb.trajectory.trajectory import Trajectory

PAGE = b"<!doctype html><p id=p>waits</p><script>document.getElementById('p').textContent='ran'</script>"
MESSAGE = "**Two** files, see <b onclick=x>them</b> and [this](https://example.org/a)."


def call_events(step: int, command: str, output: str) -> list[ev.Event]:
    call, arguments = f"call_{step}", {"command": command}
    return [
        ev.ModelReplied(step=step, message={"role": "assistant", "content": MESSAGE}),
        ev.CallProposed(
            step=step, call_id=call, tool="execute_bash", raw_arguments="{}", arguments=arguments
        ),
        ev.CallStarted(step=step, call_id=call, tool="execute_bash", arguments=arguments),
        ev.CallFinished(step=step, call_id=call, observation=output, stdout=output, exit_code=0),
    ]


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("record")
    events: list[ev.Event] = [
        ev.RunStarted(run_id="r", task="Make two files.", model="scripted/x", scripted=True)
    ]
    for step in (1, 2, 3):
        events += call_events(step, f"echo {step}", f"\x1b[31mred {step}\x1b[0m\n")
    for name, mime, data in (("dot.png", "image/png", PIXEL), ("page.html", "text/html", PAGE)):
        (folder / "files").mkdir(exist_ok=True)
        (folder / "files" / name).write_bytes(data)
        events.append(ev.ArtifactSaved(step=3, path=name, mime=mime, size=len(data), sha256=""))
    events.append(ev.RunFinished(stop_reason="submitted", answer="There are *two*.", steps=3))
    journal = Journal(folder)
    for event in events:
        journal.append(event)
    journal.close()
    write_seed(Trajectory(events), folder)
    return Run.load(folder)


@pytest.fixture
def server(server: FrontEnd, record: Run) -> FrontEnd:
    shutil.copytree(record.folder, server.root / "run")
    (server.root / "other").mkdir()
    (server.root / "other" / "trajectory.json").write_text('{"history": ["<script>window.hit=1</script>"]}')
    return server


def assert_shows_steps(page: Page) -> None:
    steps = page.locator(".lsn-step")
    expect(steps).to_have_count(3)
    expect(steps.first).to_contain_text("Two files, see them and this.")
    expect(steps.first.locator(".lsn-output")).to_have_text("red 1")


def assert_shows_files(page: Page) -> None:
    page.locator(".lsn-artifact").last.scroll_into_view_if_needed()
    page.wait_for_function("() => document.querySelector('.lsn-artifact img')?.naturalWidth === 1")
    page.get_by_role("button", name="Run this page").click()
    frame = page.frame_locator(".lsn-artifact iframe").frame_locator("iframe")
    expect(frame.locator("#p")).to_have_text("ran")
    expect(page.locator(".lsn-answer")).to_have_text("There are two.")


@pytest.mark.parametrize("server", APPS, indirect=True)
@pytest.mark.open_lab
def test_a_journal_opens_as_the_run_with_its_files(server: FrontEnd, page: Page) -> None:
    open_as_run(page, server, "run/journal.jsonl")
    assert_shows_steps(page)
    assert_shows_files(page)
    expect(page.locator(".lsn-step a").first).to_have_attribute("rel", "noopener noreferrer nofollow")


@pytest.mark.open_lab
def test_a_trajectory_of_the_paper_opens_as_the_run(server: FrontEnd, page: Page) -> None:
    open_as_run(page, server, "run/trajectory.json")
    assert_shows_steps(page)


@pytest.mark.campaign
def test_files_of_these_names_open_as_they_did_before(server: FrontEnd, page: Page) -> None:
    """They may be other projects'. The editor or Lab's view of JSON shows them."""
    for name in ("journal.jsonl", "trajectory.json"):
        go(page, server.address(f"run/{name}"))
        expect(page.locator(".cm-content, .jp-RenderedJSON").first).to_be_visible()
        expect(page.locator(".lsn-host")).to_have_count(0)


@pytest.mark.open_lab
def test_another_trajectory_json_is_shown_as_the_text_it_is(server: FrontEnd, page: Page) -> None:
    for why in ("This file is not a trajectory.", "other trajectories need the server part"):
        open_as_run(page, server, "other/trajectory.json")
        expect(page.locator(".lsn-notes")).to_contain_text(why)
        expect(page.locator(".lsn-other")).to_contain_text("<script>window.hit=1</script>")
        assert page.evaluate("() => window.hit") is None
        page.route("**/foreign-record*", lambda route: route.abort())
        if server.app == "lab":
            empty_lab(page)


def test_an_exported_file_shows_everything_and_asks_for_nothing(
    record: Run, browser: Browser, tmp_path: Path
) -> None:
    path = record.to_html(tmp_path / "run.html")
    asked: list[str] = []
    errors: list[str] = []
    with new_window(browser, offline=True) as window:
        page = window.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(path.as_uri())
        assert_shows_steps(page)
        assert_shows_files(page)
        licenses = page.locator(".lsn-licenses")
        expect(licenses.locator("summary")).to_be_visible()
        for holder in (
            "MarkedJS",
            "dompurify",
            "Arjun Barrett",
            "Ivan Sagalaev",
            "Kevin Decker",
            "Titus Wormer",
        ):
            expect(licenses).to_contain_text(holder)
        expect(page.get_by_role("button", name="network")).to_have_count(0)
        expect(page.locator(".lsn-output .ansi-red-fg").first).to_be_attached()
    assert [url for url in asked if not url.startswith(("file:", "blob:", "data:", "about:"))] == []
    assert errors == []


def test_the_policy_of_an_exported_file_holds(record: Run, page: Page, tmp_path: Path) -> None:
    """What would load or send is refused, by the page's own policy and not for want of a network."""
    page.goto(record.to_html(tmp_path / "run.html").as_uri())
    expect(page.locator(".lsn-step")).to_have_count(3)
    refused = page.evaluate(
        """async () => {
          const refused = [];
          document.addEventListener('securitypolicyviolation', event => refused.push(event.effectiveDirective));
          new Image().src = 'http://127.0.0.1:9/x';
          await fetch('http://127.0.0.1:9/x').catch(() => null);
          const frame = document.createElement('iframe');
          frame.src = 'http://127.0.0.1:9/x';
          document.body.append(frame);
          while (refused.length < 3) await new Promise(done => setTimeout(done, 50));
          return refused.sort();
        }"""
    )
    assert refused == ["connect-src", "frame-src", "img-src"]


@pytest.mark.campaign
def test_the_first_notebook_that_nbconvert_exports_reads_well(page: Page, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "notebooks" / "data", tmp_path / "data")
    notebook = course.shipped("01-first-task")
    environment = {**kernel_environment(tmp_path), "LLM_SANDBOX_ISOLATION": "process"}
    client = NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}})
    with PlaywrightLoop.aside():
        client.execute(env=environment)
    exported, _ = HTMLExporter().from_notebook_node(notebook)
    path = tmp_path / "01.html"
    path.write_text(exported, encoding="utf-8")
    page.goto(path.as_uri(), wait_until="commit")
    for text in ("7 steps", "scripted", "The three largest cities are Tokyo"):
        expect(page.get_by_text(text).first).to_be_attached()
    page.wait_for_function("() => [...document.images].some(one => one.naturalWidth > 100)")
    page.wait_for_function("() => [...document.querySelectorAll('audio')].some(one => one.duration > 0.1)")
    page.locator("iframe[srcdoc]").scroll_into_view_if_needed()
    drawn = page.frame_locator("iframe[srcdoc]").frame_locator("iframe").locator("svg circle")
    expect(drawn.first).to_be_visible()
