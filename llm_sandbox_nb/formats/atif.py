"""Reading and writing of the Agent Trajectory Interchange Format (ATIF), which Harbor and others use.

Version 1.8 is written, and versions 1.0 to 1.8 are read. Each branch is a separate file. The step of a reply also
contains the results of its calls. A step that is also in the file of an earlier branch is marked `is_copied_context`,
so that training does not count the step twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from llm_sandbox_nb.formats.entries import (
    REST,
    CallResult,
    End,
    Message,
    ModelReply,
    Opening,
    Place,
    RecordedCall,
    RecordEntry,
    WrittenRecord,
    first_task,
    implied_end,
)
from llm_sandbox_nb.formats.received import (
    arguments,
    content_text,
    count,
    iso_time,
    mapping,
    number,
    rows,
    seconds,
    text,
)
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.version import __version__

VERSION = "ATIF-v1.8"


def fits(content: Any) -> bool:
    return isinstance(content, dict) and str(content.get("schema_version")).startswith("ATIF-v")


def write(entries: Sequence[RecordEntry], branch: str = "", copied: Collection[int] = ()) -> WrittenRecord:
    """Write the document of a branch. `copied` has the indexes of the entries that an earlier file contains too."""
    steps: list[dict[str, Any]] = []
    places: list[Place] = []
    root: dict[str, Any] = {"schema_version": VERSION}
    total = ev.Usage(cost=0.0)
    final: dict[str, Any] = {}
    for place, entry in enumerate(entries):
        shared = {"is_copied_context": True} if place in copied else {}
        match entry:
            case Opening():
                root |= _head(entry, branch)
                places.append(Place(root, "extra"))
            case Message():
                step: dict[str, Any] = {
                    "step_id": 0,
                    "source": "system" if entry.role == "system" else "user",
                    "message": entry.content,
                }
                steps.append(_dated(step, entry) | shared)
                places.append(Place(steps[-1], "extra"))
            case ModelReply():
                steps.append(_dated(_reply(entry), entry) | shared)
                places.append(Place(steps[-1], "extra"))
                total = total + (entry.usage or ev.Usage(cost=None))
            case CallResult():
                results = steps[-1].setdefault("observation", {"results": []})["results"]
                results.append({"source_call_id": entry.call_id, "content": entry.observation})
                places.append(Place(results[-1], "extra"))
            case End():
                places.append(Place(final, "extra"))
    for number_, step in enumerate(steps, 1):
        step["step_id"] = number_
    final |= _metrics(total, "total_", len(steps))
    root |= {"steps": steps, "final_metrics": final}
    return WrittenRecord(root, places)


def _head(opening: Opening, branch: str) -> dict[str, Any]:
    agent = {"name": "llm-sandbox-nb", "version": __version__}
    model = {"model_name": opening.model} if opening.model else {}
    tools = {"tool_definitions": opening.tools} if opening.tools else {}
    head = {"session_id": opening.run_id, "trajectory_id": branch} if branch else {}
    return {**head, "agent": {**agent, **model, **tools}}


def _dated(step: dict[str, Any], entry: RecordEntry) -> dict[str, Any]:
    stamp = iso_time(entry.time)
    return {**step, "timestamp": stamp} if stamp else step


def _reply(reply: ModelReply) -> dict[str, Any]:
    step: dict[str, Any] = {"step_id": 0, "source": "agent", "message": reply.text}
    if reply.model:
        step["model_name"] = reply.model
    if reply.reasoning:
        step["reasoning_content"] = reply.reasoning
    if reply.calls:
        step["tool_calls"] = [
            {"tool_call_id": call.id, "function_name": call.tool, "arguments": call.arguments or {}}
            for call in reply.calls
        ]
    if reply.usage is not None:
        step["metrics"] = _metrics(reply.usage)
    return step


def _metrics(usage: ev.Usage, prefix: str = "", steps: int | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {
        f"{prefix}prompt_tokens": usage.prompt_tokens,
        f"{prefix}completion_tokens": usage.completion_tokens,
        f"{prefix}cached_tokens": usage.cached_tokens,
    }
    if usage.cost is not None:
        found[f"{prefix}cost_usd"] = usage.cost
    return found if steps is None else {**found, "total_steps": steps}


def read(content: Any) -> list[RecordEntry]:
    root = mapping(content, "the trajectory")
    agent = mapping(root.get("agent"), "agent")
    opening = Opening(
        run_id=text(root, "session_id"),
        model=text(agent, "model_name"),
        tools=rows(agent, "tool_definitions"),
    )
    opening.rest = _rest(root)
    entries: list[RecordEntry] = [opening]
    for step in rows(root, "steps"):
        entries += _step(step)
    opening.task = first_task(entries)
    end = implied_end(entries)
    end.rest = _rest(mapping(root.get("final_metrics"), "final_metrics"))
    return [*entries, end]


def _rest(holder: dict[str, Any]) -> Any:
    return mapping(holder.get("extra"), "extra").get(REST)


def _step(step: dict[str, Any]) -> Iterator[RecordEntry]:
    body, when = content_text(step.get("message")), seconds(step.get("timestamp"))
    source, results = text(step, "source"), rows(mapping(step.get("observation"), "observation"), "results")
    if source != "agent":
        yield Message("system" if source == "system" else "user", body, time=when, rest=_rest(step))
        for result in results:
            yield Message("user", content_text(result.get("content")))
        return
    reply = ModelReply(
        body, text(step, "reasoning_content"), [_call(call) for call in rows(step, "tool_calls")], _usage(step),
        text(step, "model_name") or None, time=when, rest=_rest(step),
    )  # fmt: skip
    yield reply
    open_calls = [call.id for call in reply.calls]
    for result in results:
        observation = content_text(result.get("content"))
        call_id = text(result, "source_call_id") or next(iter(open_calls), "")
        if call_id not in open_calls:
            yield Message("user", observation)
            continue
        open_calls.remove(call_id)
        yield CallResult(call_id, observation, rest=_rest(result))


def _call(call: dict[str, Any]) -> RecordedCall:
    given, raw = arguments(call.get("arguments"))
    return RecordedCall(text(call, "tool_call_id"), text(call, "function_name"), given, raw)


def _usage(step: dict[str, Any]) -> ev.Usage | None:
    metrics = step.get("metrics")
    if metrics is None:
        return None
    metrics = mapping(metrics, "metrics")
    return ev.Usage(
        prompt_tokens=count(metrics, "prompt_tokens"),
        completion_tokens=count(metrics, "completion_tokens"),
        cached_tokens=count(metrics, "cached_tokens"),
        cost=number(metrics, "cost_usd"),
    )
