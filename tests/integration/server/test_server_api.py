"""The routes in a real Jupyter server: who may use them, what they answer, what they refuse."""

from __future__ import annotations

import asyncio
import json
import re
import tracemalloc
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import yaml
from card_runs import start_event
from jupyter_server.utils import JupyterServerAuthWarning
from pytest_jupyter.jupyter_server import *  # noqa: F403 - fixtures, for this module alone
from served import Served
from support import PATIENCE, eventually, own_mark, processes_with, until
from tornado.websocket import WebSocketHandler

import llm_sandbox_nb.server
from llm_sandbox_nb.sandbox.options import SandboxOptions
from llm_sandbox_nb.server import handlers
from llm_sandbox_nb.server.app import SandboxApp
from llm_sandbox_nb.server.card_handlers import card_routes
from llm_sandbox_nb.server.handlers import API, ID, rest_routes
from llm_sandbox_nb.server.history_handlers import CHECKPOINT, history_routes
from llm_sandbox_nb.server.kernels import ServerKernels
from llm_sandbox_nb.server.managed_sandbox import ManagedSandbox
from llm_sandbox_nb.server.manager import SandboxManager
from llm_sandbox_nb.server.mcp_handlers import mcp_token_routes
from llm_sandbox_nb.server.processes import UsageMeter
from llm_sandbox_nb.server.run_handlers import RUN_ID, run_routes
from llm_sandbox_nb.server.sockets import socket_routes
from llm_sandbox_nb.trajectory.journal import Journal

ROUTES = [*rest_routes, *socket_routes, *run_routes, *history_routes, *card_routes, *mcp_token_routes]
VERBS = ("get", "post", "put", "patch", "delete")
SPEC = yaml.safe_load(Path(llm_sandbox_nb.server.__file__).with_name("rest-api.yml").read_text())


def verbs(handler: type[Any]) -> list[str]:
    return [verb for verb in VERBS if verb in vars(handler)]


EVERY = [(pattern, handler, verb) for pattern, handler in ROUTES for verb in verbs(handler)]


@pytest.fixture
def jp_server_config(site: dict[str, Any]) -> dict[str, Any]:
    return {"ServerApp": {"jpserver_extensions": {"llm_sandbox_nb": True}}, **site}


@pytest.fixture
def site() -> dict[str, Any]:
    """The site's settings; a test overrides them with `@pytest.mark.parametrize("site", ...)`."""
    return {}


@pytest.fixture
def jp_server_auth_resources() -> dict[str, str]:
    return {pattern: "llm-sandbox" for pattern, _ in ROUTES}


@pytest.fixture
def kernel(served: Served) -> str:
    return served.kernel()


@pytest.fixture
def sandbox(served: Served, kernel: str) -> dict[str, Any]:
    status, model = served.ask(kernel)
    assert status == 201, model
    return dict(model)


def _path(pattern: str, kernel_id: str, sandbox_id: str) -> str:
    pattern = pattern.replace(RUN_ID, "run-1").replace(CHECKPOINT, "none")
    return pattern.replace(ID, sandbox_id).replace(r"(?P<kernel_id>[\w-]+)", kernel_id)


# ------------------------------------------------------------------------------------------------- who may


def test_the_description_is_of_these_routes() -> None:
    described = {
        (f"{API}{path}", verb) for path, item in SPEC["paths"].items() for verb in item if verb in VERBS
    }
    registered = {(re.sub(r"\(\?P<(\w+)>[^)]*\)", r"{\1}", pattern), verb) for pattern, _, verb in EVERY}
    assert described == registered
    references = set(re.findall(r"#/([\w/]+)", json.dumps(SPEC)))
    for reference in references:
        node = SPEC
        for part in reference.split("/"):
            node = node[part]


def test_every_verb_is_decorated_in_its_own_class() -> None:
    """An inherited verb would be authorised as the first class that was used (see `authorized`)."""
    for _, handler in ROUTES:
        assert verbs(handler)
        inherited = [base for base in handler.__mro__[1:] if base.__module__.startswith("llm_sandbox_nb")]
        assert not [verb for base in inherited for verb in verbs(base)]


@pytest.mark.parametrize("allowed", [True, False], ids=["allowed", "denied"])
def test_authorisation(
    allowed: bool, served: Served, kernel: str, jp_serverapp: Any, jp_server_authorizer: Any
) -> None:
    """Of each verb of each route. The authorizer itself asserts that it is asked for the right action and resource."""
    authorizer = jp_server_authorizer(parent=jp_serverapp)
    served.settings["authorizer"] = authorizer
    for pattern, handler, verb in EVERY:
        where = f"{verb} {pattern}"
        authorizer.permissions = {"actions": ["read", "write", "execute"], "resources": ["llm-sandbox"]}
        status, sandbox = served.ask(kernel)
        assert status in (200, 201), sandbox
        served.settings["llm_sandbox_runs"].publish("run-1", "k", "o", None)
        socket = issubclass(handler, WebSocketHandler)
        action = "execute" if socket else "read" if verb == "get" else "write"
        others = {"read", "write", "execute"} - {action}
        authorizer.permissions["actions"] = [action] if allowed else sorted(others)
        path = _path(pattern, kernel, sandbox["id"])
        if socket:
            assert served.connect(path) == (101 if allowed else 403), where
            continue
        body: dict[str, Any] = {"kernel_id": kernel} if pattern.endswith("sandboxes") else {"action": "stop"}
        if pattern.endswith("sandboxes/prepare"):
            body = {"kernel_id": kernel, "count": 0, "seconds": 1}
        if pattern.endswith("foreign-record"):
            body = {
                "problem_statement": "p",
                "steps": [
                    {"thought": "", "action": {"function": "submit", "parameters": {}}, "observation": ""}
                ],
            }
        history = "history" in pattern
        params = (
            {"path": ".", "since": "none"}
            if history or pattern.endswith(("content", "notebook-runs", "card"))
            else None
        )
        status, _ = served.call(verb, path, body if verb == "post" else None, params=params)
        assert (status != 403) is allowed, where
        done = (404,) if history else (200, 201, 202, 204, 409)
        assert status in (done if allowed else (403,)), where


def test_authentication(served: Served) -> None:
    nobody = {"Authorization": "token wrong"}
    for pattern, handler, verb in EVERY:
        path = _path(pattern, "k", "0" * 32)
        if issubclass(handler, WebSocketHandler):
            status = served.connect(path, headers=nobody)
        else:
            status, _ = served.call(verb, path, headers=nobody)
        assert status == 403, f"{verb} {pattern}"


@pytest.mark.parametrize("site", [{"ServerApp": {"allow_unauthenticated_access": False}}])
def test_no_handler_is_open_by_mistake(site: dict[str, Any], jp_configurable_serverapp: Any) -> None:
    config = {
        "ServerApp": {
            "jpserver_extensions": {"llm_sandbox_nb": True},
            "allow_unauthenticated_access": False,
        }
    }
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        app = jp_configurable_serverapp(config=config)
    ours = [str(one.message) for one in caught if issubclass(one.category, JupyterServerAuthWarning)]
    assert not [text for text in ours if "llm" in text or "Sandbox" in text]
    assert any(
        "llm-sandbox" in rule.matcher._path for rule in _rules(app.web_app) if hasattr(rule.matcher, "_path")
    )


def _rules(web_app: Any) -> list[Any]:
    found = []
    for rule in web_app.default_router.rules:
        found += getattr(rule.target, "rules", [rule])
    return found


# --------------------------------------------------------------------------------------------- what it does


def test_a_kernel_gets_its_sandbox_and_keeps_it(served: Served, kernel: str) -> None:
    one = f"{API}/kernels/{kernel}"
    assert served.call("get", one)[1] == {"kernel_id": kernel, "notebook": None, "sandbox": None}
    status, first = served.ask(kernel)
    assert (status, first["state"], first["protection"]["isolation"]) == (201, "running", "process")
    again, second = served.ask(kernel)
    assert (again, second["id"]) == (200, first["id"])
    assert served.call("get", one)[1]["sandbox"]["id"] == first["id"]
    status, fresh = served.ask(kernel, fresh=True)
    assert status == 201
    assert fresh["id"] != first["id"]
    assert [one["id"] for one in served.sandboxes()] == [fresh["id"]]
    assert served.call("get", f"{API}/info")[1]["sandboxes"] == 1
    assert served.call("delete", f"{API}/sandboxes/{fresh['id']}")[0] == 204
    assert served.call("delete", f"{API}/sandboxes/{fresh['id']}")[0] == 404
    assert served.sandboxes() == []

    async def at_once() -> list[Any]:
        request = {"method": "POST", "body": json.dumps({"kernel_id": kernel, "isolation": "process"})}
        return await asyncio.gather(*(served.jp_fetch(f"{API}/sandboxes", **request) for _ in range(5)))

    answers = served.run(at_once())
    assert sorted(answer.code for answer in answers) == [200, 200, 200, 200, 201]
    assert len({json.loads(answer.body)["id"] for answer in answers}) == 1


def test_reset_and_restart(served: Served, sandbox: dict[str, Any]) -> None:
    path = f"{API}/sandboxes/{sandbox['id']}"

    def run(command: str) -> bytes:
        return served.run(served.manager.running(sandbox["id"]).run(command)).stdout

    mark = own_mark()
    run(f"echo kept > file; export LOST=1; (setsid sleep {mark} &) ; sleep {mark} & ")
    until(lambda: len(processes_with(mark)) == 2)
    status, model = served.call("post", f"{path}/restart")
    assert (status, model["id"], model["state"]) == (200, sandbox["id"], "running")
    until(lambda: not processes_with(mark))
    assert run("cat file; echo $LOST") == b"kept\n\n"
    status, model = served.call("post", f"{path}/reset")
    assert (status, model["id"], model["settings"]) == (200, sandbox["id"], sandbox["settings"])
    assert model["sandbox_id"] != sandbox["sandbox_id"]
    assert run("ls file 2>&1 | tail -c 27") == b" No such file or directory\n"


def test_a_reset_fork_stays_a_fork(served: Served, sandbox: dict[str, Any]) -> None:
    fork = served.call("post", f"{API}/sandboxes/{sandbox['id']}/fork")[1]
    status, reset = served.call("post", f"{API}/sandboxes/{fork['id']}/reset")
    assert (status, reset["id"], reset["fork_of"]) == (200, fork["id"], sandbox["id"])
    assert served.call("delete", f"{API}/sandboxes/{sandbox['id']}")[0] == 204
    status, new = served.ask(sandbox["kernel_id"])
    assert status == 201
    assert new["id"] not in (sandbox["id"], fork["id"])


EVADING = {
    "with the command line of the executor": """
import os, signal, sys
argv = open(f"/proc/{sys.argv[1]}/cmdline").read().split("\\0")[:-1]
os.mkfifo("pipe")
if os.fork():
    os._exit(0)
os.setsid()
os.dup2(os.open("pipe", os.O_RDWR), 0)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])  # that program ends itself without an owner
print(os.getpid(), flush=True)
os.execvp(argv[0], argv)
""",
    "without its first thread": """
import ctypes, os, threading, time
if os.fork():
    os._exit(0)
os.setsid()
print(os.getpid(), flush=True)
threading.Thread(target=time.sleep, args=(600,)).start()
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
""",
}
"""Programs that print their pid and look like what a restart leaves alone."""


@pytest.mark.parametrize("program", EVADING)
def test_a_restart_ends_a_program(served: Served, sandbox: dict[str, Any], program: str) -> None:
    box = served.manager.running(sandbox["id"])
    served.run(box.write_file("program.py", EVADING[program].encode()))
    pid = int(
        served.run(
            box.run("python3 program.py $PPID > pid; until [ -s pid ]; do sleep 0.01; done; cat pid")
        ).stdout
    )
    assert Path(f"/proc/{pid}").exists()
    assert served.call("post", f"{API}/sandboxes/{sandbox['id']}/restart")[0] == 200
    served.run(
        served.manager.running(sandbox["id"]).run("sleep 1")
    )  # its end takes a moment; later, it may end itself
    assert not Path(f"/proc/{pid}").exists()


def test_files_are_listed_and_downloaded(served: Served, sandbox: dict[str, Any]) -> None:
    box, path = served.manager.running(sandbox["id"]), f"{API}/sandboxes/{sandbox['id']}/files"
    page = b"<script>alert(document.cookie)</script>"
    served.run(box.write_file('output/a "b"\n\u00e9.html', page))
    status, listing = served.call("get", path, params={"path": "output"})
    assert status == 200
    [file] = listing["files"]
    assert (file["kind"], file["size"]) == ("file", len(page))
    answer = served.fetch(f"{path}/content", params={"path": file["path"]})
    assert answer.body == page
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Content-Disposition"].startswith(
        "attachment; filename*=UTF-8''a%20%22b%22%0A%C3%A9"
    )
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert served.call("get", f"{path}/content", params={"path": "nothing"})[0] == 404
    assert served.call("get", f"{path}/content", params={"path": "."})[0] == 409
    assert served.call("get", f"{path}/content")[0] == 400
    status, refused = served.call("get", path, params={"depth": "x"})
    assert (status, refused["message"]) == (400, "'depth' must be a number from 1 to 10.")
    served.manager.max_download_bytes = 10
    status, refused = served.call("get", f"{path}/content", params={"path": file["path"]})
    assert (status, refused["error"]) == (413, "OutputLimitExceededError")


def test_blanks_at_the_ends_of_a_name_and_control_characters_count(
    served: Served, sandbox: dict[str, Any]
) -> None:
    folder = f"{API}/sandboxes/{sandbox['id']}/files"
    names = ("a.txt", " a.txt", "a.txt ", "a .txt", "a\x01.txt", "a\x1b.txt")
    for name in names:
        served.fetch(f"{folder}/content", method="PUT", body=name.encode(), params={"path": name})
    for name in names:
        assert served.fetch(f"{folder}/content", params={"path": name}).body == name.encode()
        listed = served.call("get", folder, params={"path": name})[1]["files"]
        assert [Path(file["path"]).name for file in listed] == [name]


def test_a_file_is_uploaded(served: Served, sandbox: dict[str, Any]) -> None:
    path, name = f"{API}/sandboxes/{sandbox['id']}/files/content", 'new folder/a "b"\né.bin'
    data = bytes(range(256)) * 4096

    for body in (b"longer than what comes next", data, b""):
        assert served.fetch(path, method="PUT", body=body, params={"path": name}).code == 204
        assert served.fetch(path, params={"path": name}).body == body
    assert served.call("put", path, params={"path": "."})[0] == 409
    assert served.call("put", path)[0] == 400
    assert served.call("put", path.replace(sandbox["id"], "0" * 32), params={"path": "x"})[0] == 404


def test_what_it_uses(served: Served, sandbox: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_000.0]
    monkeypatch.setattr(handlers.StatsHandler, "meter", UsageMeter(clock=lambda: now[0]))
    box, path = served.manager.running(sandbox["id"]), f"{API}/sandboxes/{sandbox['id']}/stats"
    used = served.call("get", f"{API}/sandboxes/{sandbox['id']}")[1]["last_activity"]
    status, before = served.call("get", path)
    assert status == 200
    assert before["processes"] >= 2
    eat = 'x = bytearray(60_000_000)\nfor i in range(4_000_000): pass\nopen("eaten", "w"); input()'
    served.run(box.run(f"(tail -f /dev/null | python3 -c '{eat}' &)"))
    until((Path(box.directories.root) / "eaten").exists)
    now[0] += 0.4
    assert served.call("get", path)[1] == before, "within half a second it is not measured again"
    now[0] += 0.2
    after = served.call("get", path)[1]
    assert after["time"] == pytest.approx(before["time"] + 0.6)
    assert after["processes"] == before["processes"] + 2
    assert after["memory_bytes"] - before["memory_bytes"] > 55_000_000
    assert after["cpu_seconds"] - before["cpu_seconds"] > 0.05
    assert served.call("get", f"{API}/sandboxes/{sandbox['id']}")[1]["last_activity"] == used


# ------------------------------------------------------------------------------------------ what it refuses

LOCKED = {
    "SandboxPolicy": {"allowed_isolations": ["process"], "allowed_profiles": ["standard"], "max_pids": 100},
    "SandboxManager": {"max_sandboxes": 1},
}


@pytest.mark.parametrize("site", [LOCKED])
def test_the_policy_is_told_in_one_sentence_and_there_is_a_maximum(
    site: dict[str, Any], served: Served, kernel: str
) -> None:
    auto = {"isolation": None}
    for asked in ({"isolation": "docker"}, auto, {"limits": {"pids": 101}}, {**auto, "profile": "strict"}):
        status, answer = served.ask(kernel, **asked)
        assert (status, answer["error"]) == (403, "PolicyError"), asked
        assert answer["message"].startswith("This site "), asked
    assert served.sandboxes() == []

    assert served.ask(kernel)[0] == 201
    other = served.kernel()
    status, answer = served.ask(other)
    assert (status, answer["error"]) == (403, "PolicyError")
    assert answer["message"].startswith("This server runs 1 sandbox, as many as its site allows. Idle: ")
    assert "%sandbox stop --idle" in answer["message"]
    sandbox = served.ask(kernel, fresh=True)[1]

    idle = f"{API}/sandboxes/stop-idle"
    assert served.call("post", idle, {"kernel_id": kernel, "most": 1}) == (200, {"stopped": []}), (
        "one's own stays"
    )
    for wrong in ({"most": 0}, {"most": "1"}, {"most": True}, {"kernel_id": 3}, [], ""):
        assert served.call("post", idle, wrong)[0] == 400
    stopped = served.call("post", idle, {"kernel_id": other, "most": 1})[1]["stopped"]
    assert [one["id"] for one in stopped] == [sandbox["id"]], "what is idle longest"
    assert served.ask(other)[0] == 201


def test_requests_that_make_no_sense(served: Served, kernel: str) -> None:
    process = {"kernel_id": kernel, "isolation": "process"}
    for body, status, kind in (
        ({}, 400, "ValueError"),
        ([1], 400, "ValueError"),
        ({"kernel_id": 3}, 400, "ValueError"),
        ({"kernel_id": None}, 400, "ValueError"),
        ({"kernel_id": "nobody's"}, 404, None),
        ({**process, "limits": {"disk": 1}}, 400, "ValueError"),
        ({**process, "fresh": "yes"}, 400, "ValueError"),
        ({**process, "limits": {"pids": 1e300}}, 400, "ValueError"),
        ({**process, "limits": {"pids": 0.5}}, 400, "ValueError"),
        ({**process, "image": "x"}, 400, "ValueError"),
        ({**process, "network": "none"}, 400, "ValueError"),
        ({**process, "isolation": "chroot"}, 403, "PolicyError"),
    ):
        answered, answer = served.call("post", f"{API}/sandboxes", body)
        assert answered == status, body
        assert answer["message"], body
        assert kind in (None, answer["error"]), body
        assert "Traceback" not in json.dumps(answer)
    assert served.sandboxes() == []
    for wrong in ("x", "0" * 31, "0" * 33, "..%2F..", "0" * 31 + "G"):
        assert served.call("get", f"{API}/sandboxes/{wrong}")[0] == 404, wrong


def test_every_trait_explains_itself() -> None:
    for owner in (SandboxApp, SandboxManager, *SandboxApp.classes):
        for name, trait in owner.class_own_traits(config=True).items():
            assert trait.help, f"{owner.__name__}.{name}"


def test_a_token_comes_with_ready_lines_and_ends_when_it_is_revoked(
    served: Served, sandbox: dict[str, Any]
) -> None:
    path = f"{API}/sandboxes/{sandbox['id']}/mcp-token"
    assert served.call("get", path) == (200, {"exists": False, "run": None})
    status, made = served.call("post", path, {"url": "https://hub.example/user/a/"})
    assert status == 201
    bearer = f"Bearer {made['token']}"
    assert f'https://hub.example/user/a/llm-sandbox/mcp --header "Authorization: {bearer}"' in made["connect"]
    assert [line.partition(",")[0] for line in made["connect"].splitlines()[::2]] == [
        "Claude Code", "Cursor", "VS Code", "jupyter-ai",
    ]  # fmt: skip
    assert all(json.loads(line) for line in made["connect"].splitlines()[3::2])
    assert made["connect"].count(bearer) == 4
    for url in ("javascript:alert(1)", 'https://a/" ; rm -rf ~ #/', "https://a/$(id)/", "https://a", 3, ""):
        assert served.call("post", path, {"url": url})[0] == 400, url
    assert served.call("post", path, {"keep": "yes"})[0] == 400
    assert served.call("post", path, {"keep": True})[1] == {**made, "token": None, "connect": None}
    assert f"{made['path']} --header" in served.call("post", path)[1]["connect"]
    assert served.call("get", path)[1]["exists"] is True
    assert served.call("delete", path)[0] == 204
    assert served.call("get", path)[1]["exists"] is False


def test_a_fork_leaves_the_token_of_its_notebook_alone(served: Served, sandbox: dict[str, Any]) -> None:
    own = served.manager.get(sandbox["id"])
    own.notebook = "a.ipynb"
    status, fork = served.call("post", f"{API}/sandboxes/{own.id}/fork")
    assert (status, fork["notebook"]) == (201, "a.ipynb")
    path, forks = (f"{API}/sandboxes/{id}/mcp-token" for id in (own.id, fork["id"]))
    grants = served.settings["llm_sandbox_mcp"].grants
    token = served.call("post", path)[1]["token"]
    assert served.call("get", forks) == (200, {"exists": False, "run": None})
    assert grants.find(token).sandbox_id == own.id
    of_fork = served.call("post", forks, {"keep": True})[1]["token"]
    assert (grants.find(token).sandbox_id, grants.find(of_fork).sandbox_id) == (own.id, fork["id"])
    for _ in range(2):
        assert served.call("delete", forks)[0] == 204
    assert grants.find(of_fork) is None
    assert served.call("get", path)[1]["exists"] is True


def test_a_new_notebook_does_not_get_the_token_of_a_renamed_one(
    served: Served, sandbox: dict[str, Any]
) -> None:
    old, new = served.manager.get(sandbox["id"]), served.manager.get(served.ask(served.kernel())[1]["id"])
    old.notebook = "a.ipynb"
    assert served.call("post", f"{API}/sandboxes/{old.id}/mcp-token")[0] == 201
    old.notebook, new.notebook = "b.ipynb", "a.ipynb"
    exists = [served.call("get", f"{API}/sandboxes/{id}/mcp-token")[1]["exists"] for id in (new.id, old.id)]
    assert exists == [False, True]


def test_runs_in_a_folder_that_a_kernel_has_named_are_listed_at_once(
    served: Served, kernel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server learned the notebook of a run only when somebody listed all runs."""

    async def notebook(*_: object) -> str:
        return "a.ipynb"

    monkeypatch.setattr(ServerKernels, "notebook", notebook)
    journal = Journal(tmp_path / "elsewhere" / "run-1")
    journal.append(start_event())
    journal.close()
    run = served.settings["llm_sandbox_runs"].publish("run-1", kernel, "owner", SimpleNamespace())
    run.folder = tmp_path / "elsewhere" / "run-1"
    status, found = served.call("get", f"{API}/notebook-runs", params={"path": "a.ipynb"})
    assert status == 200
    assert [one["id"] for one in found["runs"]] == ["run-1"]


def test_a_run_that_is_published_during_the_adoption_keeps_its_outside_agent(
    served: Served, kernel: str
) -> None:
    manager, runs = served.manager, served.settings["llm_sandbox_runs"]
    adopted = ManagedSandbox("f" * 32, kernel, None, SandboxOptions())

    async def publish() -> None:
        await manager.ready()
        manager._watcher._adopted.clear()

        def adopt() -> None:
            manager.adopt(adopted)
            manager._watcher._adopted.set()

        asyncio.get_running_loop().call_later(0.5, adopt)
        socket = await served.jp_ws_fetch(f"{API}/runs/run-1/publish")
        hello = {"type": "hello", "kernel_id": kernel, "owner": "owner", "outside": adopted.id}
        await socket.write_message(json.dumps(hello))
        assert json.loads(await socket.read_message())["type"] == "welcome"
        await eventually(lambda: runs.outside_run(adopted.id) is runs.get("run-1"))
        socket.close()

    served.run(publish())


def test_paths_that_are_too_long(served: Served, sandbox: dict[str, Any]) -> None:
    """They were answered 500, as a defect of the server."""
    files = f"{API}/sandboxes/{sandbox['id']}/files"
    for path in ("/" + "x" * 10_000, "x/" * 5_000 + "f", "x" * 300):
        for verb, route in (("get", f"{files}/content"), ("put", f"{files}/content"), ("get", files)):
            status, answer = served.call(verb, route, params={"path": path})
            assert status == 400, (verb, route, status, answer)
            assert len(answer["message"]) <= 1000


# ---------------------------------------------------------------------------------------- large and slow clients


def _request(sandbox: dict[str, Any], server: Any, verb: str, path: str, *headers: str) -> bytes:
    url = f"{server.base_url}{API.lstrip('/')}/sandboxes/{sandbox['id']}/files/content?path={path}"
    token = f"Authorization: token {server.identity_provider.token}"
    return "\r\n".join([f"{verb} {url} HTTP/1.1", "Host: localhost", token, *headers, "", ""]).encode()


def test_an_upload_is_not_held_in_memory(served: Served, sandbox: dict[str, Any]) -> None:
    size, piece = 40 * 2**20, bytes(2**18)

    async def put() -> tuple[bytes, int]:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.app.port)
        writer.write(_request(sandbox, served.app, "PUT", "big", f"Content-Length: {size}"))
        tracemalloc.start()
        for _ in range(size // len(piece)):
            writer.write(piece)
            await writer.drain()
        status = await reader.readline()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        writer.close()
        return status, peak

    status, peak = served.run(put())
    assert b" 204 " in status
    assert peak < 30 * 2**20
    files = served.call("get", f"{API}/sandboxes/{sandbox['id']}/files")[1]["files"]
    assert [one["size"] for one in files if one["path"].endswith("/big")] == [size]


def test_an_upload_of_a_stranger_is_refused_before_its_body(served: Served, sandbox: dict[str, Any]) -> None:
    async def put() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.app.port)
        request = _request(sandbox, served.app, "PUT", "x", "Content-Length: 1000000")
        writer.write(re.sub(rb"Authorization: [^\r]*", b"X-None: x", request))
        status = await reader.readline()
        writer.close()
        return status

    assert b" 403 " in served.run(asyncio.wait_for(put(), PATIENCE))


def test_slow_clients_are_hung_up_on(
    served: Served, sandbox: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that never completes its upload, and one that never takes its download."""
    monkeypatch.setattr(handlers, "PATIENCE", 0.5)
    monkeypatch.setattr(handlers, "MIN_BYTES_PER_SECOND", 2**30)
    content = f"{API}/sandboxes/{sandbox['id']}/files"

    async def wait() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.app.port)
        writer.write(_request(sandbox, served.app, "PUT", "slow", "Content-Length: 1000000") + b"half")
        assert await reader.read() == b""
        writer.close()
        await served.manager.running(sandbox["id"]).write_file("big", bytes(32 * 2**20))
        reader, writer = await asyncio.open_connection("127.0.0.1", served.app.port, limit=2**16)
        writer.write(_request(sandbox, served.app, "GET", "big"))
        await reader.readline()
        mine = writer.get_extra_info("sockname")
        await eventually(lambda: all(one.raddr != mine for one in psutil.Process().net_connections()))
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(32 * 2**20)
        writer.close()

    served.run(asyncio.wait_for(wait(), 2 * PATIENCE))
    names = [one["path"].rsplit("/", 1)[1] for one in served.call("get", content)[1]["files"]]
    assert "big" in names
    assert "slow" not in names
