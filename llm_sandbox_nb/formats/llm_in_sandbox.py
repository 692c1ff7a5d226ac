"""Reading and writing of `trajectory.json`, the format of the LLM-in-Sandbox paper's package.

Every run folder gets such a file next to its journal. As in the paper's package, each call becomes a record. A reply
with several calls gives several records, of which only the first has the thought. The records are under the key `steps`
in files of the package's command `run`, and under `trajectory` in files of its command `benchmark`. Files of
`benchmark` also have `agent_answer`. Like the package, `save_responses` writes a file for each request and each reply.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from llm_sandbox_nb.formats import received
from llm_sandbox_nb.known_keys import public_address
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.messages import tool_message
from llm_sandbox_nb.trajectory.older import steps_remaining
from llm_sandbox_nb.trajectory.run_folder import SEED
from llm_sandbox_nb.trajectory.trajectory import Call, Step, Trajectory
from llm_sandbox_nb.trajectory.whole_file import write_whole

RESPONSES = "litellm"
"""Name of the folder with requests and replies in the folder of a run."""
_RECORDS = ("steps", "trajectory")
_EXIT = re.compile(r"\s*Exit code: *(?:Error: Exit code *)?(-?\d+)[^\n]*\n?")
_LABEL = re.compile(r"Execution output of \\?\[[^\]\n]*\]:\n?")
_STREAMS = re.compile(r"\\?\[STDOUT\]\n(.*?)(?:\n?\\?\[STDERR\]\n(.*))?", re.DOTALL)
_COUNTER = re.compile(r"\s*\[?Steps remaining: -?\d+\]?[ \t]*(?:\n[^\n]*)?\s*\Z", re.IGNORECASE)
_COUNTER_CHARACTERS = 400
"""Number of characters at the end of a text that are searched for the counter of remaining steps."""
_REFUSED = re.compile(r"\s*(?:ERROR\b|Error\b[:!]?|Unknown command:)")
_SHELLS = ("execute_bash", "bash")
NEW_SHELLS = {"shell": "of each call"}
"""Recorded settings of a run with a new shell for each command, as in the paper's package."""
_TIMEOUT_TEXT = "The command took too long"


def to_seed(trajectory: Trajectory) -> dict[str, Any]:
    """Return the trajectory in the form of the paper's package."""
    records = [record for step in trajectory.steps if step.replied for record in _records(step)]
    for number, record in enumerate(records, 1):
        record["metadata"]["step"] = number
    return {
        "problem_statement": trajectory.start.task if trajectory.start else "",
        "steps": records,
        "metadata": {"total_steps": len(records)},
    }


def dump_seed(trajectory: Trajectory) -> str:
    return json.dumps(to_seed(trajectory), indent=2, ensure_ascii=False)


def write_seed(trajectory: Trajectory, folder: Path) -> Path:
    """Write `trajectory.json` into `folder` atomically."""
    return write_whole(folder / SEED, dump_seed(trajectory).encode())


def _records(step: Step) -> Iterator[dict[str, Any]]:
    calls: list[Call | None] = [*step.calls] or [None]
    for number, call in enumerate(calls):
        yield {
            "thought": step.thought if number == 0 else "",
            "reasoning_content": step.reasoning if number == 0 else "",
            "action": {
                "function": call.tool if call else "",
                "parameters": (call.arguments or {}) if call else {},
            },
            # The paper's package writes the number of remaining steps into messages, but not into its file.
            "observation": call.body if call else step.nudge.removesuffix(steps_remaining(step.nudge)),
            "metadata": {"step": 0, "exec_time": step.model_time if number == 0 else 0.0},
        }


def is_seed(content: Any) -> bool:
    """Return True if parsed JSON contains the records of a run."""
    return isinstance(content, dict) and any(isinstance(content.get(key), list) for key in _RECORDS)


def from_seed(content: Any, name: str) -> Trajectory:
    """Convert parsed JSON to a trajectory. `name` becomes the run's id. Raise ValueError for other content."""
    try:
        return Trajectory(_events(content, name))
    except KeyError as error:
        raise ValueError(f"it has no {error.args[0]}") from error
    except (TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"its parts have wrong types: {error}") from error


def _events(content: dict[str, Any], name: str) -> Iterator[ev.Event]:
    steps = next((content[key] for key in _RECORDS if key in content), None)
    if steps is None:
        raise KeyError(_RECORDS[0])
    settings = NEW_SHELLS if any(map(_is_by_package, steps)) else {}
    yield ev.RunStarted(run_id=name, task=content["problem_statement"], model="", settings=settings)
    yield ev.MessageAdded(message={"role": "user", "content": content["problem_statement"]})
    for number, record in enumerate(steps, 1):
        yield from _step_events(number, record)
    submitted = bool(steps) and steps[-1]["action"].get("function") in ("submit", "finish")
    if submitted:
        answer = content.get("agent_answer") or None
        yield ev.RunFinished(stop_reason="submitted", steps=len(steps), answer=answer)


def _is_by_package(record: dict[str, Any]) -> bool:
    """Return True if the paper's package wrote a record. Only that package puts a label before a command's output."""
    if record["action"].get("function") not in _SHELLS:
        return False
    found = _EXIT.match(record["observation"])
    return bool(_LABEL.match(record["observation"], found.end() if found else 0))


def _step_events(number: int, record: dict[str, Any]) -> Iterator[ev.Event]:
    tool = record["action"].get("function") or ""
    arguments = record["action"].get("parameters") or {}
    raw, call_id = json.dumps(arguments, ensure_ascii=False), f"call_{number}"
    function = {"name": tool, "arguments": raw}
    calls = [{"id": call_id, "type": "function", "function": function}] if tool else []
    message = {"role": "assistant", "content": record["thought"]} | ({"tool_calls": calls} if calls else {})
    yield ev.ModelReplied(
        step=number,
        message=message,
        reasoning=record.get("reasoning_content") or None,
        model_time=received.number(received.mapping(record.get("metadata"), "metadata"), "exec_time") or 0.0,
    )
    if not tool:
        yield ev.MessageAdded(message={"role": "user", "content": record["observation"]})
        return
    yield ev.CallProposed(step=number, call_id=call_id, tool=tool, raw_arguments=raw, arguments=arguments)
    yield ev.CallStarted(step=number, call_id=call_id, tool=tool, arguments=arguments)
    facts = outcome(tool, record["observation"])
    counter = _COUNTER.search(record["observation"][-_COUNTER_CHARACTERS:])
    yield ev.CallFinished(
        step=number,
        call_id=call_id,
        observation=record["observation"],
        after=counter[0] if counter else "",
        **facts,
    )


def outcome(tool: str, observation: str) -> dict[str, Any]:
    """Parse the outcome of a call from the text of its observation, because the format has no fields for the outcome.

    The outcome has the keys `exit_code`, `timed_out`, `error`, `stdout` and `stderr`, as far as the text shows them.
    """
    facts: dict[str, Any] = {}
    rest = observation
    if found := _EXIT.match(rest):
        rest, code = rest[found.end() :], int(found[1])
        if code >= 0:
            facts["exit_code"] = code
    labelled = _LABEL.match(rest)
    rest = rest[labelled.end() :] if labelled else rest
    if not found:
        refused = _REFUSED.match(rest)
        return {"error": "failed" if tool in _SHELLS else "editor"} if refused else {}
    streams = _STREAMS.fullmatch(rest)
    facts["stdout"] = streams[1] if streams else rest
    facts["stderr"] = (streams[2] or "") if streams else ""
    # The paper's package writes the exit code -1 for a time-out, and for its own failures.
    if "exit_code" not in facts:
        facts |= {"timed_out": True} if _TIMEOUT_TEXT in facts["stdout"][:200] else {"error": "failed"}
    return facts


def save_responses(trajectory: Trajectory, folder: Path, api_base: str | None = None) -> None:
    """Write `request_001.json`, `response_001.json`, ... to `folder`, a pair for each reply, like the paper's package.

    `api_base` is the address of the model's server, which the trajectory does not contain.
    """
    folder.mkdir(parents=True, exist_ok=True)
    messages: list[dict[str, Any]] = []
    settings: dict[str, Any] = {}
    number = 0
    for event in trajectory.events:
        match event:
            case ev.ModelRequested():
                settings = event.settings
            case ev.ModelReplied():
                number += 1
                request = {
                    "call_id": number,
                    "model": trajectory.start.model if trajectory.start else "",
                    "api_base": api_base and public_address(api_base),
                    "messages": messages,
                    "extra_params": {key: settings[key] for key in ("extra_body",) if key in settings},
                    "kwargs": {key: value for key, value in settings.items() if key != "extra_body"},
                }
                _write(folder / f"request_{number:03}.json", request)
                response = {"call_id": number, "response": _chat_completion(event)}
                _write(folder / f"response_{number:03}.json", response)
        messages.extend(_messages(event))


def _chat_completion(event: ev.ModelReplied) -> dict[str, Any]:
    """Return a reply in the form of OpenAI's API, as LiteLLM does."""
    usage = event.usage or ev.Usage()
    counts = {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens}
    message = {"tool_calls": None, "function_call": None} | event.message
    if event.reasoning:
        message["reasoning_content"] = event.reasoning
    return {
        "id": event.response_id,
        "created": int(event.time),
        "model": event.response_model,
        "object": "chat.completion",
        "system_fingerprint": None,
        "choices": [{"finish_reason": event.finish_reason, "index": 0, "message": message}],
        "usage": {**counts, "total_tokens": sum(counts.values())},
    }


def _messages(event: ev.Event) -> list[dict[str, Any]]:
    match event:
        case ev.MessageAdded() | ev.ModelReplied():
            return [event.message]
        case ev.CallFinished():
            return [tool_message(event.call_id, event.observation)]
    return []


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False), encoding="utf-8")
