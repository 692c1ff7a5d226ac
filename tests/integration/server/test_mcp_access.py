"""Who may call the MCP endpoint, and what it answers to those who may not and to those who talk nonsense."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from mcp_endpoint import BOX, OTHER, Endpoint
from pytest_jupyter.jupyter_server import *  # noqa: F403 - fixtures, for this module alone
from served import Served
from support import eventually
from tornado.httpclient import AsyncHTTPClient, HTTPClientError

from llm_sandbox_nb.cli.mcp_bridge import Bridge, OpenNotebook
from llm_sandbox_nb.mcp_server.messages import META_CAPABILITIES, META_VERSION
from llm_sandbox_nb.mcp_server.tools import TOOLS
from llm_sandbox_nb.server import mcp_handlers


@pytest.fixture
def jp_server_config() -> dict[str, Any]:
    return {"ServerApp": {"jpserver_extensions": {"llm_sandbox_nb": True}}}


@pytest.fixture
def endpoint(served: Served, tmp_path: Path) -> Endpoint:
    return Endpoint(served, tmp_path)


def test_a_call_with_the_token_comes_to_its_kernel_only(endpoint: Endpoint) -> None:
    assert endpoint.call().code == 200
    assert (len(endpoint.kernels[BOX].asked), len(endpoint.kernels[OTHER].asked)) == (1, 0)


def test_nobody_else_gets_in(endpoint: Endpoint, jp_serverapp: Any) -> None:
    own = jp_serverapp.identity_provider.token
    refused = {
        "no token": {"Authorization": ""},
        "a wrong one": {"Authorization": "Bearer lsnb_wrong"},
        "another scheme": {"Authorization": f"Basic {endpoint.token}"},
        "the hash": {
            "Authorization": f"Bearer {next(iter(endpoint.services.grants._grants.values())).digest}"
        },
        "a cookie": {"Authorization": "", "Cookie": f"token={endpoint.token}; username={own}"},
        "another header": {"Authorization": "", "X-Token": endpoint.token},
    }
    for why, headers in refused.items():
        answer = endpoint.call(headers=headers)
        assert answer.code == 401, why
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert "that %sandbox mcp in a notebook shows" in json.loads(answer.body)["message"]
    assert endpoint.call(headers={"Authorization": ""}, path=f"?token={endpoint.token}").code == 401
    assert endpoint.call(headers={"Authorization": ""}, path=f"?token={own}").code == 401
    assert endpoint.executed == 0


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8888", "169.254.169.254", "10.0.0.1:80"])
def test_a_foreign_name_of_the_server_is_refused(endpoint: Endpoint, host: str) -> None:
    assert endpoint.call(headers={"Host": host}).code == 421
    assert endpoint.call(headers={"Host": host}, method="GET").code == 421
    assert endpoint.executed == 0


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "https://localhost.evil.example", "http://127.0.0.1:1", "http://["],
)
def test_a_page_of_another_site_is_refused(endpoint: Endpoint, origin: str) -> None:
    answer = endpoint.call(headers={"Origin": origin})
    assert answer.code == 403
    assert "Access-Control-Allow-Origin" not in answer.headers
    assert endpoint.executed == 0
    assert endpoint.call(headers={"Origin": f"http://{endpoint.host}"}).code == 200


def test_a_token_opens_its_own_sandbox_only(endpoint: Endpoint) -> None:
    assert endpoint.call(path=f"/{OTHER}").code == 404
    assert endpoint.call(path=f"/{'c' * 32}").code == 404  # the same as for one that is there
    named = endpoint.call(arguments={"command": "ls", "sandbox": OTHER})
    assert named.code == 200
    assert not endpoint.kernels[OTHER].asked
    assert (
        endpoint.kernels[BOX].asked[-1]["arguments"]["sandbox"] == OTHER
    )  # a name that this kernel does not know


def test_a_notebook_that_fails_or_hangs_is_listed_with_the_reason(
    endpoint: Endpoint, jp_serverapp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_handlers, "_LIST_TIMEOUT", 0.2)
    own = {"Authorization": f"Bearer {jp_serverapp.identity_provider.token}"}
    other = endpoint.kernels[OTHER].run
    endpoint.kernels[BOX].sandboxes = [{"sandbox": "main", "state": "open"}]

    def listed() -> dict[str, str]:
        found = json.loads(endpoint.call("list_sandboxes", arguments={}, headers=own).body)["result"]
        assert not found["isError"]
        states = {one["sandbox"]: one["state"] for one in found["structuredContent"]["sandboxes"]}
        assert all(state in found["content"][0]["text"] for state in states.values())
        return states

    def fail(message: dict[str, Any]) -> None:
        other.take_answer({"id": message["id"], "error": "The call failed."})

    silent = "The run's kernel does not answer; interrupt or restart it."
    for send, state in ((fail, "The call failed."), (lambda _: None, silent)):
        monkeypatch.setattr(endpoint.kernels[OTHER], "send", send)
        assert listed() == {BOX: "open", OTHER: state}


def test_a_session_is_of_its_token(endpoint: Endpoint) -> None:
    begin = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-11-25"}}
    session = endpoint.send(begin).headers["Mcp-Session-Id"]
    listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    assert endpoint.send(listing, {"Mcp-Session-Id": session}).code == 200
    other = {"Authorization": f"Bearer {endpoint.other}", "Mcp-Session-Id": session}
    assert endpoint.send(listing, other).code == 404
    assert endpoint.send(b"", other, method="DELETE").code == 404
    assert endpoint.send(listing, {"Mcp-Session-Id": "made-up"}).code == 404
    assert endpoint.send(b"", {"Mcp-Session-Id": session}, method="DELETE").code == 204
    assert endpoint.send(listing, {"Mcp-Session-Id": session}).code == 404


def test_the_bridge_begins_again_when_its_session_has_ended(endpoint: Endpoint) -> None:
    """A client over stdio knows of no session, so it would get nothing but errors until it is started again."""
    url, token = f"{endpoint.address}/{BOX}", endpoint.served.app.identity_provider.token
    written: list[dict[str, Any]] = []

    async def lines() -> AsyncIterator[bytes]:
        begin = {"method": "initialize", "params": {"protocolVersion": "2025-11-25"}}
        odd = {"method": "notifications/cancelled", "params": {"requestId": [1]}}
        for number, message in enumerate([begin, {"method": "tools/list"}, odd, {"method": "no/such"}]):
            id = {} if message is odd else {"id": number}
            before = len(written)
            yield json.dumps({"jsonrpc": "2.0", **id, **message}).encode()
            await eventually(lambda before=before, id=id: len(written) == before + len(id))  # type: ignore[misc]
            endpoint.services.sessions.end_all_of("jupyter")

    bridge = Bridge(OpenNotebook("a.ipynb", url, token), written.append)
    endpoint.served.run(bridge.serve(lines()))
    assert [one["id"] for one in written] == [0, 1, 3]
    assert written[1]["result"]["tools"]
    assert written[2]["error"]["code"] == -32601


def test_a_revoked_token_opens_nothing_and_its_sessions_end(endpoint: Endpoint) -> None:
    begin = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-11-25"}}
    session = endpoint.send(begin).headers["Mcp-Session-Id"]
    endpoint.services.grants.revoke(BOX)
    assert endpoint.call().code == 401
    jupyter = {
        "Authorization": f"token {endpoint.served.app.identity_provider.token}",
        "Mcp-Session-Id": session,
    }
    assert endpoint.send({"jsonrpc": "2.0", "id": 2, "method": "ping"}, jupyter).code == 404


def test_the_site_can_forbid_it(endpoint: Endpoint) -> None:
    endpoint.served.manager.policy.allow_mcp = False
    assert endpoint.call().code == 403
    assert endpoint.executed == 0


@pytest.mark.parametrize(
    ("method", "meta", "header", "code"),
    [
        ("tools/list", {}, "2026-07-28", (400, -32602)),
        ("tools/list", {META_CAPABILITIES: {}}, "2026-07-28", (400, -32602)),
        ("tools/list", {META_VERSION: "2099-01-01", META_CAPABILITIES: {}}, "2026-07-28", (400, -32020)),
        ("tools/list", {META_VERSION: "2099-01-01", META_CAPABILITIES: {}}, "2099-01-01", (400, -32022)),
        ("initialize", {META_VERSION: "2026-07-28", META_CAPABILITIES: {}}, "2026-07-28", (404, -32601)),
    ],
)
def test_a_modern_request_that_names_no_version_or_a_removed_method_gets_the_code_of_the_specification(
    endpoint: Endpoint, method: str, meta: dict[str, Any], header: str, code: tuple[int, int]
) -> None:
    body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": {"_meta": meta} if meta else {}}
    answer = endpoint.send(body, {"MCP-Protocol-Version": header, "Mcp-Method": method})
    said = json.loads(answer.body)
    assert (answer.code, said["error"]["code"]) == code
    assert said["id"] == 7


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Mcp-Method": "tools/list"}, -32020),
        ({"Mcp-Method": ""}, -32020),
        ({"Mcp-Name": "rewind"}, -32020),
        ({"Mcp-Name": "=?base64?!!?="}, -32020),
        ({"MCP-Protocol-Version": "2025-11-25"}, -32020),
        ({"MCP-Protocol-Version": "2099-01-01"}, -32020),
        ({"MCP-Protocol-Version": ""}, -32020),
    ],
)
def test_headers_that_say_something_else_than_the_body(
    endpoint: Endpoint, headers: dict[str, str], code: int
) -> None:
    answer = endpoint.call(headers=headers)
    assert answer.code == 400
    assert json.loads(answer.body)["error"]["code"] == code
    assert endpoint.executed == 0


def test_a_kernel_that_is_away_or_a_run_that_ended_is_said_in_one_sentence(endpoint: Endpoint) -> None:
    endpoint.kernels[BOX].run.outside = None
    said = json.loads(endpoint.call().body)["result"]
    assert said["isError"]
    assert "%sandbox mcp" in said["content"][0]["text"]


FUZZED = 300


def fuzz(endpoint: Endpoint, count: int, seed: int) -> None:
    """Requests made of parts of good ones: none may fail in the server, and none without the token may be executed."""
    dice = random.Random(seed)
    parts: list[Any] = [
        None, True, 0, -1, 1e308, "", "x" * 5000, "\x00", "\ud800", [], {}, [[]], {"": {}}, "2026-07-28", "tools/call",
        *TOOLS, {"_meta": {}}, {"name": "rewind"}, {"command": ["ls"]}, "../../etc/passwd", 2**70,
    ]  # fmt: skip

    keys = ["name", "arguments", "_meta", "command", "path", "to", "wait", META_VERSION, META_CAPABILITIES]
    values = ["2026-07-28", "2025-06-18", "tools/call", "run_command", "null", "text/event-stream", "é"]

    def some(depth: int = 0) -> Any:
        if depth < 3 and dice.random() < 0.4:
            return {dice.choice(keys): some(depth + 1) for _ in range(dice.randrange(5))}
        return dice.choice(parts)

    for number in range(count):
        message: dict[str, Any] = {
            "jsonrpc": "2.0", "id": dice.choice([1, "a", None, 1.5, []]),
            "method": dice.choice(["tools/call", "tools/list", "initialize", "ping", "server/discover", some()]),
            "params": some(),
        }  # fmt: skip
        for key in [key for key in message if dice.random() < 0.1]:
            del message[key]
        body = json.dumps(message).encode()
        if dice.random() < 0.2:
            place = dice.randrange(len(body))
            body = body[:place] + bytes([dice.randrange(256)]) + body[place + dice.randrange(3) :]
        known = dice.random() < 0.7
        token = endpoint.token if known else dice.choice(["", "lsnb_x", "é"])
        headers = {"Authorization": f"Bearer {token}"}
        for name in ("MCP-Protocol-Version", "Mcp-Method", "Mcp-Name", "Mcp-Session-Id", "Origin", "Accept"):
            if dice.random() < 0.3:
                headers[name] = dice.choice(values).encode("utf-8").decode("latin-1")
        before = endpoint.executed
        try:
            answer = endpoint.send(body, headers)
        except (HTTPClientError, ValueError, UnicodeError):
            continue  # the client itself sends no such header
        assert answer.code < 500, (number, answer.code, body[:300], headers, answer.body[:300])
        if not known:
            assert answer.code in (401, 403), (number, answer.code)
            assert endpoint.executed == before


def test_no_request_makes_the_server_fail(endpoint: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    fuzz(endpoint, FUZZED, 1)
    assert "Traceback" not in caplog.text
    assert endpoint.call().code == 200


@pytest.mark.campaign
def test_ten_thousand_requests_do_not_make_the_server_fail(
    endpoint: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    fuzz(endpoint, 10_000, 2)
    assert "Traceback" not in caplog.text
    assert endpoint.call().code == 200


def test_a_client_that_asks_for_a_stream_leaves_no_warning(
    endpoint: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients with a handshake ask so in every session, and jupyter-ai begins a session for every call."""
    endpoint.served.app.log.addHandler(caplog.handler)
    try:
        assert endpoint.send(b"", {"Authorization": ""}, method="GET").code == 401
        assert "401 GET" in caplog.text
        assert endpoint.send(b"", method="GET").code == 405
        assert "405 GET" not in caplog.text
    finally:
        endpoint.served.app.log.removeHandler(caplog.handler)


def test_many_at_once_are_answered_each(endpoint: Endpoint) -> None:
    async def all_of_them() -> list[int]:
        meta = {META_VERSION: "2026-07-28", META_CAPABILITIES: {}}
        headers = {
            "Authorization": f"Bearer {endpoint.token}", "MCP-Protocol-Version": "2026-07-28",
            "Mcp-Method": "tools/call", "Mcp-Name": "run_command",
        }  # fmt: skip

        async def one(number: int) -> int:
            params = {"name": "run_command", "arguments": {"command": str(number)}, "_meta": meta}
            body = json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params})
            answer = await AsyncHTTPClient().fetch(
                endpoint.address, method="POST", headers=headers, body=body
            )
            found = json.loads(answer.body)
            assert found["result"]["structuredContent"]["said"]["command"] == str(number)
            return int(found["id"])

        return list(await asyncio.gather(*map(one, range(40))))

    assert endpoint.served.run(all_of_them()) == list(range(40))
