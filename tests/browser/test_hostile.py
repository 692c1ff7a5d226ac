"""Nothing that the model made reaches the page, its cookies or its server: real Chromium, a canary for each attack."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import hostile_payloads
import pytest
from chromium import chromium, go
from failures import open_window
from hostile_server import PAGE, Canary, canary_server
from playwright.sync_api import Browser, BrowserContext, Frame, Page, Playwright
from view_page import PACKAGE, build, bundle, page_html
from waiting import eventually

from llm_sandbox_nb.trajectory import events as ev

BATCH = 24
IMAGE = "<img src='data:,' onerror=\"pwned('NAME')\">"
ALONE = {
    "go-top", "go-parent", "link-top", "form-post-top", "form", "refresh", "go-javascript", "link-javascript",
    "md-refresh", "md-form", "md-api-link", "md-api-link-whole", "md-clobber",
}  # fmt: skip
"""Unprotected they take the page elsewhere, or spoil it for the others."""
CONTROL = {"control-image", "control-fetch", "control-beacon", "control-message-top", "control-iframe"}
"""Each ends in the name of a payload."""

_UNSAFE_DOM = """
const parsed = (text: string) => document.createRange().createContextualFragment(text);
export function h(tag: any, attributes: any = {}, ...children: any[]): any {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes) as any) {
    if (typeof value === 'function') element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, '');
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, String(value));
  }
  element.append(...children.filter((c: any) => !!c).map((c: any) => typeof c === 'string' ? parsed(c) : c));
  return element;
}
export const makeButton = (label: any, onclick: any, attributes: any = {}, ...children: any[]): any =>
  h('button', { type: 'button', onclick, ...attributes }, label, ...children);
export const onEnter = (input: HTMLInputElement, action: () => void) => {
  input.addEventListener('keydown', event => { if (event.key === 'Enter') action(); });
};
export const setText = (node: HTMLElement, text: string) => { node.replaceChildren(parsed(text)); };
export const plainText = (text: string) => text;
export const errorText = (error: any) => String(error?.message ?? error);
"""
UNPROTECTED = {
    "view/dom.ts": _UNSAFE_DOM,
    "clean.ts": "export const cleanHtml = (html: string) => document.createRange().createContextualFragment(html);",
    "artifacts/names.ts": "export const visibleName = (x: string) => x; export const downloadName = visibleName;"
    "export const suffix = (x: string) => (/\\.[^.]*$/.exec(x) ?? [''])[0];",
    "artifacts/static-page.ts": """
export const STATIC_LIMIT = 1e9;
export const staticPage = (html: string) => ({ html, runs: false });
""",
    "artifacts/frame.ts": """
export interface IFrameRights { scripts: boolean; network: boolean }
export const policy = (_: any) => '';
export const [DENIED, PRELUDE] = ['', ''];
export const wrapper = (text: string, _: any) => text;
export function sandboxedFrame(text: string, _rights: any, _title: string) {
  const frame = document.createElement('iframe');
  frame.setAttribute('srcdoc', text);
  return frame;
}
""",
}
_PLAIN_HOST = (PACKAGE / "src/plain-host.ts").read_text(encoding="utf-8")
UNPROTECTED["plain-host.ts"] = _PLAIN_HOST.replace("ansi.ansi_to_html(text)", "text")
"""The view with its protection taken off: text is parsed as HTML, frames have no sandbox and no policy."""


@dataclass(frozen=True)
class Payload:
    """One attack: what stands in the events, and the files."""

    names: tuple[str, ...]
    events: tuple[ev.Event, ...]
    files: dict[str, bytes]


def all_payloads(address: str) -> list[Payload]:
    """Every attack, ready to report to the server at `address`."""
    files = [(name, f"{name}.html", text) for name, text in hostile_payloads.HTML.items()]
    files += [(name, f"{name}.svg", text) for name, text in hostile_payloads.SVG.items()]
    files += [(name, f"{name}.md", text) for name, text in hostile_payloads.MARKDOWN.items()]
    files += [(name, f"{name}-{path}", text) for name, (path, text) in hostile_payloads.OTHER_FILES.items()]
    files += [(name, path, "a,b\n1,2\n") for name, path in hostile_payloads.NAMES.items()]
    made = [file_payload(name, path, text, address) for name, path, text in files]
    return [*made, text_payload()]


def filled(text: str, name: str, address: str = "") -> str:
    text = text.replace("REACH", hostile_payloads.REACH).replace("CANARY", f"{address}/canary/{name}")
    return text.replace("ORIGIN", address).replace("NAME", name)


def file_payload(name: str, path: str, text: str, address: str) -> Payload:
    path = filled(path, name, address)
    data = filled(text, name, address).encode()
    event = ev.ArtifactSaved(step=None, path=path, mime="text/html", size=len(data), sha256="0" * 64)
    return Payload((name,), (event,), {path: data})


def text_payload() -> Payload:
    """An attack in each place where the model's text stands; there is one task and one answer, so it is one run."""
    texts = {place: filled(IMAGE, f"text-{place}") for place in hostile_payloads.TEXTS}
    names = tuple(f"text-{place}" for place in texts)
    return Payload(names, tuple(text_events(texts)), {})


def text_events(at: dict[str, str]) -> list[ev.Event]:
    arguments = {at["argument"]: at["command"]}
    shell = {"command": f"echo 1 # {at['highlighted']}"}
    made = {"command": "create", "path": "a.py", "file_text": f"# {at['made']}\n"}
    change = ev.FileDiff(
        path=at["diff-path"],
        kind="modified",
        size=3,
        diff=f"@@ -1 +1 @@\n-a\n+{at['diff']}\n",
        note=at["diff-note"],
    )
    return [
        ev.RunStarted(
            run_id="r1", task=at["task"], model=at["model"],
            forked_from=ev.ForkedFrom(run_id="r0", folder=at["fork"], step=1, event="e"),
        ),
        ev.SandboxReady(sandbox_id="s", protection={"isolation": at["protection"]}, start_time=0.1),
        ev.ModelRequested(step=1),
        ev.ModelFailed(step=1, attempt=1, error="RateLimit", message=at["failure"], retry_in=1.0),
        ev.ModelReplied(step=1, message={"role": "assistant", "content": at["thought"]}, reasoning=at["reasoning"]),
        ev.CallProposed(step=1, call_id="c", tool=at["tool"], raw_arguments="{}", arguments=arguments),
        ev.CallStarted(step=1, call_id="c", tool=at["tool"], arguments=arguments),
        ev.CallFinished(
            step=1, call_id="c", observation="x", exit_code=1,
            notice=at["notice"], changes=[change], changes_incomplete=at["incomplete"],
        ),
        ev.CallProposed(step=1, call_id="d", tool="execute_bash", raw_arguments=at["raw"], arguments=None),
        ev.CallFinished(step=1, call_id="d", observation=at["observation"], error=at["error"]),
        ev.CallProposed(step=1, call_id="e", tool="execute_bash", raw_arguments="{}", arguments=shell),
        ev.CallStarted(step=1, call_id="e", tool="execute_bash", arguments=shell),
        ev.CallFinished(
            step=1, call_id="e", observation="x", exit_code=1, stdout="x", stderr=at["last-line"] + "\n"
        ),
        ev.CallProposed(step=1, call_id="f", tool="str_replace_editor", raw_arguments="{}", arguments=made),
        ev.CallFinished(step=1, call_id="f", observation="x", exit_code=0),
        ev.Noted(text=at["note"]),
        ev.ArtifactSkipped(reason=at["skipped"]),
        ev.RunFinished(stop_reason="error", answer=at["answer"], error=at["ending"], steps=1, wall_time=1.0),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The page with its protection and without."""
    made = {}
    for name, replaced in (("whole", {}), ("bare", UNPROTECTED)):
        script, style = build(tmp_path_factory.mktemp(name) / "built", replaced)
        made[name] = page_html(script, style, PAGE)
    return made


@pytest.fixture
def canary(scripts: dict[str, str]) -> Iterator[Canary]:
    with canary_server() as started:
        started.script = scripts
        yield started


@pytest.fixture(scope="module")
def browser(playwright: Playwright) -> Iterator[Browser]:
    """One of its own: some payloads hang a tab."""
    with chromium(playwright) as started:
        yield started


@pytest.fixture
def context(browser: Browser) -> BrowserContext:
    """A window so high that all is in sight, hence loaded. It ends with the browser."""
    return open_window(browser, viewport={"width": 1000, "height": 16_000})


def serve(canary: Canary, name: str, payloads: list[Payload]) -> None:
    """Make a run of `payloads`."""
    events = [event for payload in payloads for event in payload.events]
    files = {path: data for payload in payloads for path, data in payload.files.items()}
    if not isinstance(events[0], ev.RunStarted):
        events.insert(0, ev.RunStarted(run_id="r1", task="t", model="m"))
    canary.runs[name] = bundle(events, files)


def batches(payloads: list[Payload], size: int = BATCH) -> Iterator[list[Payload]]:
    """Some at a time; what has a task of its own comes by itself."""
    files = [payload for payload in payloads if payload.files]
    for start in range(0, len(files), size):
        yield files[start : start + size]
    yield from ([payload] for payload in payloads if not payload.files)


def names_of(payloads: list[Payload]) -> set[str]:
    return {name for payload in payloads for name in payload.names}


@dataclass
class Seen:
    """What a page saw beside requests."""

    dialogs: list[str]
    tabs: list[Any]


def watch(context: BrowserContext, page: Page) -> Seen:
    seen = Seen([], [])
    page.on("dialog", lambda dialog: (seen.dialogs.append(dialog.message), dialog.dismiss()))
    context.on("page", lambda opened: seen.tabs.append(opened) if opened is not page else None)
    return seen


def wait_for_frames(page: Page, count: int) -> None:
    inner: list[Frame] = []

    def are_there() -> bool:
        outer = [frame for frame in page.frames if frame.parent_frame == page.main_frame]
        inner[:] = [frame for frame in page.frames if frame.parent_frame in outer and frame.url]
        return len(inner) >= count

    assert eventually(page, are_there), f"{len(inner)} of {count} frames are there"


@pytest.mark.parametrize("trusted", ["yes", pytest.param("no", marks=pytest.mark.campaign)])
def test_no_payload_reaches_the_page_or_the_server(
    canary: Canary, context: BrowserContext, trusted: str
) -> None:
    payloads = all_payloads(canary.address)
    assert len(names_of(payloads)) >= 60
    for number, batch in enumerate(batches(payloads)):
        serve(canary, str(number), batch)
        page = context.new_page()
        seen = watch(context, page)
        address = f"{canary.address}/page/whole?run={number}&trusted={trusted}"
        go(page, address)
        frames = sum(path.endswith((".html", ".svg")) for payload in batch for path in payload.files)
        page.wait_for_function("() => window.shown && !document.querySelector('[aria-busy=true]')")
        wait_for_frames(page, frames)
        page.wait_for_function("() => window.clicked === 2")
        let_pass(canary, context)
        assert canary.names() <= CONTROL
        assert page.url == address
        assert page.title() == "run"
        assert page.evaluate("[localStorage.secret, document.cookie]") == ["very-secret", "_xsrf=very-secret"]
        assert not seen.dialogs
        assert not [tab.url for tab in seen.tabs if "/canary/" in tab.url or "/api/" in tab.url]
        page.close()
    assert canary.names() <= CONTROL


def let_pass(canary: Canary, context: BrowserContext) -> None:
    """Until attacks of a page without protection, begun later, are here: what others had sent would be here too."""
    payloads = [
        file_payload(name, f"{name}.html", hostile_payloads.HTML[name.partition("-")[2]], canary.address)
        for name in sorted(CONTROL)
    ]
    serve(canary, "control", payloads)
    canary.hits[:] = [hit for hit in canary.hits if hit[0] not in CONTROL]
    page = context.new_page()
    go(page, f"{canary.address}/page/bare?run=control", wait_until="commit")
    assert eventually(page, lambda: canary.names() >= CONTROL), CONTROL - canary.names()
    page.close()


@pytest.mark.campaign
def test_without_the_protection_each_payload_gets_through(canary: Canary, context: BrowserContext) -> None:
    """The canary of the test above: an attack that does not fire here would prove nothing there."""
    payloads = all_payloads(canary.address)
    together = [payload for payload in payloads if not ALONE.intersection(payload.names)]
    for number, batch in enumerate(batches(together)):
        fire(canary, context, f"some-{number}", batch, 6)
    silent = [payload for payload in payloads if set(payload.names) - canary.names()]
    for number, payload in enumerate(silent):
        fire(canary, context, f"one-{number}", [payload], 90)
    missing = names_of(payloads) - canary.names()
    assert not missing


def fire(canary: Canary, context: BrowserContext, run: str, payloads: list[Payload], seconds: float) -> None:
    """Show `payloads` without any protection, until each has got through or so long."""
    serve(canary, run, payloads)
    page = context.new_page()
    seen = watch(context, page)
    go(page, f"{canary.address}/page/bare?run={run}", wait_until="commit")
    deadline = time.monotonic() + seconds
    while names_of(payloads) - canary.names() and time.monotonic() < deadline:
        page.wait_for_timeout(50)
        canary.hits += [(name, "dialog") for name in seen.dialogs]
