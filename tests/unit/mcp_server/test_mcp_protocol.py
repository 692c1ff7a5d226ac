"""The MCP endpoint without a transport: both eras, arguments, questions, and messages that no client would send."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from llm_sandbox_nb.mcp_server.endpoint import LEGACY, MODERN, McpEndpoint, initialized
from llm_sandbox_nb.mcp_server.messages import (
    META_CAPABILITIES,
    META_VERSION,
    McpError,
    RpcMessage,
    read_message,
)
from llm_sandbox_nb.mcp_server.request_state import LIFETIME_SECONDS, RequestStateError, StateSigner
from llm_sandbox_nb.mcp_server.sessions import IDLE_SECONDS, MAX_SESSIONS, ClientFacts, Sessions
from llm_sandbox_nb.mcp_server.stdio import StdioServer
from llm_sandbox_nb.mcp_server.tools import RUN_TOOLS, TOOLS, ToolInputError, checked_arguments, listed_tools
from llm_sandbox_nb.sandbox.limits import DEFAULT_COMMAND_TIMEOUT


class Host:
    """Answers calls with what they were."""

    principal = "p1"

    def __init__(self, ask: str = "") -> None:
        self.ask = ask
        self.calls: list[tuple[str, dict[str, Any], str]] = []

    async def call(
        self, tool: str, arguments: dict[str, Any], client: ClientFacts, agreed: str
    ) -> dict[str, Any]:
        self.calls.append((tool, arguments, agreed))
        if self.ask and agreed != "about":
            return {"ask": self.ask, "about": "about"}
        return {"text": "done", "data": {"tool": tool}, "error": False}


class Link:
    """A client's person who agrees, or cannot be asked."""

    def __init__(self, answer: dict[str, Any] | None = None) -> None:
        self.answer = answer
        self.asked: list[dict[str, Any]] = []

    async def elicit(self, params: dict[str, Any]) -> dict[str, Any] | None:
        self.asked.append(params)
        return self.answer


YES = {"action": "accept", "content": {"undo": True}}


def modern(method: str, capabilities: object = None, **params: Any) -> RpcMessage:
    meta = {META_VERSION: MODERN, META_CAPABILITIES: {} if capabilities is None else capabilities}
    return RpcMessage(method, 1, {**params, "_meta": meta})


def answer(
    message: RpcMessage, host: Host | None = None, client: ClientFacts | None = None, link: Link | None = None,
    endpoint: McpEndpoint | None = None,
) -> dict[str, Any]:  # fmt: skip
    return asyncio.run((endpoint or McpEndpoint()).answer(message, client, host or Host(), link or Link()))


def test_a_modern_client_needs_no_handshake() -> None:
    found = answer(modern("server/discover"))
    assert found["supportedVersions"][0] == MODERN
    assert found["resultType"] == "complete"
    tools = answer(modern("tools/list"))
    assert tools["ttlMs"] > 0
    called = answer(modern("tools/call", name="run_command", arguments={"command": "ls"}))
    assert (called["content"][0]["text"], called["structuredContent"]) == ("done", {"tool": "run_command"})


@pytest.mark.parametrize(
    ("asked", "got"), [*((one, one) for one in LEGACY), ("2024-11-05", LEGACY[0]), ("?", LEGACY[0])]
)
def test_an_old_client_gets_its_version_or_the_newest_before_2026(asked: str, got: str) -> None:
    params = {
        "protocolVersion": asked,
        "capabilities": {"elicitation": {}},
        "clientInfo": {"name": "c\x1b[0m"},
    }
    client, result = initialized(RpcMessage("initialize", 1, params))
    assert result["protocolVersion"] == got
    assert client == ClientFacts("c[0m", "", True)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (modern("nothing"), -32601),
        (RpcMessage("nothing", 1), -32601),
        (modern("tools/call", name="nothing"), -32602),
        (modern("tools/call", capabilities=[]), -32602),
        (RpcMessage("tools/list", 1, {"_meta": {META_VERSION: "2099-01-01", META_CAPABILITIES: {}}}), -32022),
        (modern("tools/call", name="rewind", arguments={"to": "1"}, requestState="made up"), -32602),
    ],
)
def test_requests_without_a_result_get_an_error(message: RpcMessage, code: int) -> None:
    with pytest.raises(McpError) as error:
        answer(message)
    assert error.value.code == code
    assert str(error.value).endswith(".")


def test_the_definitions_are_constant_sorted_and_fit_every_client() -> None:
    tools = listed_tools(runs=True)
    names = [tool["name"] for tool in tools]
    assert names == sorted(names)
    assert json.dumps(tools) == json.dumps(listed_tools(runs=True))
    for tool in tools:
        hints = tool["annotations"]
        assert not (hints["readOnlyHint"] and hints["destructiveHint"])
        assert len(tool["description"]) < 2000  # some clients cut there
        assert set(tool["inputSchema"]["required"]) <= set(tool["inputSchema"]["properties"])
    reading = {name for name, tool in TOOLS.items() if tool.read_only}
    assert reading == {
        "get_run", "list_checkpoints", "list_files", "list_sandboxes", "read_file", "show_changes", "wait_command",
    }  # fmt: skip
    assert {name for name, tool in TOOLS.items() if tool.destructive} == {
        "edit_file", "rewind", "run_command", "start_run", "stop_command", "stop_run", "write_file",
    }  # fmt: skip


def test_the_default_time_out_is_that_of_every_command() -> None:
    (run_command,) = (one for one in listed_tools(runs=True) if one["name"] == "run_command")
    assert run_command["inputSchema"]["properties"]["timeout"]["default"] == DEFAULT_COMMAND_TIMEOUT


def test_runs_are_offered_and_started_only_where_the_server_allows_them() -> None:
    call = modern("tools/call", name="start_run", arguments={"task": "Count.", "max_steps": 5000})
    listed = {tool["name"] for tool in answer(modern("tools/list"))["tools"]}
    assert listed.isdisjoint(RUN_TOOLS)
    host = Host()
    refused = answer(call, host)
    assert refused["isError"]
    assert "SandboxPolicy.allow_mcp_runs" in refused["content"][0]["text"]
    assert host.calls == []
    open_endpoint = McpEndpoint(runs=True)
    listed = {tool["name"] for tool in answer(modern("tools/list"), endpoint=open_endpoint)["tools"]}
    assert listed == set(TOOLS)
    assert not answer(call, host, endpoint=open_endpoint)["isError"]
    assert host.calls == [("start_run", {"task": "Count.", "max_steps": 100}, "")]


def test_arguments_have_their_usual_values_and_the_names_that_agents_use() -> None:
    assert checked_arguments("run_command", {"cmd": "ls"}) == {"command": "ls", "timeout": 120, "wait": 45}
    edit = {"file_path": "a", "old_str": "x", "new_str": "", "replace_all": "true"}
    assert checked_arguments("edit_file", edit) == {
        "path": "a", "old_string": "x", "new_string": "", "replace_all": True,
    }  # fmt: skip
    assert checked_arguments("rewind", {"to": 3}) == {"to": "3"}
    assert checked_arguments("run_command", {"command": "ls", "wait": 9999})["wait"] == 240


@pytest.mark.parametrize(
    ("tool", "arguments", "part"),
    [
        ("run_command", {}, "needs `command`"),
        ("run_command", {"command": 1}, "has to be text"),
        ("run_command", {"command": "a\x00b"}, "NUL"),
        ("run_command", {"command": "ls", "timeout": -1}, "0 or more"),
        ("run_command", {"command": "ls", "timeout": float("nan")}, "0 or more"),
        ("run_command", {"command": "ls", "dir": "/"}, "no argument"),
        ("read_file", {"path": "a", "offset": 1.5}, "a whole number"),
        ("edit_file", {"path": "a", "old_string": "a", "new_string": "b", "replace_all": 1}, "true or false"),
        ("list_files", [], "an object"),
    ],
)  # fmt: skip
def test_arguments_that_cannot_be_used_are_an_error_of_the_tool(tool: str, arguments: Any, part: str) -> None:
    with pytest.raises(ToolInputError, match=part):
        checked_arguments(tool, arguments)
    host = Host()
    result = answer(modern("tools/call", name=tool, arguments=arguments), host)
    assert result["isError"]
    assert part in result["content"][0]["text"]
    assert not host.calls


def test_a_question_is_asked_in_both_eras_and_else_refused() -> None:
    arguments = {"to": "1"}
    host, link = Host("Sure?"), Link(YES)
    old = RpcMessage("tools/call", 1, {"name": "rewind", "arguments": arguments})
    assert answer(old, host, ClientFacts("c", "", True), link)["content"][0]["text"] == "done"
    assert [agreed for _, _, agreed in host.calls] == ["", "about"]
    assert "Sure?" in link.asked[0]["message"]
    declined = answer(old, Host("Sure?"), ClientFacts("c", "", True), Link({"action": "decline"}))
    assert declined["isError"]
    mute = answer(old, Host("Sure?"), ClientFacts(), Link(YES))
    assert mute["isError"]
    assert "Sure?" in mute["content"][0]["text"]
    assert answer(modern("tools/call", name="rewind", arguments=arguments), Host("Sure?"))["isError"]


def test_a_state_is_valid_for_one_request_and_once() -> None:
    endpoint, host = McpEndpoint(), Host("Sure?")
    asks = {"elicitation": {"form": {}}}

    def retry(state: str, to: str = "1", reply: object = YES) -> dict[str, Any]:
        more = {"requestState": state, "inputResponses": {"undo_others": reply}}
        message = modern("tools/call", asks, name="rewind", arguments={"to": to}, **more)
        return answer(message, host, endpoint=endpoint)

    def ask() -> str:
        asked = answer(
            modern("tools/call", asks, name="rewind", arguments={"to": "1"}), host, endpoint=endpoint
        )
        assert asked["resultType"] == "input_required"
        return str(asked["requestState"])

    state = ask()
    with pytest.raises(McpError):
        retry(state, to="2")
    assert retry(state)["content"][0]["text"] == "done"
    with pytest.raises(McpError):
        retry(state)
    assert retry(ask(), reply={"action": "accept", "content": {"undo": "yes"}})["isError"]
    assert retry(ask(), reply=None)["isError"]
    assert len([one for one in host.calls if one[2]]) == 1


def test_a_state_of_another_caller_too_old_or_changed_is_refused() -> None:
    now = [0.0]
    signer, other = StateSigner(lambda: now[0]), StateSigner(lambda: now[0])
    state = signer.sign("a", {"tool": "rewind"}, "x")
    changed = state[:-8] + "AAAAAAAA"
    wrong: list[tuple[Callable[..., str], object, str, dict[str, str]]] = [
        (signer.check, state, "b", {"tool": "rewind"}),
        (signer.check, state, "a", {"tool": "fork"}),
        (other.check, state, "a", {"tool": "rewind"}),
        (signer.check, changed, "a", {"tool": "rewind"}),
        (signer.check, "é" * 10, "a", {"tool": "rewind"}),
        (signer.check, 7, "a", {"tool": "rewind"}),
        (signer.check, "A" * 5000, "a", {"tool": "rewind"}),
    ]
    for check, given_state, principal, request in wrong:
        with pytest.raises(RequestStateError):
            check(given_state, principal, request)
    assert signer.check(state, "a", {"tool": "rewind"}) == "x"
    late = signer.sign("a", {}, "x")
    now[0] = LIFETIME_SECONDS
    with pytest.raises(RequestStateError):
        signer.check(late, "a", {})


def test_sessions_are_of_their_callers_and_bounded() -> None:
    now = [0.0]
    sessions = Sessions(lambda: now[0])
    first = sessions.begin("a", ClientFacts())
    assert sessions.find(first.id, "a") is first
    assert sessions.find(first.id, "b") is None
    now[0] = IDLE_SECONDS + 1
    assert sessions.find(first.id, "a") is None
    for _ in range(MAX_SESSIONS + 5):
        now[0] += 1
        sessions.begin("b", ClientFacts())
    assert len(sessions) == MAX_SESSIONS
    sessions.end_all_of("b")
    assert len(sessions) == 0


def test_a_caller_with_many_sessions_ends_only_its_own() -> None:
    now = [0.0]
    sessions = Sessions(lambda: now[0])
    others = [sessions.begin("a", ClientFacts()) for _ in range(5)]
    for _ in range(2 * MAX_SESSIONS):
        now[0] += 1
        sessions.begin("b", ClientFacts())
    assert [sessions.find(one.id, "a") for one in others] == others
    assert len(sessions) == MAX_SESSIONS


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
NEAR = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.sampled_from(["2.0", "1.0", 2]),
        "id": st.integers() | st.text(max_size=5) | JSON,
        "method": st.sampled_from(["initialize", "tools/call", "tools/list", "ping", "server/discover"])
        | JSON,
        "params": st.fixed_dictionaries(
            {},
            optional={
                "name": st.sampled_from(list(TOOLS)) | JSON,
                "arguments": st.dictionaries(
                    st.sampled_from(["command", "path", "to", "from", "wait"]) | st.text(), JSON
                )
                | JSON,
                "_meta": st.fixed_dictionaries(
                    {}, optional={META_VERSION: st.just(MODERN) | JSON, META_CAPABILITIES: st.just({}) | JSON}
                )
                | JSON,
                "requestState": JSON,
                "inputResponses": JSON,
                "protocolVersion": JSON,
            },
        )
        | JSON,
        "result": JSON,
        "error": JSON,
    },
)


@given(st.binary(max_size=60) | (JSON | NEAR).map(lambda value: json.dumps(value).encode()))
def test_no_message_makes_the_endpoint_fail(data: bytes) -> None:
    try:
        message = read_message(data)
        result = initialized(message)[1] if message.method == "initialize" else answer(message)
    except McpError as error:
        result = error.to_json()
    assert isinstance(json.loads(json.dumps(result)), dict)


def test_depth_and_size_are_bounded() -> None:
    for data in (b"[" * 100_000, b'{"jsonrpc":"2.0","params":' + b"[" * 50_000, b"1" * 10_000):
        with pytest.raises(McpError):
            read_message(data)


@given(
    st.lists(st.binary(max_size=60) | (JSON | NEAR).map(lambda value: json.dumps(value).encode()), max_size=5)
)
@example([b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":[]}}'])
def test_no_message_ends_the_server_over_stdio(data: list[bytes]) -> None:
    async def serve() -> None:
        answered = asyncio.Event()

        def write(message: dict[str, Any]) -> None:
            if message.get("id") == "the last":
                answered.set()

        async def lines() -> AsyncIterator[bytes]:
            for line in data:
                yield line
            yield b'{"jsonrpc":"2.0","id":"the last","method":"ping"}'
            await answered.wait()

        await StdioServer(Host(), write).serve(lines())
        assert answered.is_set()

    asyncio.run(serve())
