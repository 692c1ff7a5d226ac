"""One turn of a model as servers write it over HTTP: in OpenAI's own form, and in many others."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

Chunk = dict[str, Any]
Chunks = list[Chunk]


@dataclass(frozen=True)
class Said:
    """What the model says in one turn."""

    text: str
    calls: tuple[tuple[str, dict[str, Any]], ...]
    reasoning: str = ""


FIRST = Said(
    "I look at “a b”.\n",
    (("execute_bash", {"command": "ls 'a b' && echo \"é\u2028\x85\" # {}"}),),
    "First I think:\nis it there?",
)
LAST = Said("Done.", (("submit", {}),))
TWO_CALLS = Said(
    "Two at once.",
    (("execute_bash", {"command": "ls"}), ("str_replace_editor", {"command": "view", "path": "/a"})),
)
TWO_LOOKS = Said("Two looks.", (("execute_bash", {"command": "ls"}), ("execute_bash", {"command": "pwd"})))
USAGE = {"prompt_tokens": 1000, "completion_tokens": 50, "total_tokens": 1050}


Writer = Callable[[Said, int], bytes]
"""Gives the bytes of a turn, which has a number."""


# --- one reply, in OpenAI's own form ---


def pieces(text: str, size: int = 5) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def call_id(number: int, index: int) -> str:
    return f"call_{number}_{index}"


def chunk(delta: dict[str, Any], finish: str | None = None) -> Chunk:
    return {
        "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }  # fmt: skip


def stream(said: Said, number: int) -> Chunks:
    """The chunks of a turn; the last two have the finish_reason and the usage."""
    found = [chunk({"role": "assistant", "content": ""})]
    found += [chunk({"reasoning_content": piece}) for piece in pieces(said.reasoning)]
    found += [chunk({"content": piece}) for piece in pieces(said.text)]
    for index, (name, arguments) in enumerate(said.calls):
        head = {"index": index, "id": call_id(number, index), "type": "function"}
        found.append(chunk({"tool_calls": [head | {"function": {"name": name, "arguments": ""}}]}))
        for piece in pieces(json.dumps(arguments)):
            found.append(chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]}))
    found.append(chunk({}, "tool_calls"))
    return [*found, chunk({}) | {"choices": [], "usage": USAGE}]


def message(said: Said, number: int) -> dict[str, Any]:
    """The message of a turn that is not streamed."""
    calls = [
        {
            "id": call_id(number, index), "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for index, (name, arguments) in enumerate(said.calls)
    ]  # fmt: skip
    reasoning = {"reasoning_content": said.reasoning} if said.reasoning else {}
    return {"role": "assistant", "content": said.text, "tool_calls": calls} | reasoning


def completion(said: Said, number: int, change: Callable[[dict[str, Any]], None] | None = None) -> Chunk:
    told = message(said, number)
    if change:
        change(told)
    choice = {"index": 0, "message": told, "finish_reason": "tool_calls"}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m"}
    return head | {"choices": [choice], "usage": USAGE}


# --- how it is written ---


def dumped(value: Any, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=False, **options)


def events(
    chunks: Iterable[Chunk],
    form: Callable[[str], str] = "data: {}\n\n".format,
    end: str = "data: [DONE]\n\n",
) -> bytes:
    return ("".join(form(dumped(one)) for one in chunks) + end).encode()


def framed(form: Callable[[str], str] = "data: {}\n\n".format, end: str = "data: [DONE]\n\n") -> Writer:
    return lambda said, number: events(stream(said, number), form, end)


def changed(change: Callable[[Chunks], Chunks | None], **how: Any) -> Writer:
    """A stream whose chunks `change` has changed, in place or by returning others."""

    def write(said: Said, number: int) -> bytes:
        chunks = stream(said, number)
        return events(change(chunks) or chunks, **how)

    return write


def deltas(change: Callable[[dict[str, Any]], Any], **how: Any) -> Writer:
    def each(chunks: Chunks) -> None:
        for one in chunks:
            for choice in one["choices"]:
                change(choice["delta"])

    return changed(each, **how)


def called(change: Callable[[dict[str, Any]], Any]) -> Writer:
    def each(delta: dict[str, Any]) -> None:
        for call in delta.get("tool_calls", ()):
            change(call)

    return deltas(each)


def whole_calls(change: Callable[[list[dict[str, Any]]], Any] = list) -> Writer:
    """A stream that has all calls in one chunk, with their list changed: in place, or another returned."""

    def each(said: Said, number: int) -> bytes:
        told = message(said, number)["tool_calls"]
        calls = [one | {"index": index} for index, one in enumerate(told)]
        calls = change(calls) or calls
        kept = [one for one in stream(said, number) if "tool_calls" not in str(one["choices"])]
        return events([*kept, chunk({"tool_calls": calls}), *stream(said, number)[-2:]])

    return each


def whole(change: Callable[[dict[str, Any]], None] | None = None, **options: Any) -> Writer:
    return lambda said, number: dumped(completion(said, number, change), **options).encode()


def as_text(form: Callable[[Said], str], size: int = 5) -> Writer:
    """A stream that has everything in its content, as `form` writes it."""

    def write(said: Said, number: int) -> bytes:
        kept = [
            chunk({"role": "assistant"}),
            *[chunk({"content": piece}) for piece in pieces(form(said), size)],
        ]
        return events([*kept, chunk({}, "stop"), stream(said, number)[-1]])

    return write


# --- what the habits do to a reply ---


def drop(*names: str) -> Callable[[dict[str, Any]], None]:
    def change(found: dict[str, Any]) -> None:
        for name in names:
            found.pop(name, None)

    return change


def tops(change: Callable[[Chunk], Any], **how: Any) -> Writer:
    def each(chunks: Chunks) -> None:
        for one in chunks:
            change(one)

    return changed(each, **how)


def choices(change: Callable[[dict[str, Any]], Any], **how: Any) -> Writer:
    def each(one: Chunk) -> None:
        for choice in one["choices"]:
            change(choice)

    return tops(each, **how)


def finish(value: Any, **how: Any) -> Writer:
    def change(choice: dict[str, Any]) -> None:
        if choice["finish_reason"]:
            choice["finish_reason"] = value

    return choices(change, **how)


def renamed(old: str, *new: str) -> Callable[[dict[str, Any]], None]:
    def change(found: dict[str, Any]) -> None:
        if old in found:
            value = found.pop(old)
            found.update(dict.fromkeys(new, value))

    return change


def parts(found: dict[str, Any]) -> None:
    if "content" in found:
        found["content"] = [{"type": "text", "text": found["content"]}]


def thinking_parts(found: dict[str, Any]) -> None:
    parts(found)
    if "reasoning_content" in found:
        said = [{"type": "text", "text": found.pop("reasoning_content")}]
        found["content"] = [{"type": "thinking", "thinking": said}]


def two_piece_names(chunks: Chunks) -> Chunks:
    """`execute_bash` comes as `execute` and `_bash`."""
    found: Chunks = []
    for one in chunks:
        found.append(one)
        for choice in one["choices"]:
            for call in choice["delta"].get("tool_calls", ()):
                if name := call["function"].get("name"):
                    call["function"]["name"] = name[: len(name) // 2]
                    rest = {"index": call["index"], "function": {"name": name[len(name) // 2 :]}}
                    found.append(chunk({"tool_calls": [rest]}))
    return found


def growing_names(chunks: Chunks) -> Chunks:
    """`execute`, then `execute_bash`: the name so far, each time."""
    found: Chunks = []
    for one in chunks:
        for choice in one["choices"]:
            for call in choice["delta"].get("tool_calls", ()):
                if name := call["function"].get("name"):
                    start = {"name": name[:3], "arguments": ""}
                    found.append(chunk({"tool_calls": [call | {"function": start}]}))
        found.append(one)
    return found


def repeated(*names: str) -> Callable[[Chunks], None]:
    def change(chunks: Chunks) -> None:
        known: dict[int, dict[str, Any]] = defaultdict(dict)
        for one in chunks:
            for choice in one["choices"]:
                for call in choice["delta"].get("tool_calls", ()):
                    state = known[call["index"]]
                    for name in names:
                        place = call["function"] if name == "name" else call
                        place[name] = state.setdefault(name, place.get(name))

    return change


def objects(calls: Iterable[dict[str, Any]]) -> None:
    for call in calls:
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])


def in_calls(change: Callable[[dict[str, Any]], Any]) -> Callable[[list[dict[str, Any]]], None]:
    def each(calls: list[dict[str, Any]]) -> None:
        for call in calls:
            change(call)

    return each


def in_functions(change: Callable[[dict[str, Any]], Any]) -> Callable[[list[dict[str, Any]]], None]:
    return in_calls(lambda call: change(call["function"]))


def set_to(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda found: found.update(fields)


def in_message(change: Callable[[list[dict[str, Any]]], Any]) -> Callable[[dict[str, Any]], None]:
    return lambda told: change(told["tool_calls"])


def arguments_together(said: Said, number: int) -> bytes:
    (name, _), *_ = said.calls
    whole = "".join(json.dumps(arguments) for _, arguments in said.calls)
    call = {
        "index": 0,
        "id": call_id(number, 0),
        "type": "function",
        "function": {"name": name, "arguments": whole},
    }
    return events([chunk({"content": said.text}), chunk({"tool_calls": [call]}, "tool_calls")])


def old_form(delta: dict[str, Any]) -> None:
    for call in delta.pop("tool_calls", ()):
        delta["function_call"] = call["function"]


def flat(call: dict[str, Any]) -> None:
    call.update(call.pop("function"))


def together(said: Said, number: int) -> bytes:
    told = message(said, number)
    calls = [one | {"index": index} for index, one in enumerate(told.pop("tool_calls"))]
    return events([chunk(told | {"tool_calls": calls}, "tool_calls") | {"usage": USAGE}])


def with_message_at_the_end(said: Said, number: int) -> bytes:
    last = completion(said, number)
    return events([*stream(said, number)[:-2], last])


def hermes(said: Said, close: str = "\n</tool_call>") -> str:
    calls = [
        f"<tool_call>\n{dumped({'name': name, 'arguments': arguments})}{close}"
        for name, arguments in said.calls
    ]
    return said.text + "\n" + "\n".join(calls)


def qwen_coder(said: Said) -> str:
    def one(name: str, arguments: dict[str, Any]) -> str:
        values = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
        return f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"

    return said.text + "\n" + "\n".join(one(*call) for call in said.calls)


def glm(said: Said) -> str:
    def one(name: str, arguments: dict[str, Any]) -> str:
        values = "".join(
            f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in arguments.items()
        )
        return f"<tool_call>{name}\n{values}</tool_call>"

    return said.text + "\n" + "\n".join(one(*call) for call in said.calls)


def mistral(said: Said) -> str:
    calls = [{"name": name, "arguments": arguments} for name, arguments in said.calls]
    return f"{said.text}[TOOL_CALLS]{dumped(calls)}"


def think(said: Said, opening: str = "<think>", closing: str = "</think>") -> str:
    return f"{opening}\n{said.reasoning}\n{closing}\n\n" if said.reasoning else ""


def thinking_in_text(form: Callable[[Said], str], size: int = 5) -> Writer:
    def write(said: Said, number: int) -> bytes:
        calls = [one for one in stream(said, number) if "tool_calls" in str(one["choices"])]
        content = [chunk({"content": piece}) for piece in pieces(form(said) + said.text, size)]
        return events([*content, *calls, stream(said, number)[-1]])

    return write
