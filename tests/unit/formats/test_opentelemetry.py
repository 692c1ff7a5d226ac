"""Runs as OpenTelemetry spans: valid as protobuf, with names that the conventions have, and no text unasked."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import format_table
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.semconv._incubating.attributes import (
    error_attributes,
    gen_ai_attributes,
    process_attributes,
)

from llm_sandbox_nb.formats import opentelemetry
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.trajectory import Trajectory

NAMES = {
    value
    for module in (gen_ai_attributes, error_attributes, process_attributes)
    for value in vars(module).values()
    if isinstance(value, str)
}
SECRET = "the content that nobody asked for"
ARGUMENTS = {"command": SECRET}


def spans(content: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        span for one in content["resourceSpans"] for scope in one["scopeSpans"] for span in scope["spans"]
    ]


def values(span: dict[str, Any]) -> dict[str, Any]:
    return {one["key"]: next(iter(one["value"].values())) for one in span["attributes"]}


def run() -> Trajectory:
    name = "execute_bash"
    call = {"id": "c1", "type": "function", "function": {"name": "execute_bash", "arguments": "{}"}}
    events: list[ev.Event] = [
        ev.RunStarted(run_id="r", task=SECRET, model="openai/m", time=100.0),
        ev.MessageAdded(message={"role": "user", "content": SECRET}, time=100.5),
        ev.ModelRequested(step=1, time=101.0),
        ev.ModelReplied(
            step=1, message={"role": "assistant", "content": SECRET, "tool_calls": [call]}, reasoning=SECRET,
            time=103.0,
            usage=ev.Usage(prompt_tokens=5, completion_tokens=2, cached_tokens=3, cost=0.5), model_time=2.0,
        ),
        ev.CallProposed(step=1, call_id="c1", tool=name, raw_arguments=SECRET, arguments=ARGUMENTS, time=103.0),
        ev.CallStarted(step=1, call_id="c1", tool=name, arguments=ARGUMENTS, time=104.0),
        ev.CallFinished(step=1, call_id="c1", observation=SECRET, stdout=SECRET, exit_code=1, time=105.0,
                        changes=[ev.FileDiff(path=SECRET, kind="added", size=1)]),
        ev.Checkpointed(step=1, checkpoint="k", time=105.5),
        ev.RunFinished(stop_reason="submitted", answer=SECRET, time=106.0),
    ]  # fmt: skip
    return Trajectory(events)


def test_every_run_is_valid_protobuf_with_names_of_the_conventions() -> None:
    own = set()
    for one in format_table.runs():
        content = opentelemetry.write(one, content=True)
        message = opentelemetry.to_protobuf(json.loads(json.dumps(content)))
        again = ExportTraceServiceRequest.FromString(message.SerializeToString())
        assert again == message
        found = spans(content)
        ids = [(span["traceId"], span["spanId"]) for span in found]
        assert len(set(ids)) == len(ids)
        assert all(
            span.get("parentSpanId") is None or (span["traceId"], span["parentSpanId"]) in ids
            for span in found
        )
        assert all(
            (link["traceId"], link["spanId"]) in ids for span in found for link in span.get("links", [])
        )
        assert all(int(span["endTimeUnixNano"]) >= int(span["startTimeUnixNano"]) for span in found)
        used = {key for span in found for key in values(span)}
        own |= {key for key in used if key not in NAMES}
    assert own
    assert all(key.startswith("llm_sandbox_nb.") for key in own), own


def test_spans_of_a_run_have_its_values() -> None:
    root, chat, tool = spans(opentelemetry.write(run()))
    assert [root["name"], chat["name"], tool["name"]] == [
        "invoke_agent llm-sandbox-nb", "chat openai/m", "execute_tool execute_bash",
    ]  # fmt: skip
    assert (chat["startTimeUnixNano"], chat["endTimeUnixNano"]) == ("101000000000", "103000000000")
    assert (tool["startTimeUnixNano"], tool["endTimeUnixNano"]) == ("104000000000", "105000000000")
    said = values(chat)
    assert (said["gen_ai.usage.input_tokens"], said["gen_ai.usage.cache_read.input_tokens"]) == ("5", "3")
    assert said["gen_ai.provider.name"] == "openai"
    assert values(tool)["process.exit.code"] == "1"
    assert values(root)["llm_sandbox_nb.stop_reason"] == "submitted"
    assert [event["name"] for event in root["events"]] == ["checkpoint"]


def test_a_rewound_run_whose_steps_have_recorded_lines_is_two_traces_with_a_link() -> None:
    def reply(step: int, id: str, parent: str) -> ev.ModelReplied:
        message = {"role": "assistant", "content": "Done."}
        return ev.ModelReplied(step=step, message=message, id=id, parent=parent)

    trajectory = Trajectory(
        [
            ev.RunStarted(run_id="r", task="t", model="m", id="a"),
            reply(1, "b", "a"),
            ev.StepFacts(step=1, line=ev.StepLine(tool="none"), id="f1", parent="b"),
            reply(2, "c", "b"),
            ev.StepFacts(step=2, line=ev.StepLine(tool="none"), id="f2", parent="c"),
            ev.Rewound(to="b", step=1, id="d", parent="c"),
            ev.Continued(source="python", id="g", parent="b"),
            reply(2, "e", "g"),
        ]
    )
    found = spans(opentelemetry.write(trajectory))
    [linked] = [span for span in found if span.get("links")]
    assert len({span["traceId"] for span in found}) == 2
    shared = next(span for span in found if span["spanId"] == linked["links"][0]["spanId"])
    assert (shared["name"], values(shared)["llm_sandbox_nb.step"]) == ("chat m", "1")


def test_texts_are_left_out_unless_they_are_asked_for() -> None:
    assert SECRET not in json.dumps(opentelemetry.write(run()))
    asked = json.dumps(opentelemetry.write(run(), content=True))
    assert asked.count(SECRET) >= 6


def test_old_messages_of_a_long_conversation_are_in_the_spans_before() -> None:
    said = "x" * (opentelemetry.MAX_CONTENT_CHARACTERS // 3)
    events: list[ev.Event] = [ev.RunStarted(run_id="r", task="t", model="m")]
    for step in range(1, 8):
        events.append(ev.ModelReplied(step=step, message={"role": "assistant", "content": said}))
    last = spans(opentelemetry.write(Trajectory(events), content=True))[-1]
    messages = json.loads(values(last)["gen_ai.input.messages"])
    assert len(messages) == 3
    assert messages[0]["parts"][0]["content"] == "[4 earlier messages are in the spans before]"


class Collector(ThreadingHTTPServer):
    """Keeps what it gets; refuses with `status` when that is set."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Receiver)
        self.got: list[tuple[str, str, str | None, bytes]] = []
        self.status = 200
        self.address = f"http://127.0.0.1:{self.server_port}/v1/traces"


class Receiver(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        kind, key = self.headers["Content-Type"], self.headers["Authorization"]
        self.server.got.append((self.path, kind, key, body))
        self.send_response(self.server.status)
        self.send_header("Location", "/sign-in")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    monkeypatch.setenv("no_proxy", "*")
    server = Collector()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_collector_gets_valid_spans(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Basic%20abc, x=y")
    said = opentelemetry.send(opentelemetry.write(run()), collector.address)
    assert said == f"3 spans sent to {collector.address}"
    ((path, kind, key, body),) = collector.got
    assert (path, kind, key) == ("/v1/traces", "application/x-protobuf", "Basic abc")
    message = ExportTraceServiceRequest.FromString(body)
    found = message.resource_spans[0].scope_spans[0].spans
    assert [span.name for span in found][1] == "chat openai/m"
    assert found[1].parent_span_id == found[0].span_id
    assert len(found[0].trace_id) == 16


def test_the_parameters_of_an_address_are_sent_but_not_shown(collector: Collector) -> None:
    said = opentelemetry.send(opentelemetry.write(run()), f"{collector.address}?token=abc&x=1")
    assert said == f"3 spans sent to {collector.address}"
    assert [path for path, *_ in collector.got] == ["/v1/traces?token=abc&x=1"]


def test_without_the_package_of_protobuf_it_is_json(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        __import__("sys").modules, "opentelemetry.proto.collector.trace.v1.trace_service_pb2", None
    )
    opentelemetry.send(opentelemetry.write(run()), collector.address)
    ((_, kind, _, body),) = collector.got
    assert kind == "application/json"
    assert json.loads(body) == opentelemetry.write(run())


@pytest.mark.parametrize(
    ("status", "hint"), [(401, "Set its key in OTEL"), (404, "/api/public/otel"), (500, "refused")]
)
def test_a_refusal_names_the_remedy(collector: Collector, status: int, hint: str) -> None:
    collector.status = status
    address = collector.address.replace("http://", "http://name:secret@")
    with pytest.raises(ValueError, match=hint) as caught:
        opentelemetry.send(opentelemetry.write(run()), address)
    assert "secret" not in str(caught.value)
    assert collector.got[0][2] == "Basic bmFtZTpzZWNyZXQ="


def test_a_redirect_is_no_success(collector: Collector) -> None:
    """A sign-in in front of a collector redirects: urllib would get its page, and send no spans."""
    collector.status = 302
    with pytest.raises(
        ValueError, match=r"refused the spans \(302 Found\)\. Give the address to which it redirects\."
    ):
        opentelemetry.send(opentelemetry.write(run()), collector.address)


def test_a_server_without_http_is_no_collector() -> None:
    """The port 4317 of a collector speaks gRPC."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            client, _ = listening.accept()
            with client:
                client.recv(65536)
                client.sendall(b"\x00\x00\x12\x04\x00\x00\x00\x00\x00\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(ValueError, match="check the address"):
            opentelemetry.send(
                opentelemetry.write(run()), f"http://127.0.0.1:{listening.getsockname()[1]}/v1/traces"
            )
        thread.join()


def test_no_collector() -> None:
    with pytest.raises(
        ValueError, match=r"No collector answers at http://127\.0\.0\.1:9/x \(.*\): check the address"
    ):
        opentelemetry.send(opentelemetry.write(run()), "http://127.0.0.1:9/x")


def test_impossible_times_fit_into_64_bits() -> None:
    trajectory = run()
    for event in trajectory.events:
        if isinstance(event, ev.ModelReplied):
            event.model_time = 1e308
    times = [int(span[name]) for span in spans(opentelemetry.write(trajectory))
             for name in ("startTimeUnixNano", "endTimeUnixNano")]  # fmt: skip
    assert max(times) < 2**64
