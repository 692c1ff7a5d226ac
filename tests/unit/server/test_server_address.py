"""Which servers a kernel takes into account, and what it never shows or sends."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import eventually, run

from llm_sandbox_nb.notebook.server_client import sandbox as server_sandbox
from llm_sandbox_nb.notebook.server_client.address import ServerAddress, candidates, own_kernel_id

VARIABLES = {
    "LLM_SANDBOX_SERVER_URL": "http://127.0.0.1:8888/x",
    "LLM_SANDBOX_SERVER_TOKEN": "t",
    "JPY_PARENT_PID": "7",
}
PROTECTION = {
    "isolation": "process", "profile": "standard", "user": "me", "no_new_privileges": False, "seccomp": "none",
    "network": "open", "read_only_system": False, "memory_bytes": None, "pids": None, "cpus": None,
}  # fmt: skip


def info(folder: Path, **values: object) -> None:
    (folder / "jpserver-7.json").write_text(json.dumps(values))


def test_the_variables_come_before_the_file(tmp_path: Path) -> None:
    info(tmp_path, url="http://127.0.0.1:9999/", token="u", pid=7)
    found = list(candidates(VARIABLES, tmp_path))
    assert [(one.url, one.token) for one in found] == [
        ("http://127.0.0.1:8888/x/", "t"),
        ("http://127.0.0.1:9999/", "u"),
    ]


def test_only_the_parents_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "jpserver-8.json").write_text('{"url": "http://127.0.0.1:1/", "token": "no"}')
    assert list(candidates({"JPY_PARENT_PID": "7"}, tmp_path)) == []
    assert list(candidates({"JPY_PARENT_PID": "../jpserver-8"}, tmp_path)) == []
    assert list(candidates({}, tmp_path)) == []


def test_what_is_broken_or_not_http_is_no_server(tmp_path: Path) -> None:
    for content in ("", "{", "[]", "3", '{"token": "t"}', '{"url": null}', "\xff"):
        (tmp_path / "jpserver-7.json").write_text(content, "latin-1")
        assert list(candidates({"JPY_PARENT_PID": "7"}, tmp_path)) == [], content
    for url in (
        "http+unix://%2Frun%2Fx.sock/",
        "file:///etc/passwd",
        "ftp://x/",
        "127.0.0.1",
        "http://[",
        "",
    ):
        assert list(candidates({"LLM_SANDBOX_SERVER_URL": url}, tmp_path)) == [], url


def test_the_hubs_token_is_a_servers_that_has_none(tmp_path: Path) -> None:
    hub = {**VARIABLES, "LLM_SANDBOX_SERVER_TOKEN": "", "JUPYTERHUB_API_TOKEN": "hub"}
    assert [one.token for one in candidates(hub, tmp_path)] == ["hub"]
    assert [one.token for one in candidates({**hub, "LLM_SANDBOX_SERVER_TOKEN": "own"}, tmp_path)] == ["own"]


def test_the_token_is_sent_in_a_header_and_shown_nowhere() -> None:
    address = ServerAddress("https://127.0.0.1:1/", "secret")
    assert "secret" not in repr(address)
    request = address.channel("sandboxes/1/channel")
    assert request.url == "wss://127.0.0.1:1/llm-sandbox/api/sandboxes/1/channel"
    assert request.headers["Authorization"] == "token secret"
    assert request.follow_redirects is False
    assert request.ssl_options.check_hostname is True


def test_no_kernel_has_no_id() -> None:
    assert own_kernel_id() is None


@given(st.dictionaries(st.sampled_from([*VARIABLES, "JUPYTERHUB_API_TOKEN"]), st.text(max_size=30)))
def test_any_environment_is_survived(variables: dict[str, str]) -> None:
    for address in candidates(variables, Path("/nonexistent")):
        assert address.url.startswith(("http://", "https://"))
        assert address.url.endswith("/")


def test_a_clone_whose_caller_was_interrupted_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would count for the site's maximum until the kernel ends."""

    async def body() -> None:
        asked, answered, deleted = asyncio.Event(), asyncio.Event(), list[str]()

        async def ask(address: ServerAddress, path: str, method: str, *_: object, **__: object) -> Any:
            if method == "DELETE":
                deleted.append(path)
                return 204, {}
            asked.set()
            await answered.wait()
            return 201, {"id": "clone"}

        monkeypatch.setattr(server_sandbox, "ask_server", ask)
        model = {"id": "own", "sandbox_id": "box", "root": "/testbed", "protection": PROTECTION}
        box = server_sandbox.ServerSandbox(ServerAddress("http://127.0.0.1:9/"), model)
        cloning = asyncio.create_task(box.clone())
        await asked.wait()
        cloning.cancel()
        await asyncio.wait({cloning})
        answered.set()
        await eventually(lambda: deleted == ["sandboxes/clone"])
        assert cloning.cancelled()

    run(body())
