"""The card as plain text, for front ends that show nothing else and for readers of the raw file."""

from __future__ import annotations

from llm_sandbox_nb.notebook.card_decisions import of_a_call
from llm_sandbox_nb.notebook.card_page import number_words, protection_words, state_words
from llm_sandbox_nb.notebook.card_text import clip, first_line, plain, size_in_words
from llm_sandbox_nb.trajectory.trajectory import Step, Trajectory

_STEPS = 100
"""Steps listed; the ones before are counted."""


def card_text(trajectory: Trajectory, *, live: bool) -> str:
    """A few lines for each step, the files and the answer."""
    start, sandbox = trajectory.start, trajectory.sandbox
    model = f"{plain(start.model)}{' (scripted)' if start.scripted else ''}" if start else ""
    lines = [" · ".join(filter(None, [model, state_words(trajectory, live=live), *number_words(trajectory)]))]
    if sandbox:
        lines.append(protection_words(sandbox.protection))
    listed = trajectory.steps[-1:] if live else trajectory.steps[-_STEPS:]
    if hidden := len(trajectory.steps) - len(listed):
        lines.append(f"… {hidden} earlier steps")
    lines += [_step(step) for step in listed]
    lines += [f"file {plain(one.path)} ({size_in_words(one.size)})" for one in trajectory.artifacts.values()]
    if trajectory.finish and trajectory.finish.error:
        lines.append(first_line(plain(trajectory.finish.error), 500))
    if trajectory.answer:
        lines += ["", plain(clip(trajectory.answer, 4_000))]
    return "\n".join(lines)


def _step(step: Step) -> str:
    lines = [f"Step {step.number}: {first_line(plain(step.thought[:400]))}".rstrip(" :")]
    for call in step.calls:
        command = (call.arguments or {}).get("command", "")
        code = "" if call.exit_code is None else f" -> exit {call.exit_code}"
        lines.append(f"  {plain(call.tool)} {first_line(plain(str(command)[:400]), 100)}{code}")
        lines += [f"    {words}" for one in call.decisions if (words := of_a_call(one).rstrip(":"))]
    return "\n".join(lines)
