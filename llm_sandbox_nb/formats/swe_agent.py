"""Reader of SWE-agent's trajectories, `.traj`. No writer exists, because mini-swe-agent is the successor.

A file has the steps (`trajectory`), the messages (`history`), or both. Demonstrations are left out: these are example
conversations at the beginning of the messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llm_sandbox_nb.formats.entries import (
    CallResult,
    End,
    Message,
    ModelReply,
    Opening,
    RecordedCall,
    RecordEntry,
    first_task,
    implied_end,
)
from llm_sandbox_nb.formats.openai_messages import read_calls
from llm_sandbox_nb.formats.received import content_text, count, mapping, number, rows, text
from llm_sandbox_nb.trajectory import events as ev

_LIMITS: dict[str, ev.StopReason] = {
    "exit_cost": "cost",
    "exit_context": "tokens",
    "exit_total_execution_time": "time",
    "exit_command_timeout": "time",
}
_STEP = ("action", "observation")


def fits(content: Any) -> bool:
    if not isinstance(content, dict):
        return False
    steps, history = content.get("trajectory"), content.get("history")
    if isinstance(steps, list) and steps:
        return isinstance(steps[0], dict) and all(isinstance(steps[0].get(name), str) for name in _STEP)
    return (
        isinstance(history, list) and bool(history) and isinstance(history[0], dict) and "role" in history[0]
    )


def read(content: Any) -> list[RecordEntry]:
    root = mapping(content, "the trajectory")
    history = [message for message in rows(root, "history") if message.get("is_demo") is not True]
    entries: list[RecordEntry] = [opening := Opening()]
    steps = rows(root, "trajectory")
    if steps:
        entries += _first_messages(history)
        entries += [entry for place, step in enumerate(steps, 1) for entry in _step(place, step)]
    else:
        entries += _history(history)
    opening.task = first_task(entries)
    return [*entries, _end(mapping(root.get("info"), "info"), entries)]


def _first_messages(history: list[dict[str, Any]]) -> Iterator[Message]:
    for message in history:
        if message.get("role") == "assistant":
            return
        yield Message(text(message, "role"), content_text(message.get("content")))


def _step(place: int, step: dict[str, Any]) -> Iterator[RecordEntry]:
    action, body = text(step, "action"), text(step, "thought") or text(step, "response")
    calls = [_shell_call(f"call_{place}", action)] if action.strip() else []
    yield ModelReply(body, calls=calls)
    if calls:
        spent = number(step, "execution_time") or 0.0
        yield CallResult(calls[0].id, text(step, "observation"), seconds=spent)
    elif observation := text(step, "observation"):
        yield Message("user", observation)


def _shell_call(id: str, action: str) -> RecordedCall:
    """Convert an action, which is a shell command, to a call. The command `submit` becomes a call of `submit`."""
    if action.strip() == "submit":
        return RecordedCall(id, "submit", {})
    return RecordedCall(id, "bash", {"command": action.rstrip("\n")})


def _history(history: list[dict[str, Any]]) -> Iterator[RecordEntry]:
    waiting: list[str] = []
    for place, message in enumerate(history):
        role, body = text(message, "role"), content_text(message.get("content"))
        if role == "assistant":
            calls = _calls(message, place)
            waiting = [call.id for call in calls]
            yield ModelReply(text(message, "thought") or body, calls=calls)
        elif waiting:
            yield CallResult(waiting.pop(0), body)
        else:
            yield Message("user" if role == "tool" else role, body)


def _calls(message: dict[str, Any], place: int) -> list[RecordedCall]:
    action = text(message, "action")
    return read_calls(message, place) or ([_shell_call(f"call_{place}", action)] if action.strip() else [])


def _end(info: dict[str, Any], entries: list[RecordEntry]) -> End:
    status = info.get("exit_status")
    end = implied_end(entries)
    if isinstance(status, str) and status:
        reason: ev.StopReason = "submitted" if status.startswith("submitted") else "error"
        limit = next((limit for name, limit in _LIMITS.items() if name in status), None)
        end = End(limit or reason)
    end.answer = text(info, "submission") or end.answer
    stats = mapping(info.get("model_stats"), "model_stats")
    end.usage = ev.Usage(
        prompt_tokens=count(stats, "tokens_sent"),
        completion_tokens=count(stats, "tokens_received"),
        cost=number(stats, "instance_cost"),
    )
    return end
