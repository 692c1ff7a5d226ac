"""Model servers with a habit each: how they write the same two turns, and what they refuse."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from typing import Any

from variant_replies import (
    FIRST,
    TWO_CALLS,
    TWO_LOOKS,
    USAGE,
    Said,
    Writer,
    arguments_together,
    as_text,
    called,
    changed,
    choices,
    completion,
    deltas,
    drop,
    dumped,
    events,
    finish,
    flat,
    framed,
    glm,
    growing_names,
    hermes,
    in_calls,
    in_functions,
    in_message,
    message,
    mistral,
    objects,
    old_form,
    parts,
    qwen_coder,
    renamed,
    repeated,
    set_to,
    think,
    thinking_in_text,
    thinking_parts,
    together,
    tops,
    two_piece_names,
    whole,
    whole_calls,
    with_message_at_the_end,
)

Refusal = tuple[int, Any]
"""Status and body of a refusal."""


@dataclass(frozen=True)
class Variant:
    """A server. `write` gives the bytes of a turn; `refuse` looks at a request first."""

    name: str
    write: Writer = field(default=framed())
    type: str = "text/event-stream"
    refuse: dict[str, Refusal] = field(default_factory=dict)
    """What is answered to a request that has this field."""
    first_answer: tuple[int, str, bytes] | None = None
    """What the first request gets instead: status, type and body."""
    headers: dict[str, str] = field(default_factory=dict)
    first: Said = FIRST
    length: bool = True
    """Whether the length of the body is told; else closing the connection is its end."""
    stays_open: bool = False
    """Whether the connection stays open after the body, without a sign of its end."""
    single_bytes: bool = False
    reasoning: bool = True
    """Whether the reasoning can be told apart."""
    requests: int = 2
    """How many requests the two turns take."""


def pydantic(name: str) -> dict[str, Any]:
    return {
        "type": "extra_forbidden",
        "loc": ["body", name],
        "msg": "Extra inputs are not permitted",
        "input": 1,
    }


def told(text: str, status: int = 400, **more: Any) -> Refusal:
    return status, {"error": {"message": text, "type": "invalid_request_error"} | more}


STREAM_OPTIONS: dict[str, Refusal] = {
    "pydantic, as a list of details": (422, {"detail": [pydantic("stream_options")]}),
    "pydantic, as vLLM once told it": (
        400, {"object": "error", "message": str([pydantic("stream_options")]), "code": 400, "param": None}
    ),
    "pydantic, by its path": told("1 validation error\nstream_options\n  Extra inputs are not permitted"),
    "a path with a slash": told("Validation error at #/stream_options: Extra inputs are not permitted"),
    "a path with dots": told("stream_options.include_usage: Extra inputs are not permitted"),
    "OpenAI's words": told("Unrecognized request argument supplied: stream_options"),
    "OpenAI's words, with the parameter": told(
        "Unknown parameter: 'stream_options'.", param="stream_options", code="unknown_parameter"
    ),
    "the parameter, with a part of it": told("Not supported.", param="stream_options.include_usage"),
    "Rust's words, with a list of fields": told(
        "Failed to deserialize the JSON body: unknown field `stream_options`, expected one of `messages`, "
        "`temperature`, `top_p`, `max_tokens`, `stream` at line 1 column 99", 422
    ),
    "Go's words": told('json: unknown field "stream_options"'),
    "JSON schema's words": told("Additional properties are not allowed ('stream_options' was unexpected)"),
    "a property that is not supported": told("property 'stream_options' is unsupported"),
    "a sentence": told("stream_options is not supported by this endpoint."),
    "an invalid field": told("The field `stream_options` is not allowed here."),
    "Python's error, with status 500": told(
        "Completions.create() got an unexpected keyword argument 'stream_options'", 500
    ),
    "plain text": (400, "stream_options is not a valid parameter"),
}  # fmt: skip

VARIANTS = [
    Variant("OpenAI's own form"),
    # a stream was asked for, and none comes
    Variant("ignores stream", whole(), "application/json"),
    Variant("ignores stream, over many lines", whole(indent=2), "application/json"),
    Variant("ignores stream, says it is a stream", whole()),
    Variant("ignores stream, over many lines, says it is a stream", whole(indent=2)),
    Variant("ignores stream, says it is text", whole(), "text/plain; charset=utf-8", length=False),
    Variant(
        "ignores stream, compressed", lambda *said: gzip.compress(whole()(*said)), "application/json",
        headers={"content-encoding": "gzip"},
    ),
    Variant("ignores stream, in a list", lambda *said: b"[" + whole()(*said) + b"]", "application/json"),
    Variant(
        "ignores stream, bare",
        lambda *said: dumped({"choices": [{"message": message(*said)}]}).encode(), "application/json",
    ),
    Variant("ignores stream, arguments as an object", whole(in_message(objects)), "application/json"),
    Variant("ignores stream, content as parts", whole(parts), "application/json"),
    Variant(
        "ignores stream, no ids", whole(in_message(in_calls(drop("id", "type")))), "application/json"
    ),
    Variant(
        "ignores stream, two calls", whole(), "application/json", first=TWO_CALLS
    ),
    Variant(
        "ignores stream, one event with the message", lambda *said: events([completion(*said)])
    ),
    Variant("ignores stream, [DONE] after it", lambda *said: whole()(*said) + b"\n\ndata: [DONE]\n\n"),
    Variant(
        "ignores stream, over many lines, [DONE] after it",
        lambda *said: whole(indent=2)(*said) + b"\ndata: [DONE]\n\n",
    ),
    Variant("everything in one chunk", together),
    Variant("the whole message again at the end", with_message_at_the_end),
    # how events are written
    Variant("lines end in CR LF", framed("data: {}\r\n\r\n".format, "data: [DONE]\r\n\r\n")),
    Variant("lines end in CR", framed("data: {}\r\r".format, "data: [DONE]\r\r")),
    Variant("no blank after data:", framed("data:{}\n\n".format, "data:[DONE]\n\n")),
    Variant("no empty line between events", framed("data: {}\n".format, "data: [DONE]\n")),
    Variant("many blanks", framed("data:   {}   \n\n\n\n".format, "data:  [DONE]  \n\n")),
    Variant("comments between events", framed(": keep-alive\n\ndata: {}\n\n: OPENROUTER PROCESSING\n\n".format)),
    Variant("names, ids and times of events", framed("event: message\nid: 7\nretry: 10\ndata: {}\n\n".format)),
    Variant("data that is no JSON between events", framed("data: ping\n\ndata: {}\n\n".format)),
    Variant(
        "events of other kinds",
        framed('event: tool.progress\ndata: {{"tool": "x", "status": "running"}}\n\ndata: {}\n\n'.format),
    ),
    Variant("empty data between events", framed("data:\n\ndata: {}\n\n".format)),
    Variant(
        "the JSON of an event over many lines",
        tops(lambda one: None, form=lambda text: "".join(
            f"data: {line}\n" for line in dumped(json.loads(text), indent=1).split("\n")) + "\n"),
    ),
    Variant("a byte order mark", lambda *said: b"\xef\xbb\xbf" + framed()(*said)),
    Variant("lines of JSON", framed("{}\n".format, ""), "application/x-ndjson"),
    Variant("lines of JSON with an end", framed("{}\n".format, "[DONE]\n"), "application/json"),
    Variant("no [DONE]", framed(end="")),
    Variant("no line end after the last event", framed(end="data: [DONE]")),
    Variant("single bytes", single_bytes=True, length=False),
    Variant("compressed", lambda *said: gzip.compress(framed()(*said)), headers={"content-encoding": "gzip"}),
    Variant("the connection stays open after [DONE]", stays_open=True, length=False),
    Variant("says that the stream is JSON", type="application/json"),
    Variant("no content type", type=""),
    Variant("no length", length=False),
    # fields around the reply
    Variant("no ids, models and times", tops(drop("id", "object", "created", "model"))),
    Variant("ids and models null", tops(set_to(id=None, object=None, created=None, model=None))),
    Variant("ids that are numbers", tops(set_to(id=7, created="1"))),
    Variant(
        "a first chunk without choices",
        changed(lambda chunks: [{"id": "", "choices": [], "prompt_filter_results": []}, *chunks]),
    ),
    Variant("a chunk whose choices are null", changed(lambda chunks: [chunks[0] | {"choices": None}, *chunks])),
    Variant("a chunk that has no choices", changed(lambda chunks: [{"id": "x", "status": "queued"}, *chunks])),
    Variant("no index of choices", choices(drop("index"))),
    Variant("logprobs and more", choices(set_to(logprobs=None, matched_stop=None, content_filter_results={}))),
    Variant("a null delta at the end", choices(lambda one: one["finish_reason"] and one.update(delta=None))),
    Variant("no delta at the end", choices(lambda one: one["finish_reason"] and one.pop("delta"))),
    Variant("a role in every delta", deltas(set_to(role="assistant"))),
    Variant("a role that is null", deltas(set_to(role=None))),
    Variant("a role that is empty", deltas(set_to(role=""))),
    Variant(
        "every field in every delta",
        deltas(lambda one: one.update({
            "content": None, "reasoning_content": None, "tool_calls": None, "function_call": None, "refusal": None,
        } | one)),
    ),
    Variant("empty lists of calls", deltas(lambda one: one.setdefault("tool_calls", []))),
    Variant("usage in every chunk", tops(set_to(usage=USAGE))),
    Variant("usage that is null", tops(set_to(usage=None))),
    Variant("no usage", changed(lambda chunks: chunks[:-1])),
    Variant("usage with gaps", tops(set_to(usage={"prompt_tokens": None, "completion_tokens": 3.0}))),
    Variant(
        "usage with null details",
        tops(set_to(usage=USAGE | {"prompt_tokens_details": None, "completion_tokens_details": {"x": None}})),
    ),
    # how it ends
    Variant("no finish_reason", finish(None)),
    Variant("no finish_reason, not even the field", choices(drop("finish_reason"))),
    Variant("no finish_reason and no [DONE]", finish(None, end=""), requests=3),
    Variant("finish_reason is empty until the end", choices(
        lambda one: one.update(finish_reason=one["finish_reason"] or ""))),
    Variant("finish_reason is the text null until the end", choices(
        lambda one: one.update(finish_reason=one["finish_reason"] or "null"))),
    Variant("finish_reason stop in every chunk", choices(set_to(finish_reason="stop"))),
    *[
        Variant(f"finish_reason {value}", finish(value))
        for value in ("stop", "eos_token", "end_turn", "tool_use", "function_call", "STOP", "recitation?", 1)
    ],
    # text and reasoning
    Variant("content as parts", deltas(parts)),
    Variant("content as parts, thinking among them", deltas(thinking_parts)),
    Variant("content as one part", deltas(
        lambda one: "content" in one and one.update(content={"type": "text", "text": one["content"]}))),
    Variant("content as a list of texts", deltas(
        lambda one: "content" in one and one.update(content=[one["content"]]))),
    Variant("reasoning in `reasoning`", deltas(renamed("reasoning_content", "reasoning"))),
    Variant("reasoning in `thinking`", deltas(renamed("reasoning_content", "thinking"))),
    Variant("reasoning in two fields", deltas(renamed("reasoning_content", "reasoning_content", "reasoning"))),
    Variant("reasoning in details", deltas(
        lambda one: "reasoning_content" in one and one.update(
            reasoning_details=[{"type": "reasoning.text", "text": one.pop("reasoning_content")}]))),
    Variant("reasoning as parts", deltas(
        lambda one: "reasoning_content" in one and one.update(
            reasoning_content=[{"type": "text", "text": one["reasoning_content"]}]))),
    Variant("<think> in the content", thinking_in_text(think)),
    Variant("<think> in the content, letter by letter", thinking_in_text(think, 1)),
    Variant("<think> in the content, in one piece", thinking_in_text(think, 10_000)),
    Variant("</think> without its start", thinking_in_text(lambda said: think(said, ""))),
    Variant("[THINK] in the content", thinking_in_text(lambda said: think(said, "[THINK]", "[/THINK]"))),
    Variant("<thinking> in the content", thinking_in_text(lambda said: think(said, "<thinking>", "</thinking>"))),
    Variant("ignores stream, <think> in the content", whole(
        lambda one: one.update(content="<think>" + one.pop("reasoning_content", "") + "</think>" + one["content"])
    ), "application/json"),
    # calls
    Variant("a name in two pieces", changed(two_piece_names)),
    Variant("a name that grows", changed(growing_names)),
    Variant("a name in every piece", changed(repeated("name"))),
    Variant("an id in every piece", changed(repeated("id"))),
    Variant("an id, a type and a name in every piece", changed(repeated("id", "type", "name"))),
    Variant("another id in every piece", called(
        lambda call: call.update(id=f"c{id(call)}", function={"name": ""} | call["function"])), first=TWO_CALLS),
    Variant("the arguments of two calls as those of one", arguments_together, first=TWO_LOOKS),
    Variant("names that are empty after the first piece", called(
        lambda call: call["function"].setdefault("name", ""))),
    Variant("names and ids null after the first piece", called(
        lambda call: (call["function"].setdefault("name", None), call.setdefault("id", None)))),
    Variant("no index of calls", called(drop("index"))),
    Variant("no index of two calls", called(drop("index")), first=TWO_CALLS),
    Variant("the index is null", called(set_to(index=None)), first=TWO_CALLS),
    Variant("the index is a text", called(lambda call: call.update(index=str(call["index"]))), first=TWO_CALLS),
    Variant("the index counts from 1", called(lambda call: call.update(index=call["index"] + 1)), first=TWO_CALLS),
    Variant("the index is always 0", called(set_to(index=0)), first=TWO_CALLS),
    Variant("no ids of calls", called(drop("id"))),
    Variant("no ids of two calls, index always 0", called(lambda call: (
        drop("id")(call), call.update(index=0))), first=TWO_CALLS),
    Variant("ids that are empty", called(lambda call: "id" in call and call.update(id="")), first=TWO_CALLS),
    Variant("ids that are numbers in calls", called(lambda call: "id" in call and call.update(id=call["index"]))),
    Variant("the same id in every turn", called(lambda call: "id" in call and call.update(id="call_0"))),
    Variant("the same id for two calls", called(
        lambda call: "id" in call and call.update(id="call")), first=TWO_CALLS),
    Variant("no type of calls", called(drop("type"))),
    Variant("whole calls", whole_calls()),
    Variant("two whole calls", whole_calls(), first=TWO_CALLS),
    Variant("two whole calls without index", whole_calls(in_calls(drop("index"))), first=TWO_CALLS),
    Variant("two whole calls without index and ids", whole_calls(in_calls(drop("index", "id"))), first=TWO_CALLS),
    Variant("one call that is no list", whole_calls(lambda calls: calls[0])),
    Variant("arguments as an object", whole_calls(objects)),
    Variant("arguments written as JSON twice", whole_calls(
        in_functions(lambda one: one.update(arguments=json.dumps(one["arguments"]))))),
    Variant("arguments null where there are none", called(
        lambda call: call["function"].get("arguments") == "{}" and call["function"].update(arguments=None))),
    Variant("calls without `function`", whole_calls(in_calls(flat))),
    Variant("`parameters` for `arguments`", whole_calls(in_functions(renamed("arguments", "parameters")))),
    Variant("functions. before the name", whole_calls(
        in_functions(lambda one: one.update(name="functions." + one["name"])))),
    Variant("a channel after the name", whole_calls(
        in_functions(lambda one: one.update(name=one["name"] + "<|channel|>commentary")))),
    Variant("blanks around the name", whole_calls(
        in_functions(lambda one: one.update(name=f" {one['name']}\n")))),
    Variant("function_call", deltas(old_form)),
    Variant("ignores stream, function_call", whole(
        lambda one: one.update(function_call=one.pop("tool_calls")[0]["function"])), "application/json"),
    Variant("the same piece over and over", first=Said("|" + "-" * 750, FIRST.calls)),
    Variant("a long reply", first=Said("word " * 200, FIRST.calls), length=False),
    # what must not go back as it came
    Variant("a name that no server takes back", first=Said("", (("run the tests!", {"command": "ls"}),))),
    Variant("a name that is empty", first=Said("", (("", {"command": "ls"}),))),
    Variant("a name that is too long", first=Said("", (("a" * 65, {}),))),
    Variant("nothing is said", first=Said("", ())),
    Variant("only thoughts", first=Said("", (), "First I think.")),
    # calls as text, of models that have no others
    Variant("<tool_call>", as_text(hermes), reasoning=False),
    Variant("<tool_call>, letter by letter", as_text(hermes, 1), reasoning=False),
    Variant("two <tool_call>", as_text(hermes), first=TWO_CALLS),
    Variant("<tool_call> after <think>", as_text(lambda said: think(said) + hermes(said))),
    Variant("<tool_call> in <think>", as_text(
        lambda said: ("<think>" + said.reasoning if said.reasoning else "") + hermes(said)),
        first=Said("", FIRST.calls, FIRST.reasoning)),
    Variant("<tool_call> with <function=...>", as_text(qwen_coder), reasoning=False),
    Variant("two <tool_call> with <function=...>", as_text(qwen_coder), first=TWO_CALLS),
    Variant("<tool_call> with <arg_key>", as_text(glm), reasoning=False),
    Variant("[TOOL_CALLS]", as_text(mistral), reasoning=False),
    Variant("ignores stream, <tool_call>", lambda said, number: dumped(
        {"choices": [{"message": {"content": hermes(said)}, "finish_reason": "stop"}]}).encode(),
        "application/json", reasoning=False),
    # what it refuses
    *[
        Variant(f"refuses stream_options: {words}", refuse={"stream_options": refusal}, requests=3)
        for words, refusal in STREAM_OPTIONS.items()
    ],
    Variant(
        "refuses stream", whole(), "application/json",
        refuse={"stream": told("Unsupported value: 'stream' does not support true with this model.", param="stream")},
        requests=3,
    ),
    Variant(
        "refuses stream and stream_options", whole(), "application/json",
        refuse={
            "stream_options": told("Unknown parameter: 'stream_options'."),
            "stream": told("stream is not supported"),
        },
        requests=4,
    ),
    Variant(
        "refuses all settings, one by one",
        refuse={
            name: (422, {"detail": [pydantic(name)]})
            for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens", "stream_options")
        },
        requests=9,
    ),
    # failures that pass
    Variant(
        "an error with status 200 at first", requests=3,
        first_answer=(200, "application/json", b'{"error": {"message": "Overloaded", "code": 503}}'),
    ),
    Variant(
        "an error in the stream at first", requests=3,
        first_answer=(
            200, "text/event-stream",
            b'event: error\ndata: {"error": {"message": "Overloaded", "code": 503}}\n\n',
        ),
    ),
    Variant(
        "an error of vLLM's old form in the stream at first", requests=3,
        first_answer=(200, "text/event-stream", b'data: {"object": "error", "message": "busy", "code": 503}\n\n'),
    ),
    Variant(
        "a cut JSON text at first", requests=3,
        first_answer=(200, "application/json", b'{"choices": [{"message": {"content": "I lo'),
    ),
    Variant("nothing at first", requests=3, first_answer=(200, "text/event-stream", b"")),
    Variant(
        "a gateway's page with status 502 at first", requests=3,
        first_answer=(502, "text/html", b"<html><body>502 Bad Gateway</body></html>"),
    ),
    Variant("busy, in plain text, at first", requests=3, first_answer=(503, "text/plain", b"busy")),
]  # fmt: skip
assert len({one.name for one in VARIANTS}) == len(VARIANTS)
