"""Handles of another sandbox or another token: each tool that accepts a handle refuses them, and forged ones."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mcp_endpoint import BOX, OTHER, Endpoint, Kernel
from pytest_jupyter.jupyter_server import *  # noqa: F403 - fixtures, for this module alone
from served import Served
from support import eventually, own_mark

from llm_sandbox_nb.agent.control.pause_rules import PauseRules
from llm_sandbox_nb.mcp_server.tools import RUN_TOOLS, TOOLS
from llm_sandbox_nb.runs.outside_agent import start_agent
from llm_sandbox_nb.runs.outside_calls import OutsideCalls
from llm_sandbox_nb.runs.solve import solve
from llm_sandbox_nb.runs.started_runs import StartedRuns
from llm_sandbox_nb.sandbox.open import open_sandbox
from llm_sandbox_nb.server.manager import SandboxManager
from llm_sandbox_nb.server.mcp_handlers import Caller, KernelHost

SLEEPER = 'turns: [{calls: [{tool: execute_bash, arguments: {command: "sleep %s"}}]}]'
ARGUMENTS: dict[str, dict[str, Any]] = {
    "run_command": {"command": "cat secret.txt"},
    "read_file": {"path": "secret.txt"},
    "write_file": {"path": "w.txt", "content": "w"},
    "edit_file": {"path": "secret.txt", "old_string": "secret", "new_string": "x"},
    "create_checkpoint": {"label": "l"},
    "show_changes": {"from": "0"},
    "rewind": {"to": "0"},
    "start_run": {"task": "Wait."},
}
"""Arguments without which a tool does nothing."""
WITH_COMMAND = {"wait_command", "stop_command"}
WITH_RUN = {"get_run", "stop_run"}


class RealKernel(Kernel):
    """A kernel whose sandbox has a fork, a command that has ended, and a run that an outside agent started."""

    def __init__(self, box: str, folder: Path) -> None:
        super().__init__()
        self.name, self.folder = f"fork-of-{box[0]}", folder / box[0]
        self.secret = f"secret-of-{box[0]}"
        self.calls: Any = None
        self.handles: dict[str, str] = {}

    async def open(self, principal: str) -> None:
        self.sandbox = await open_sandbox("process")
        await self.sandbox.write_file("secret.txt", self.secret.encode())
        agent = await start_agent(self.sandbox, output_dir=self.folder, name=None, rules=PauseRules())
        script = self.folder / "script.yaml"
        script.write_text(SLEEPER % own_mark())

        async def starter(request: Any, listener: Any, begun: Any) -> object:
            return await solve(
                request.task, model=f"scripted/{script}", isolation="process", sandbox=self.sandbox,
                listeners=[listener], on_run=begun, output_dir=self.folder, show=False,
            )  # fmt: skip

        self.calls = OutsideCalls(agent, None, starter)

        async def call(tool: str, **arguments: Any) -> dict[str, Any]:
            found: dict[str, Any] = await self.calls.call(tool, arguments, "own", principal=principal)
            assert not found["error"], found
            return found["data"]

        await call("run_command", command="true", wait=60)
        await call("fork", label=self.name)
        started = await call("start_run", task="Wait.", max_steps=3)
        self.handles = {
            "command_id": next(iter(agent.calls)),
            "run_id": started["run_id"],
            "folder": agent.run.folder.name,
        }
        journals = [path for path in self.folder.rglob("journal.jsonl") if agent.run.folder != path.parent]
        await eventually(lambda: any(_sleeps(path.read_text()) for path in journals))

    def send(self, message: dict[str, Any]) -> None:
        self.asked.append(message)
        if message["type"] == "tool":
            self.answering = asyncio.ensure_future(self._answer(message))

    async def _answer(self, message: dict[str, Any]) -> None:
        names = ("tool", "arguments", "client", "agreed", "principal")
        result = await self.calls.call(*(message[name] for name in names))
        self.run.take_answer({"id": message["id"], "error": None, "result": result})

    async def close(self) -> None:
        await self.calls.close()
        await self.sandbox.close()


def _sleeps(journal: str) -> bool:
    """True if the journal ends with the start of the command that does not end."""
    last = json.loads(journal.splitlines()[-1]) if journal.endswith("\n") else {}
    return last.get("kind") == "call.started" and "sleep" in last["arguments"]["command"]


@pytest.fixture
def jp_server_config() -> dict[str, Any]:
    return {"ServerApp": {"jpserver_extensions": {"llm_sandbox_nb": True}}}


@pytest.fixture
def endpoint(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    idle = SimpleNamespace(requests=0, typed=0.0)
    monkeypatch.setattr(SandboxManager, "get", lambda self, id: idle)
    found = Endpoint(served, tmp_path, runs=True)
    for box, token in ((BOX, found.token), (OTHER, found.other)):
        published, grant = found.kernels[box].run, found.grants.find(token)
        assert grant is not None
        kernel = found.kernels[box] = RealKernel(box, tmp_path)
        kernel.run = published
        published.kernel = kernel
        served.run(kernel.open(grant.name))
    yield found
    for kernel in found.kernels.values():
        served.run(kernel.close())


def refused(endpoint: Endpoint, tool: str, arguments: dict[str, Any], token: str) -> bool:
    """True if nothing was done in the other sandbox, and the answer shows nothing of it."""
    other: RealKernel = endpoint.kernels[OTHER]
    asked = len(other.asked)
    answer = endpoint.call(tool, arguments=arguments, headers={"Authorization": f"Bearer {token}"})
    body = json.loads(answer.body)
    if answer.code >= 400:
        return True
    said = body["result"]
    text = json.dumps(said)
    shows = other.secret in text or (said["structuredContent"].keys() - {"error"} and said["isError"])
    return said["isError"] and not shows and len(other.asked) == asked


def leaks(endpoint: Endpoint) -> set[tuple[str, str]]:
    """Make calls with handles that do not belong to the caller; tools and fields of those that are not refused."""
    own, other = endpoint.kernels[BOX], endpoint.kernels[OTHER]
    newer = endpoint.grants.mint(BOX, None)  # another token of the same sandbox
    found = set()
    for name in sorted(TOOLS):
        for sandbox in (
            OTHER,
            f"{OTHER}/main",
            f"{OTHER}/{other.name}",
            other.name,
            f"../{OTHER}",
            OTHER[:-1],
        ):
            arguments = ARGUMENTS.get(name, {}) | {"sandbox": sandbox}
            if name in WITH_COMMAND:
                arguments["command_id"] = other.handles["command_id"]
            if name in WITH_RUN:
                arguments["run_id"] = other.handles["run_id"]
            if not refused(endpoint, name, arguments, newer):
                found.add((name, "sandbox"))
    for tools, field in ((WITH_COMMAND, "command_id"), (WITH_RUN, "run_id")):
        strange = [own.handles[field], *(kernel[field] for kernel in (other.handles,))]
        strange += [
            own.handles[field][:-1],
            own.handles[field] + "0",
            f"{field[:3]}-{'0' * 24}",
            "\u2028",
            "x" * 5000,
        ]
        strange += [other.handles["folder"], f"{OTHER}/{other.handles[field]}"]
        for name in tools:
            for handle in strange:
                if not refused(endpoint, name, {field: handle}, newer):
                    found.add((name, field))
    return found


def test_handles_of_another_sandbox_or_token_and_forged_ones_are_refused(endpoint: Endpoint) -> None:
    before = {path: path.read_bytes() for path in (endpoint.kernels[OTHER].folder).rglob("journal.jsonl")}
    assert leaks(endpoint) == set()
    assert {path: path.read_bytes() for path in before} == before
    assert len(before) == 3  # the agent, its fork, and the run that it started


def test_a_state_of_another_token_or_request_is_refused(endpoint: Endpoint) -> None:
    grant = endpoint.grants.find(endpoint.token)
    assert grant is not None
    request = {"tool": "rewind", "arguments": {"to": "0"}}
    agreed = {"undo_others": {"action": "accept", "content": {"undo": True}}}

    def code(state: str, token: str, to: str = "0") -> int | None:
        message = json.loads(endpoint_body("rewind", {"to": to}, requestState=state, inputResponses=agreed))
        headers = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "rewind"}
        answer = endpoint.send(message, {**headers, "Authorization": f"Bearer {token}"})
        error: int | None = json.loads(answer.body).get("error", {}).get("code")
        return error

    signer = endpoint.services.endpoint._signer
    state = signer.sign(grant.name, request, "about")
    assert code(state, endpoint.other) == -32602
    assert code(state, endpoint.token, to="1") == -32602
    assert code(state[:-8] + "AAAAAAA=", endpoint.token) == -32602
    assert code(state, endpoint.token) is None
    assert code(state, endpoint.token) == -32602  # replayed


def endpoint_body(tool: str, arguments: dict[str, Any], **more: Any) -> str:
    from llm_sandbox_nb.mcp_server.messages import META_CAPABILITIES, META_VERSION

    meta = {META_VERSION: "2026-07-28", META_CAPABILITIES: {}}
    params = {"name": tool, "arguments": arguments, "_meta": meta, **more}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})


def _any_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = KernelHost._run

    def run(self: KernelHost, arguments: dict[str, Any]) -> Any:
        self.caller = Caller(self.caller.principal, None)
        return checked(self, arguments)

    monkeypatch.setattr(KernelHost, "_run", run)


def _any_token_for_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = OutsideCalls._known_call

    def known_call(self: OutsideCalls, id: str, caller: Any) -> Any:
        for agent in self.agents.values():
            if id in agent.calls:
                return agent, agent.calls[id]
        return checked(self, id, caller)

    monkeypatch.setattr(OutsideCalls, "_known_call", known_call)


def _any_token_for_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = StartedRuns.find

    def find(self: StartedRuns, id: str, principal: str) -> Any:
        return self._runs.get(id) or checked(self, id, principal)

    monkeypatch.setattr(StartedRuns, "find", find)


def test_the_test_finds_a_check_that_is_missing(endpoint: Endpoint) -> None:
    removed: list[tuple[Callable[[pytest.MonkeyPatch], None], set[tuple[str, str]]]] = [
        (_any_token_for_commands, {(name, "command_id") for name in WITH_COMMAND}),
        (_any_token_for_runs, {(name, "run_id") for name in WITH_RUN}),
        (
            _any_sandbox,
            {(name, "sandbox") for name in TOOLS},
        ),  # the last: it lets calls change the other sandbox
    ]
    for remove_check, expected in removed:
        with pytest.MonkeyPatch.context() as patch:
            remove_check(patch)
            assert leaks(endpoint) == expected


def test_every_tool_with_a_handle_is_called() -> None:
    handles = {name: set(tool.properties) & {"command_id", "run_id"} for name, tool in TOOLS.items()}
    assert {name for name, fields in handles.items() if "command_id" in fields} == WITH_COMMAND
    assert {name for name, fields in handles.items() if "run_id" in fields} == WITH_RUN
    assert set(ARGUMENTS) >= {name for name, tool in TOOLS.items() if set(tool.required) - handles[name]}
    assert set(TOOLS) >= RUN_TOOLS
