"""Configuration of MCP servers: every form that names them, and the sentence for what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llm_sandbox_nb.agent.errors import InputError
from llm_sandbox_nb.agent.mcp_client.configuration import ServerConfig, server_configs
from llm_sandbox_nb.agent.mcp_client.definition import definition_of
from llm_sandbox_nb.agent.mcp_client.servers import McpServers, missing_servers
from llm_sandbox_nb.agent.mcp_client.transports import LineSplitter, McpServerError
from llm_sandbox_nb.mcp_server.messages import MAX_MESSAGE_BYTES

TIME = {"command": "uvx", "args": ["mcp-server-time"]}
CONFIG = ServerConfig("time", "uvx", ("mcp-server-time",))


def files(folder: Path) -> None:
    (folder / ".mcp.json").write_text(
        json.dumps({"mcpServers": {"time": TIME, "web": {"url": "https://a.example/mcp"}}})
    )
    (folder / "some.json").write_text(
        json.dumps({"servers": {"time": TIME, "old": {**TIME, "disabled": True}}})
    )


@pytest.mark.parametrize(
    "given",
    [
        "time",
        ["time"],
        "some.json",
        "some.json#time",
        "time=uvx mcp-server-time",
        {"time": TIME},
        {"mcpServers": {"time": TIME}},
        json.dumps({"mcpServers": {"time": TIME}}),
        {"mcp_servers": [{"name": "time", "transport": "stdio", **TIME}]},
        {"name": "time", **TIME},
    ],
)
def test_each_form_names_the_server(tmp_path: Path, given: Any) -> None:
    files(tmp_path)
    assert server_configs(given, tmp_path) == [CONFIG]


def test_several_servers_and_web_services(tmp_path: Path) -> None:
    files(tmp_path)
    assert [one.name for one in server_configs([".mcp.json", "t=https://b.example/mcp"], tmp_path)] == [
        "time", "web", "t",
    ]  # fmt: skip


def test_texts_refer_to_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACE", "there")
    monkeypatch.delenv("NOWHERE", raising=False)
    entry = {"url": "https://${PLACE}/${NOWHERE:-mcp}", "headers": {"X-Place": "${PLACE}"}}
    (config,) = server_configs({"a": entry})
    assert (config.url, config.headers) == ("https://there/mcp", {"X-Place": "there"})
    with pytest.raises(InputError, match="needs the environment variable NOWHERE: set it"):
        server_configs({"a": {"url": "https://x/${NOWHERE}"}})


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("other", "There is no MCP server 'other'"),
        ("none.json", "There is no file"),
        ("bad.json", "cannot be read: it has to be JSON"),
        ("{", "are not valid JSON"),
        ("time='", "check its quotes"),
        ({"a b": TIME}, "has at most 31 letters and digits, with single - or _ between"),
        ({"a__b": TIME}, "has at most 31 letters and digits"),
        ("a_=x", "has at most 31 letters and digits"),
        ({"a": {}}, "needs either `command`, a program, or `url`, an address"),
        ({"a": {"command": "x", "url": "https://x"}}, "needs either `command`"),
        ({"a": {"url": "ftp://x"}}, "`url` has to be an address that begins with http:// or https://"),
        ("a=http://[", "`url` has to be an address that begins with http:// or https://"),
        ("a=http://", "`url` has to be an address that begins with http:// or https://"),
        ("a=http://x:port", "`url` has to be an address that begins with http:// or https://"),
        ('{"a": {"command": "x", "url": "https://x"}}', "needs either `command`"),
        ({"a": {"url": "https://x", "type": "sse"}}, "uses the old transport sse"),
        ({"a": {"command": "x", "args": "y"}}, "`args` has to be a list of texts"),
        ({"a": {"url": "https://x", "inside": True}}, "only a server with `command` can have it"),
        ({"a": {"url": "https://x", "headers": {"A": "b\nc"}}}, "has a line end in 'A'"),
        ({"a": 5}, "has to be an object"),
        ({}, "has no MCP servers"),
        (5, "mcp names servers"),
        ([5], "An MCP server is a name, a file or a mapping"),
        (["time", "time"], "Two MCP servers have the name time"),
        ({"servers": [{"name": "a", **TIME}, {"name": "a", **TIME}]}, "Two MCP servers have the name a"),
        ({"servers": [{"name": [], **TIME}]}, "has at most 31 letters and digits"),
        ([{"a-b": TIME}, {"a_b": TIME}], "are too similar"),
    ],
)
def test_what_is_wrong_is_one_sentence(tmp_path: Path, given: Any, sentence: str) -> None:
    files(tmp_path)
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(InputError) as caught:
        server_configs(given, tmp_path)
    assert sentence in str(caught.value)
    assert str(caught.value).endswith(".")


def test_what_settings_allow_does_not_matter_without_servers() -> None:
    assert McpServers.from_names(None, ["time"]) is None
    servers = McpServers.from_names({"time": TIME}, "time")
    assert servers is not None
    assert servers.allowed == {"time"}


def test_missing_servers_are_named_as_a_person_writes_them() -> None:
    assert missing_servers(["b", "a", "b"]) == (
        "This run had tools of MCP servers: name a, b again, as in mcp=['a', 'b'] or --mcp a --mcp b."
    )


def test_a_hash_pins_all_of_a_definition() -> None:
    raw = {"name": "a", "description": "b", "inputSchema": {"properties": {"x": {"type": "string"}}}}
    pins = {
        definition_of({**raw, **change}, "s__a", "s").sha256
        for change in ({}, {"description": "c"}, {"inputSchema": {}}, {"annotations": {"readOnlyHint": True}})
    }
    assert len(pins) == 4
    assert definition_of(dict(reversed(raw.items())), "s__a", "s").sha256 in pins


def test_a_line_without_an_end_is_refused() -> None:
    lines = LineSplitter()
    assert lines.feed(b"a\nb") == [b"a"]
    assert lines.feed(b"c\n\n") == [b"bc", b""]
    with pytest.raises(McpServerError, match="a message of more than 16 MB"):
        lines.feed(b"x" * (MAX_MESSAGE_BYTES + 1))


def test_a_schema_becomes_one_that_every_provider_accepts() -> None:
    schema = {
        "type": ["object", "null"], "anyOf": [{"required": ["x"]}], "oneOf": [], "allOf": [], "not": {}, "enum": [],
        "const": {}, "required": ["x", "z", ["x"], {}, None], "properties": {"x": {"anyOf": []}, "y": 1}, "$defs": {},
    }  # fmt: skip
    assert definition_of({"name": "t", "inputSchema": schema}, "s__t", "s").parameters == {
        "type": "object", "required": ["x"], "properties": {"x": {"anyOf": []}}, "$defs": {},
    }  # fmt: skip
