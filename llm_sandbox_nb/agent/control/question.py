"""Question at a pause, with the call, its dangers, and the reason of the pause. The card uses the same words."""

from __future__ import annotations

import json

from llm_sandbox_nb.agent.control.danger import dangers_of
from llm_sandbox_nb.agent.control.decisions import Held
from llm_sandbox_nb.agent.tools.toolbox import call_view, ends_run
from llm_sandbox_nb.trajectory.protection import ISOLATION_WORDS, is_isolated
from llm_sandbox_nb.trajectory.trajectory import Trajectory

_REASONS = {
    "step": "Paused before each call.",
    "breakpoint": "A breakpoint stopped the run here.",
    "pause": "You paused the run.",
}


def question(held: Held | None, trajectory: Trajectory | None = None) -> str:
    """Return the question for a person at a pause. Empty if no call waits.

    If `trajectory` is given, the question names the place where the call would run.
    """
    if held is None:
        return ""
    why = " ".join(filter(None, (_REASONS.get(held.reason, ""), held.text)))
    if held.at == "observation":
        title = f"Step {held.step}: the model has not read the result of {held.tool} yet."
        if held.hosts:
            host = held.hosts[0]
            why += f" To allow it, write `change allow_once={host}` or `change allow={host}`, then continue."
        return f"{title}\n{why}\nWhat the model will read:\n{held.observation}".replace("\n\n", "\n", 1)
    command = call_view(held.tool).command
    text = held.arguments.get(command) if command else None
    dangers, outside = (
        dangers_of(text, lambda path: _is_known(path, trajectory)) if isinstance(text, str) else ([], False)
    )
    title = "Submit?" if ends_run(held.tool) else f"Run this {'command' if command else 'call'}?"
    if call_view(held.tool).headline:
        title = "Make this edit?"
    lines = [
        " ".join(filter(None, (title, *dangers, _place(held, trajectory, outside)))),
        f"Step {held.step}. {why}".strip(),
    ]
    if isinstance(text, str) and set(held.arguments) == {command}:
        lines.append(text)
    else:
        lines += [
            held.tool,
            json.dumps(dict(held.arguments), ensure_ascii=False, indent=1)
            if held.arguments
            else held.raw_arguments,
        ]
    return "\n".join(lines)


def _place(held: Held, trajectory: Trajectory | None, outside: bool) -> str:
    """Describe the place where the call would run, and the effect of a rewind."""
    tool = held.toolbox.get(held.tool)
    if tool is not None and tool.outside:
        return "Outside the sandbox; a rewind does not undo it."
    if trajectory is None or trajectory.sandbox is None:
        return ""
    protection = trajectory.sandbox.protection
    isolation, isolated = str(protection.get("isolation")), is_isolated(protection)
    if not isolated:
        place = "Not isolated: it runs on this machine"
    elif isolation in ISOLATION_WORDS:
        kinds = {"none": "sandbox, no network", "allow": "sandbox with a list of allowed hosts"}
        network = kinds.get(str(protection.get("network")), "sandbox with network")
        place = f"{ISOLATION_WORDS[isolation]} {network}"
    else:
        place = ""
    rewind = ""
    if outside:
        rewind = "a rewind does not undo what it does elsewhere"
    elif trajectory.files is not None and isolated:
        rewind = "you can rewind afterwards"
    rest = "; ".join(filter(None, (place, rewind)))
    return f"{rest[:1].upper()}{rest[1:]}." if rest else ""


def _is_known(path: str, trajectory: Trajectory | None) -> bool:
    """Return True if `path` is an input file of the run, or a file that a call has written."""
    if trajectory is None:
        return False
    end = f"/{path.removeprefix('./').lstrip('/')}"
    inputs = [name for name in (trajectory.start.inputs if trajectory.start else ()) if isinstance(name, str)]
    changes = (change for step in trajectory.steps for call in step.calls for change in call.changes)
    known = [*inputs, *trajectory.artifacts, *(change.path for change in changes if change.kind != "deleted")]
    return any(f"/{name}".endswith(end) for name in known)
