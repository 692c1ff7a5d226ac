"""Cells whose runs take their time, and what a person sees and does meanwhile."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Locator, Page, expect
from servers import FrontEnd, bundles, open_notebook
from support import own_mark, processes_with
from waiting import eventually

MARK = own_mark()
ENDLESS = f"""
turns:
  - calls: [{{tool: execute_bash, arguments: {{command: "echo kept"}}}}]
  - calls: [{{tool: execute_bash, arguments: {{command: "echo begun; sleep {MARK}"}}}}]
  - calls: [{{tool: submit}}]
"""
PATIENT = """
turns:
  - calls: [{tool: execute_bash, arguments: {command: "echo one"}}]
  - calls: [{tool: execute_bash, arguments: {command: "echo two; until [ -e GO ]; do sleep 0.1; done"}}]
  - calls: [{tool: execute_bash, arguments: {command: "echo three"}}]
  - calls: [{tool: submit}]
"""
"""Its second step waits for a file."""
STEPS = 30
STOP_BAR = 2.0
TRIES = 3
"""How often a bar may be measured."""
MANY = "turns:" + "".join(
    f"""
  - calls: [{{tool: execute_bash, arguments: {{command: "echo stamp-{n}; sleep 0.2"}}}}]"""
    for n in range(1, STEPS + 1)
)
# When each step's command, and its end with all its output, are first in the page. Only the newest steps are looked at:
# the looking must cost nothing.
OBSERVE = r"""() => {
  window.seen = { steps: {}, outputs: {} };
  let newest = null;
  const note = (kind, step, there) => {
    if (there && !window.seen[kind][step]) window.seen[kind][step] = Date.now() / 1000;
  };
  new MutationObserver(() => {
    const [before, last] = [...document.querySelectorAll('.lsn-step')].slice(-2);
    for (const node of [before, last]) {
      const step = node?.dataset.step;
      const text = part => node.querySelector(part)?.textContent ?? '';
      if (!step) continue;
      note('steps', step, text('.lsn-code').includes(`stamp-${step};`));
      const ended = node.dataset.state === 'done';
      note('outputs', step, ended && text('.lsn-output').trim() === `stamp-${step}`);
    }
    if (last !== newest) {
      newest = last;
      last?.scrollIntoView({ block: 'end' });
    }
  }).observe(document, { subtree: true, childList: true, characterData: true });
}"""
BADGE = ".lsn-header .lsn-badge"


def begin(
    server: FrontEnd, page: Page, name: str, script: str, *, kernel: str = "python3", options: str = ""
) -> None:
    (server.root / f"{name}.yaml").write_text(script)
    cell = f"%%sandbox -m scripted/./{name}.yaml {options}\nGo on."
    path = server.notebook(f"{name}.ipynb", "%load_ext llm_sandbox_nb", cell, kernel=kernel)
    open_notebook(page, server, path)
    page.evaluate("() => { jupyterapp.commands.execute('notebook:run-all-cells'); }")


def patient(go: Path) -> str:
    return PATIENT.replace("GO", str(go))


def journal(server: FrontEnd, name: str) -> list[dict[str, Any]]:
    newest = max((server.root / "sandbox-runs" / name).glob("*/journal.jsonl"))
    whole, _, _ = newest.read_text().rpartition("\n")  # what follows the last line end is being written
    return [json.loads(line) for line in whole.splitlines()]


def actions(server: FrontEnd, name: str) -> list[str]:
    begun = ("control", "model.requested", "call.started")
    events = [event for event in journal(server, name) if event["kind"] in begun]
    return ["", *(event.get("action", event["kind"]) for event in events)]


def wait_until_held(server: FrontEnd, page: Page, name: str) -> None:
    """Until the run waits for a person, who may have said something before or since."""

    def last() -> str:
        return [kind for kind in actions(server, name) if kind != "say"][-1]

    assert eventually(page, lambda: last() == "paused"), actions(server, name)


def wait_until_noted(server: FrontEnd, page: Page, name: str, action: str) -> None:
    """Until the run knows what a person pressed: the page says so once the server does, which is earlier."""
    assert eventually(page, lambda: action in actions(server, name)), actions(server, name)


def wait_for_idle(page: Page) -> None:
    """Until no cell runs and the last word of each is in the notebook.

    While a cell runs a kernel says "idle" after each message of a widget that it answers on another thread.
    """
    status = "jupyterapp.shell.currentWidget.sessionContext.session.kernel.status"
    running = "[...document.querySelectorAll('.jp-InputPrompt')].some(one => one.textContent.includes('*'))"
    page.wait_for_function(f"() => {status} === 'idle' && !{running}")


def wait_for_sleepers(page: Page, count: int) -> None:
    """Until so many commands of `ENDLESS` run: a shell says "begun" before it starts the next command."""
    assert eventually(page, lambda: len(processes_with(MARK)) == count), processes_with(MARK)


def stop_ends_a_command_at_once(server: FrontEnd, page: Page, kernel: str = "python3") -> None:
    """Within two seconds; a machine that is busy with something else can delay anything, so once of three times."""
    taken: list[float] = []
    while not taken or (taken[-1] >= STOP_BAR and len(taken) < TRIES):
        taken.append(seconds_to_stop(server, page, f"endless{len(taken)}-{kernel}", kernel))
    print(f"{server.app}, {kernel}: stopped after {taken[-1] * 1000:.0f} ms")
    assert taken[-1] < STOP_BAR, f"stopped after {taken} seconds"


def seconds_to_stop(server: FrontEnd, page: Page, name: str, kernel: str) -> float:
    """Stop during an endless command: seconds until the card tells of the end, and nothing runs any more."""
    begin(server, page, name, ENDLESS, kernel=kernel)
    expect(page.locator(".lsn-output", has_text="begun")).to_be_visible()
    wait_for_sleepers(page, 1)
    pressed = time.monotonic()
    page.get_by_role("button", name="Stop", exact=True).first.click()
    expect(page.locator(BADGE)).to_have_text("Stopped by you")
    wait_for_sleepers(page, 0)
    taken = time.monotonic() - pressed
    wait_for_idle(page)
    (record,) = bundles(page)
    assert record["events"][-1]["stop_reason"] == "interrupted"
    assert "kept" in str(record["events"])
    return taken


def going_on(page: Page) -> Locator:
    """The button by which a paused run goes on: of the run, or of the call at which it is held."""
    return page.get_by_role("button", name="Resume").or_(page.get_by_role("button", name="Continue"))


def pause_and_say(server: FrontEnd, page: Page, kernel: str = "python3") -> None:
    name = f"patient-{kernel}"
    go = server.root / f"go-{kernel}"
    begin(server, page, name, patient(go), kernel=kernel)
    expect(page.locator(".lsn-output", has_text="two")).to_be_visible()
    page.get_by_role("button", name="Pause", exact=True).click()
    page.get_by_label("Message to the model").fill("Count in French.")
    page.get_by_label("Message to the model").press("Enter")
    expect(page.get_by_label("Message to the model")).to_have_value("")
    expect(going_on(page)).to_be_visible()
    wait_until_noted(server, page, name, "pause")
    go.touch()
    wait_until_held(server, page, name)
    going_on(page).click()
    expect(page.locator(BADGE)).to_have_text("Submitted, not checked")
    wait_for_idle(page)
    (record,) = bundles(page)
    assert "Count in French." in str(record["events"])
    assert_nothing_is_done_while_paused(record["events"])


def assert_nothing_is_done_while_paused(events: list[dict[str, Any]]) -> None:
    kinds = [event.get("action", event["kind"]) for event in events]
    held = kinds[kinds.index("paused") : len(kinds) - kinds[::-1].index("resume")]
    assert not {"model.requested", "call.started"} & set(held), held


def delays_of_steps(server: FrontEnd, page: Page, kernel: str = "python3") -> dict[str, float]:
    """Seconds from each event of a run of 30 steps to its being in the page: the step's own, then its end's.

    Without end for what the page showed only when two more steps were there.
    """
    page.add_init_script(f"addEventListener('DOMContentLoaded', {OBSERVE})")
    begin(server, page, f"many{kernel}", MANY + "\n  - calls: [{tool: submit}]\n", kernel=kernel)
    expect(page.locator(BADGE)).to_have_text("Submitted, not checked")
    wait_for_idle(page)
    seen = page.evaluate("() => window.seen")
    (record,) = bundles(page)
    delays = {}
    for event in record["events"]:
        kind = {"model.replied": "steps", "call.finished": "outputs"}.get(event["kind"])
        if kind and event["step"] <= STEPS:
            delays[f"{kind} {event['step']}"] = seen[kind].get(str(event["step"]), math.inf) - event["time"]
    assert len(delays) == 2 * STEPS
    assert min(delays.values()) > -0.05, "what is seen is what the event bears, and not something before it"
    return delays
