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
from jupyter_process import JupyterProcess, jupyter
from support import KEPT_PIDS, PATIENCE, processes_with, until

USE = """
from llm_sandbox_nb.sandbox.options import SandboxOptions
from llm_sandbox_nb.notebook.server_client.keeper import connect_server
keeper = await connect_server()
box = await keeper.acquire(SandboxOptions("process")) if keeper else None
"""
TELL = "print(box.id); print(box.directories.root)"
MARK = f"98765.{os.getpid()}"
"""Seconds that a command sleeps, by which it is told from all others."""
WHICH = USE.replace("box =", "#") + "\nprint(keeper._address.url if keeper else None)"
QUICK = ("--SandboxManager.watch_interval=0.2",)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JupyterProcess]:
    with jupyter(tmp_path_factory.mktemp("jupyter"), *QUICK) as running:
        assert running.process is not None
        KEPT_PIDS.add(running.process.pid)
        yield running


@pytest.fixture
def kernel(server: JupyterProcess) -> Iterator[str]:
    """A kernel as new."""
    with server.warm_kernel() as kernel_id:
        yield kernel_id


# ----------------------------------------------------------------------------------------- finding its server


def test_a_kernel_finds_its_own_server_by_the_variables(server: JupyterProcess, kernel: str) -> None:
    assert server.execute(kernel, WHICH).strip() == server.url
    assert (
        server.execute(kernel, "import os; print('LLM_SANDBOX_SERVER_URL' in os.environ)").strip() == "True"
    )


def test_a_kernel_finds_its_own_server_by_the_info_file(server: JupyterProcess, kernel: str) -> None:
    forget = "import os\nfor name in list(os.environ):\n    if 'LLM_SANDBOX' in name: del os.environ[name]\n"
    assert server.execute(kernel, forget + WHICH).strip() == server.url


def test_the_hubs_token_is_taken_when_the_server_has_none(server: JupyterProcess, kernel: str) -> None:
    hub = "import os\nos.environ['JUPYTERHUB_API_TOKEN'] = os.environ['LLM_SANDBOX_SERVER_TOKEN']\n"
    hub += "os.environ['LLM_SANDBOX_SERVER_TOKEN'] = ''\nos.environ['JPY_PARENT_PID'] = '1'\n"
    assert server.execute(kernel, hub + WHICH).strip() == server.url


def test_a_server_without_a_token(tmp_path: Path) -> None:
    """Anybody who reaches it may do anything, and tornado then asks for a sign against forged requests."""
    with jupyter(tmp_path, *QUICK, token="") as server:
        kernel_id = server.start_kernel()
        assert server.execute(kernel_id, WHICH).strip() == server.url
        told = server.execute(kernel_id, USE + "print((await box.run('echo works')).stdout)")
        assert "works" in told


def test_a_server_with_a_certificate_of_its_own(tmp_path: Path) -> None:
    """Its name is not that of loopback; another certificate, though, is not taken for it."""
    for name in ("its", "another"):
        subject = [
            "-subj",
            f"/CN={name}.example",
            "-keyout",
            tmp_path / f"{name}.key",
            "-out",
            tmp_path / f"{name}.pem",
        ]
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject],
            check=True,
            capture_output=True,
        )
    with jupyter(tmp_path / "jupyter", certificate=(tmp_path / "its.pem", tmp_path / "its.key")) as server:
        kernel = server.start_kernel()
        assert (
            server.execute(kernel, USE + "print((await box.run('echo over TLS')).text)").strip() == "over TLS"
        )
        other = (
            f"import os\nos.environ['LLM_SANDBOX_SERVER_CERTIFICATE'] = {str(tmp_path / 'another.pem')!r}\n"
        )
        other += "os.environ['JPY_PARENT_PID'] = '1'\n"
        assert server.execute(kernel, other + WHICH).strip() == "None"


def test_another_server_is_never_used(server: JupyterProcess, kernel: str, tmp_path: Path) -> None:
    """The other one is alive, its token is right, and it has the extension: but the kernel is not its own."""
    with jupyter(tmp_path, *QUICK) as other:
        mislead = f"import os\nos.environ['LLM_SANDBOX_SERVER_URL'] = {other.url!r}\n"
        mislead += f"os.environ['LLM_SANDBOX_SERVER_TOKEN'] = {other.token!r}\n"
        assert server.execute(kernel, mislead + WHICH).strip() == server.url
        no_file = mislead + "os.environ['JPY_PARENT_PID'] = '1'\n"
        assert server.execute(kernel, no_file + WHICH).strip() == "None"
        assert other.sandboxes() == []


@pytest.mark.parametrize("how", ["dead", "silent", "no url", "no server at all"])
def test_a_server_that_is_none_is_passed_over_quickly(server: JupyterProcess, kernel: str, how: str) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        if how == "silent":
            listener.listen()
        url = {"no url": "file:///etc/passwd", "no server at all": ""}.get(how, f"http://127.0.0.1:{port}/")
        code = f"import os, time\nos.environ['LLM_SANDBOX_SERVER_URL'] = {url!r}\n"
        code += "os.environ['JPY_PARENT_PID'] = '1'\nbegun = time.time()\n" + WHICH
        code += "\nassert time.time() - begun < 60"
        assert server.execute(kernel, code).strip() == "None"


def test_a_server_without_the_extension_is_none(tmp_path: Path, server: JupyterProcess, kernel: str) -> None:
    """It answers, and owns the kernel, but has no such route."""
    code = (
        "import os\nos.environ['LLM_SANDBOX_SERVER_URL'] = os.environ['LLM_SANDBOX_SERVER_URL'] + 'static/'\n"
    )
    code += "os.environ['JPY_PARENT_PID'] = '1'\n"
    assert server.execute(kernel, code + WHICH).strip() == "None"


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
        "PYTHONPATH": str(Path(__file__).parents[3]),
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
    kernel = server.start_session("killed.ipynb")["kernel"]["id"]
    with server.client(kernel) as client:
        client.execute(USE + f"await box.run('echo kept > file'); await box.run('sleep {MARK}')")
        until(lambda: processes_with(MARK))
        old = server.kernel_pid(kernel)
        assert old
        os.kill(old, signal.SIGKILL)
    until(lambda: not processes_with(MARK))
    until(lambda: server.kernel_pid(kernel) not in (None, old))
    assert server.execute(kernel, USE + "print((await box.run('cat file')).text, end='')") == "kept\n"
    server.ask(f"api/kernels/{kernel}", "DELETE")
    until(lambda: server.sandboxes() == [])


def test_a_sandbox_ends_with_a_kernel_that_is_not_started_again(tmp_path: Path) -> None:
    options = ["--SandboxManager.dead_kernel_grace=1"]
    options += ["--KernelManager.autorestart=False", "--AsyncIOLoopKernelManager.autorestart=False"]
    with jupyter(tmp_path, *QUICK, *options) as server:
        kernel = server.start_kernel()
        server.execute(kernel, USE)
        [model] = server.sandboxes()
        pid = server.kernel_pid(kernel)
        assert pid
        os.kill(pid, signal.SIGKILL)
        until(lambda: server.sandboxes() == [])
        until(lambda: not Path(model["root"]).exists())


def test_idle_sandboxes_are_culled_and_the_next_use_starts_one(tmp_path: Path) -> None:
    with jupyter(tmp_path, *QUICK, "--SandboxManager.cull_idle_timeout=4") as server:
        kernel = server.start_kernel()
        told = server.execute(kernel, USE + f"await box.run('echo x > file; sleep 6'); {TELL}")
        first, root = told.split()
        until(lambda: server.sandboxes() == [])
        until(lambda: not Path(root).exists())
        code = "from llm_sandbox_nb.sandbox.errors import SandboxLostError\n"
        code += "try:\n    await box.run('true')\nexcept SandboxLostError as error:\n    print(error)\n"
        assert "not used" in server.execute(kernel, code)
        code = f"box = await keeper.acquire(SandboxOptions('process'))\n{TELL}; print((await box.run('ls')).text)"
        second, _, *files = server.execute(kernel, code).split()
        assert second != first
        assert "file" not in files


def test_a_server_that_stops_ends_its_sandboxes(tmp_path: Path) -> None:
    with jupyter(tmp_path, *QUICK) as server:
        roots = []
        for _ in range(3):
            server.execute(server.start_kernel(), USE + f"await box.run('(setsid sleep {MARK} &)')")
        roots = [Path(model["root"]) for model in server.sandboxes()]
        assert len(roots) == 3
        until(lambda: len(processes_with(MARK)) == 3)
        server.stop()
        assert not any(root.exists() for root in roots)
        until(lambda: not processes_with(MARK))


# ---------------------------------------------------------------------------------- refusals and the browser


def test_the_sites_policy_reaches_the_cell(tmp_path: Path) -> None:
    with jupyter(tmp_path, "--SandboxPolicy.allowed_isolations=docker") as server:
        code = USE.replace("box = await", "found =").replace("found = keeper.acquire", "box = keeper.acquire")
        code += "try:\n    await box\nexcept Exception as error:\n    print(type(error).__name__, error)\n"
        said = server.execute(server.start_kernel(), code)
        assert said.startswith("PolicyError This site does not allow the isolation 'process'")


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
