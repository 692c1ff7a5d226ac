"""Real kernels of real Jupyter servers: how they find their server, and how long their sandbox lives."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.cookiejar import CookieJar
from pathlib import Path

import pytest
from jupyter_process import STUB, JupyterProcess, jupyter
from support import KEPT_PIDS, PATIENCE, QUICK_IMPORTS, own_mark, processes_with, run, until

from llm_sandbox_nb.notebook.server_client.address import ServerAddress
from llm_sandbox_nb.notebook.server_client.keeper import ServerKeeper
from llm_sandbox_nb.sandbox.errors import PolicyError
from llm_sandbox_nb.sandbox.options import SandboxOptions

USE = """
from llm_sandbox_nb.sandbox.options import SandboxOptions
from llm_sandbox_nb.notebook.server_client.keeper import connect_server
keeper = await connect_server()
box = await keeper.acquire(SandboxOptions("process")) if keeper else None
"""
WHICH = USE.replace("box =", "#") + "\nprint(keeper._address.url if keeper else None)"
WATCH = "--SandboxManager.watch_interval=0.2"
MORTAL = ("--KernelManager.autorestart=False", "--AsyncIOLoopKernelManager.autorestart=False")
NO_FILE = "os.environ['JPY_PARENT_PID'] = '1'"
"""The parent's file, which names its server, is not found."""


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JupyterProcess]:
    options = ("--SandboxManager.dead_kernel_grace=1", "--SandboxPolicy.allowed_isolations=process")
    with jupyter(tmp_path_factory.mktemp("other"), WATCH, *MORTAL, *options) as running:
        yield running


@pytest.fixture
def other(process: JupyterProcess) -> JupyterProcess:
    """A second server, of which a test may end kernels and the server itself."""
    assert process.process is not None
    if process.process.poll() is not None:
        process.start()
    KEPT_PIDS.add(process.process.pid)
    return process


# ----------------------------------------------------------------------------------------- finding its server


def found(server: JupyterProcess, kernel: str, *changes: str) -> str:
    """The address of the server that a kernel finds after these changes of its environment."""
    lines = ["import os", "kept = dict(os.environ)", *changes, WHICH]
    return server.execute(kernel, "\n".join([*lines, "os.environ.clear(); os.environ.update(kept)"])).strip()


def test_a_kernel_finds_its_own_server(server: JupyterProcess, kernel: str) -> None:
    assert found(server, kernel, "assert 'LLM_SANDBOX_SERVER_URL' in os.environ", NO_FILE) == server.url
    forget = "for name in [one for one in os.environ if 'LLM_SANDBOX' in one]: del os.environ[name]"
    assert found(server, kernel, forget) == server.url, "by the file"
    hub = "os.environ['JUPYTERHUB_API_TOKEN'] = os.environ['LLM_SANDBOX_SERVER_TOKEN']"
    nameless = "os.environ['LLM_SANDBOX_SERVER_TOKEN'] = ''"
    assert found(server, kernel, hub, nameless, NO_FILE) == server.url, "the hub's token"


def test_a_server_without_a_token(tmp_path: Path) -> None:
    """Anybody who reaches it may do anything, and tornado then asks for a sign against forged requests."""
    with jupyter(tmp_path, WATCH, token="") as server:
        kernel = server.start_kernel()
        assert found(server, kernel) == server.url
        assert "works" in server.execute(kernel, USE + "print((await box.run('echo works')).stdout)")


def test_a_server_with_a_certificate_of_its_own(tmp_path: Path) -> None:
    """Its name is not that of loopback; another certificate, though, is not taken for it."""
    for name in ("its", "another"):
        make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
        subject = f"-subj /CN={name}.example -keyout {name}.key -out {name}.pem"
        subprocess.run([*make.split(), *subject.split()], check=True, capture_output=True, cwd=tmp_path)
    with jupyter(tmp_path / "jupyter", certificate=(tmp_path / "its.pem", tmp_path / "its.key")) as server:
        kernel = server.start_kernel()
        told = server.execute(kernel, USE + "print((await box.run('echo over TLS')).text)")
        assert told.strip() == "over TLS"
        wrong = f"os.environ['LLM_SANDBOX_SERVER_CERTIFICATE'] = {str(tmp_path / 'another.pem')!r}"
        assert found(server, kernel, wrong, NO_FILE) == "None"


def test_another_server_is_never_used(server: JupyterProcess, kernel: str, other: JupyterProcess) -> None:
    """The other one is alive, its token is right, and it has the extension: but the kernel is not its own."""
    mislead = (
        f"os.environ['LLM_SANDBOX_SERVER_URL'] = {other.url!r}",
        f"os.environ['LLM_SANDBOX_SERVER_TOKEN'] = {other.token!r}",
    )
    assert found(server, kernel, *mislead) == server.url
    assert found(server, kernel, *mislead, NO_FILE) == "None"
    assert other.sandboxes() == []


def test_a_server_that_is_none_is_passed_over(server: JupyterProcess, kernel: str) -> None:
    with socket.socket() as dead, socket.socket() as silent:
        for listener in (dead, silent):
            listener.bind(("127.0.0.1", 0))
        silent.listen()
        ports = [listener.getsockname()[1] for listener in (dead, silent)]
        urls = [f"http://127.0.0.1:{port}/" for port in ports]
        without_the_extension = f"{server.url}static/"
        for url in (*urls, "file:///etc/passwd", "", without_the_extension):
            change = f"os.environ['LLM_SANDBOX_SERVER_URL'] = {url!r}"
            assert found(server, kernel, change, NO_FILE) == "None", url


NBCLIENT = """
import nbformat, nbclient, os
notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(os.environ["CELL"])])
nbclient.execute(notebook, timeout=280)
print("".join(output.get("text", "") for output in notebook.cells[0].outputs))
"""


def test_a_notebook_run_from_a_terminal_inside_lab_does_not_use_the_server(server: JupyterProcess) -> None:
    """It inherits every variable of the server, the parent's process id too."""
    assert server.process is not None
    found = {
        "LLM_SANDBOX_SERVER_URL": server.url,
        "LLM_SANDBOX_SERVER_TOKEN": server.token,
        "JPY_PARENT_PID": str(server.process.pid),
        "JUPYTER_RUNTIME_DIR": str(server.runtime),
        "PYTHONPATH": os.pathsep.join((str(Path(__file__).parents[3]), str(QUICK_IMPORTS))),
        "CELL": WHICH,
    }
    answer = subprocess.run(
        [sys.executable, "-c", NBCLIENT],
        env={**os.environ, **found},
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
    )
    assert answer.stdout.strip() == "None", answer.stderr


# --------------------------------------------------------------------------------- how long a sandbox lives


def test_a_sandbox_survives_restart_and_rename_and_ends_with_its_notebook(server: JupyterProcess) -> None:
    session = server.start_session("first.ipynb")
    kernel = session["kernel"]["id"]
    server.execute(kernel, USE + "await box.run('echo kept > file; export SHELL_TOO=1')")
    [model] = server.sandboxes()
    assert model["notebook"] == "first.ipynb"
    server.post(f"api/kernels/{kernel}/restart")
    look = USE + "print((await box.run('cat file; echo $SHELL_TOO')).text, end='')"
    assert server.execute(kernel, look) == "kept\n1\n"
    server.ask(f"api/sessions/{session['id']}", "PATCH", {"path": "second.ipynb", "name": "second.ipynb"})
    until(lambda: server.sandboxes()[0]["notebook"] == "second.ipynb")
    assert server.execute(kernel, look) == "kept\n1\n"
    assert server.sandboxes()[0]["id"] == model["id"]
    assert server.ask(f"api/sessions/{session['id']}", "DELETE")[0] == 204
    until(lambda: server.sandboxes() == [])
    until(lambda: not Path(model["root"]).exists())


def test_a_kernel_that_is_killed_leaves_nothing_running_in_its_sandbox(server: JupyterProcess) -> None:
    """Jupyter starts it again with the same id; the sandbox and its files are still the notebook's."""
    kernel, mark = server.start_session("killed.ipynb")["kernel"]["id"], own_mark()
    with server.client(kernel) as client:
        client.execute(USE + f"await box.run('echo kept > file'); await box.run('sleep {mark}')")
        until(lambda: processes_with(mark))
        old = server.kernel_pid(kernel)
        assert old
        os.kill(old, signal.SIGKILL)
    until(lambda: not processes_with(mark))
    until(lambda: server.kernel_pid(kernel) not in (None, old))
    assert server.execute(kernel, USE + "print((await box.run('cat file')).text, end='')") == "kept\n"
    server.ask(f"api/kernels/{kernel}", "DELETE")
    until(lambda: server.sandboxes() == [])


def test_a_sandbox_ends_with_a_kernel_that_is_not_started_again(other: JupyterProcess) -> None:
    kernel = other.start_kernel(STUB)
    model = other.post("llm-sandbox/api/sandboxes", {"kernel_id": kernel, "isolation": "process"})
    os.kill(other.kernel_pid(kernel) or 0, signal.SIGKILL)
    until(lambda: other.sandboxes() == [])
    until(lambda: not Path(model["root"]).exists())


def test_idle_sandboxes_are_culled_and_the_next_use_starts_one(tmp_path: Path) -> None:
    """One that is busy for longer than that is not idle."""
    with jupyter(tmp_path, WATCH, "--SandboxManager.cull_idle_timeout=3") as server:
        busy, idle, go = server.start_kernel(), server.start_kernel(STUB), tmp_path / "go"
        with server.client(busy) as client:
            client.execute(USE + f"await box.run('echo x > file; until [ -e {go} ]; do sleep 0.05; done')")
            until(lambda: any((Path(one["root"] or "/proc") / "file").exists() for one in server.sandboxes()))
            [first] = server.sandboxes()
            server.post("llm-sandbox/api/sandboxes", {"kernel_id": idle, "isolation": "process"})
            until(lambda: [one["id"] for one in server.sandboxes()] == [first["id"]])
            go.touch()
            until(lambda: server.sandboxes() == [])
            until(lambda: not Path(first["root"]).exists())
        code = "from llm_sandbox_nb.sandbox.errors import SandboxLostError\n"
        code += "try:\n    await box.run('true')\nexcept SandboxLostError as error:\n    print(error)\n"
        assert "not used" in server.execute(busy, code)
        code = "box = await keeper.acquire(SandboxOptions('process'))\n"
        second, *files = server.execute(busy, code + "print(box.id, (await box.run('ls')).text)").split()
        assert second != first["id"]
        assert "file" not in files


def test_a_server_that_stops_ends_its_sandboxes(other: JupyterProcess) -> None:
    mark = own_mark()

    async def use() -> None:
        for _ in range(3):
            keeper = ServerKeeper(ServerAddress(other.url, other.token), other.start_kernel(STUB))
            box = await keeper.acquire(SandboxOptions("process"))
            await box.run(f"(setsid sleep {mark} &)")
            await keeper.close()

    run(use())
    roots = [Path(model["root"]) for model in other.sandboxes()]
    assert len(roots) == 3
    until(lambda: len(processes_with(mark)) == 3)
    other.stop()
    assert not any(root.exists() for root in roots)
    until(lambda: not processes_with(mark))


# ---------------------------------------------------------------------------------- refusals and the browser


def test_the_sites_policy_reaches_the_kernel(other: JupyterProcess) -> None:
    async def ask() -> None:
        keeper = ServerKeeper(ServerAddress(other.url, other.token), other.start_kernel(STUB))
        with pytest.raises(PolicyError, match="This site does not allow the isolation 'docker'"):
            await keeper.acquire(SandboxOptions("docker"))
        await keeper.close()

    run(ask())


def test_a_cell_that_asks_for_another_sandbox_is_told(server: JupyterProcess, kernel: str) -> None:
    code = USE + "try:\n    await keeper.acquire(SandboxOptions('process', profile='strict'))\n"
    code += "except Exception as error:\n    print(type(error).__name__)\n"
    code += "print((await keeper.acquire(SandboxOptions('process'))) is box)\n"
    code += "fresh = await keeper.acquire(SandboxOptions('process', profile='strict'), fresh=True)\n"
    code += "print(fresh.protection.profile, fresh.id != box.id)\n"
    code += "where = (await keeper.status()).where\n"
    code += "print(where, await keeper.stop(), await keeper.stop(), await keeper.current())"
    said = server.execute(kernel, code).split("\n")
    assert said[:4] == ["SandboxMismatchError", "True", "strict True", "server True False None"]


def test_a_browser_needs_its_xsrf_token(server: JupyterProcess, kernel: str) -> None:
    """A page of another site that makes the browser send the cookie is refused."""
    jar = CookieJar()
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
    browser.open(f"{server.url}login").read()
    browser.open(f"{server.url}api/status?token={server.token}").read()
    body = json.dumps({"kernel_id": kernel, "isolation": "process"}).encode()

    def post(headers: dict[str, str]) -> int:
        request = urllib.request.Request(f"{server.url}llm-sandbox/api/sandboxes", data=body, headers=headers)
        try:
            with browser.open(request) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    tokens = [cookie.value for cookie in jar if cookie.name == "_xsrf"]
    assert tokens
    assert post({}) == 403
    assert post({"X-XSRFToken": "wrong"}) == 403
    assert post({"X-XSRFToken": str(tokens[0])}) == 201
    assert post({"X-XSRFToken": str(tokens[0]), "Origin": "http://evil.example"}) == 404
