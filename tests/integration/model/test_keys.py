"""Where the key of a model is after a run with it, and where it is not: files, outputs, processes and sandboxes."""

from __future__ import annotations

import base64
import json
import os
import secrets
import sqlite3
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
import pytest
from agent_scripts import bash, script_text, turn
from cli_process import open_command_line
from jupyter_process import JupyterProcess, jupyter
from live_kernel import LiveKernel, Message, live_kernel
from scripted_server import ScriptedServer
from secret_search import holds, in_folder, in_processes
from support import KEPT_PIDS, PATIENCE, until
from warm_kernels import kernel_environment, renew

from llm_sandbox_nb.benchmark.results import read_results
from notebooks import execute, notebook_of, outputs

LOOK = turn(bash("env"), text="I look.")
SCRIPT = script_text(LOOK, turn(bash("echo three > output/answer.txt")), turn({"tool": "submit"}))
CELL = "%%sandbox -m openai/gpt-5 --api-base {url} --isolation {isolation} -o result\nHow many?"
SOLVE = (
    "from llm_sandbox_nb import solve\n"
    "solved = await solve('How many?', model='openai/gpt-5', api_base='{url}', isolation='{isolation}')\n"
    "print(solved.stop_reason)"
)
BENCHMARK = (
    "%sandbox benchmark run ./counted --model openai/gpt-5 --api_base {url} --isolation {isolation} --workers 1 "
    "--out measured-{isolation}"
)
BEGAN = int(time.time())
"""What the image brought is older, also when the image was built a minute ago."""
INSIDE = (
    "%sandbox sh (find / \\( -path /proc -o -path /sys -o -path /dev \\) -prune -o -type f "
    f"-newermt @{BEGAN} -size -1000k -writable -print0 | xargs -0 -r cat | base64 -w0; echo; "
    "(env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline) | base64 -w0) 2>/dev/null"
)


def new_key() -> str:
    """A key that nothing on this machine has yet; its pieces tell nothing, so that the whole is looked for."""
    return f"sk-{secrets.token_hex(24)}"


class Notebook:
    """A kernel of a real Jupyter server, whose cells are kept as a front end keeps them."""

    def __init__(self, server: JupyterProcess, kernel: LiveKernel, path: Path) -> None:
        self.server, self.kernel, self.path = server, kernel, path
        self.messages: list[Message] = []
        self._notebook = nbformat.v4.new_notebook()

    def run(self, code: str, typed: str | None = None) -> str:
        """Run a cell, which may ask for something to be typed, and save the notebook. Gives its text."""
        cell = str(self.kernel.client.execute(code, allow_stdin=typed is not None))
        if typed is not None:
            asked = self.kernel.client.get_stdin_msg(timeout=PATIENCE)["content"]
            assert asked["password"] is True, "the front end shows a password field"
            self.kernel.client.input(typed)
        messages = self.kernel.messages(cell, timeout=PATIENCE)
        self.messages += messages
        kinds = ("stream", "display_data", "execute_result", "error")
        shown = [nbformat.v4.output_from_msg(one) for one in messages if one["msg_type"] in kinds]
        self._notebook.cells.append(nbformat.v4.new_code_cell(code, outputs=shown))
        nbformat.write(self._notebook, self.path)
        return "".join(one.get("text", "") or one.get("evalue", "") for one in shown)

    def received(self) -> bytes:
        return json.dumps(self.messages, default=str).encode()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JupyterProcess]:
    """A server with all its folders, home and temporary files included, in one."""
    folder = tmp_path_factory.mktemp("keys")
    own = {
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "tmp"),
        "OPENAI_API_KEY": "",
        "LLM_API_KEY": "",
    }
    for name in ("home", "tmp"):
        (folder / name).mkdir()
    with jupyter(folder, env=own) as running:
        assert running.process is not None
        KEPT_PIDS.add(running.process.pid)
        yield running


@pytest.fixture(scope="module")
def kernel(server: JupyterProcess) -> Iterator[tuple[LiveKernel, Path]]:
    session = server.start_session("n.ipynb")
    with server.client(session["kernel"]["id"]) as client:
        yield LiveKernel(None, client), server.root / session["path"]  # type: ignore[arg-type]
    server.ask(f"api/sessions/{session['id']}", "DELETE")


@pytest.fixture
def notebook(server: JupyterProcess, kernel: tuple[LiveKernel, Path]) -> Notebook:
    renew(kernel[0].client)
    made = Notebook(server, *kernel)
    made.run("%load_ext llm_sandbox_nb")
    made.run("%sandbox key --forget")
    return made


def make_task(folder: Path) -> None:
    (folder / "counted").mkdir(exist_ok=True)
    (folder / "counted" / "task.yaml").write_text("scorer: exact\n")
    row = {"id": "r0", "problem_statement": "p", "ground_truth": "three"}
    (folder / "counted" / "data.jsonl").write_text(json.dumps(row) + "\n")


def run_with_it(notebook: Notebook, model: ScriptedServer, code: str, holders: set[tuple[str, int]]) -> None:
    """A cell. Meanwhile only these command lines and environments have the key that the model's server wants."""
    with model.held_at(2):  # the sandbox is open, and a command was executed
        cell = notebook.kernel.start(code)
        until(lambda: len(model.requests) == 2, "the model was not asked twice")
        assert in_processes(str(model.api_key)) == holders
    messages = notebook.kernel.messages(cell)
    notebook.messages += messages
    assert not [one for one in messages if one["msg_type"] == "error"], messages[-3:]


def inside(notebook: Notebook, isolation: str) -> bytes:
    """The new files of the notebook's sandbox, and the environments and command lines of all that runs there."""
    text = notebook.run(INSIDE.replace("find /", "find ..") if isolation == "process" else INSIDE)
    parts = text.split()
    assert len(parts) == 2, text[:400]
    return b"\n".join(base64.b64decode(part) for part in parts)


@pytest.mark.alike
@pytest.mark.timeout(600)
def test_a_typed_key_is_nowhere_but_in_the_memory_of_the_kernel(
    isolation: str, server: JupyterProcess, notebook: Notebook
) -> None:
    key = new_key()
    with ScriptedServer(SCRIPT, api_key=key) as model:
        where = {"url": model.url, "isolation": isolation}
        said = notebook.run("%sandbox key openai", typed=f" {key}\n")
        assert said.startswith("Models of openai now use this key")
        run_with_it(notebook, model, CELL.format(**where), set())
        assert notebook.run("print(result.stop_reason)") == "submitted\n"
        assert notebook.run(SOLVE.format(**where)).endswith("submitted\n")
        make_task(server.root)
        told = notebook.run(BENCHMARK.format(**where))
        done = read_results(server.root / f"measured-{isolation}")
        assert [one.error_kind for one in done] in ([None], [""]), (told, done)
        notebook.run("result")
        notebook.run("%sandbox settings")
        notebook.run("%sandbox export result page.html")
        notebook.run("%history -g -f history.txt")
        content = inside(notebook, isolation)
        assert b"three" in content, "it looks at the files of the sandbox"
        assert b"PATH=" in content, "and at its processes"
        assert all(one.headers["authorization"] == f"Bearer {key}" for one in model.requests)
        assert in_processes(key) == set()
    assert not holds(content, key)
    assert not holds(notebook.received(), key)
    history = server.folder / "ipython" / "profile_default" / "history.sqlite"
    until(lambda: b"%sandbox key openai" in history_of(history), "IPython keeps what was written in cells")
    assert in_folder(server.folder, key) == []


def history_of(path: Path) -> bytes:
    with sqlite3.connect(path) as database:
        return "\n".join(row[0] for row in database.execute("select source_raw from history")).encode()


def test_the_search_finds_a_key_wherever_one_is_planted(tmp_path: Path) -> None:
    key = new_key()
    packed = zlib.compress(json.dumps({"events": ["x" * 500, key]}).encode())
    planted = {
        "log": f"Authorization: Bearer {key}\n".encode(),
        "card.ipynb": json.dumps({"packed": base64.b64encode(packed).decode()}).encode(),
        "pack": b"\0\1" + packed + zlib.compress(b"more"),
        "page.html": f"<img src='data:text/plain;base64,{base64.b64encode(key.encode()).decode()}'>".encode(),
    }
    for name, data in planted.items():
        (tmp_path / name).write_bytes(data)
    with sqlite3.connect(tmp_path / "history.sqlite") as database:
        database.execute("create table history (source_raw)")
        database.execute("insert into history values (?)", (f"%env OPENAI_API_KEY={key}",))
    database.close()
    (tmp_path / "harmless").write_bytes(zlib.compress(b"nothing"))
    assert {path.name for path in in_folder(tmp_path, key)} == {*planted, "history.sqlite"}
    assert in_processes(key) == set()
    waits = [sys.executable, "-c", "import signal; print(flush=True); signal.pause()"]
    environment = {**os.environ, "OPENAI_API_KEY": key}
    with (
        subprocess.Popen(waits, env=environment, stdout=subprocess.PIPE) as first,
        subprocess.Popen([*waits, key], stdout=subprocess.PIPE) as second,
    ):
        for process in (first, second):
            assert process.stdout
            process.stdout.readline()
        found = in_processes(key)
        first.kill()
        second.kill()
    assert found == {("environ", first.pid), ("cmdline", second.pid)}


@pytest.mark.alike
def test_the_search_finds_a_key_that_a_person_puts_into_the_sandbox(
    isolation: str, server: JupyterProcess, notebook: Notebook
) -> None:
    in_a_file, in_the_shell = new_key(), new_key()
    notebook.run(f"%config SandboxMagics.isolation = {isolation!r}")
    notebook.run(f"%sandbox sh mkdir -p deep/er && echo {in_a_file} > deep/er/.key")
    notebook.run(f"%sandbox sh export MY_KEY={in_the_shell}")
    content = inside(notebook, isolation)
    assert holds(content, in_a_file)
    assert holds(content, in_the_shell)
    assert holds(notebook.path.read_bytes(), in_a_file)
    history = server.folder / "ipython" / "profile_default" / "history.sqlite"
    until(lambda: in_a_file.encode() in history_of(history), "IPython keeps it")
    assert history in in_folder(server.folder, in_a_file)


# ------------------------------------------------------------------------------------- the words of the command


def test_what_is_no_key_is_refused_and_not_repeated(notebook: Notebook) -> None:
    refused = {
        "": "No key was typed",
        "two words": "A key has no spaces",
        "sk-\N{EN DASH}x": "plain characters",
    }
    for typed, said in refused.items():
        told = notebook.run("%sandbox key anthropic", typed=typed)
        assert said in told
        assert not typed or typed not in told
        assert notebook.run("%sandbox key --forget") == "There was no typed key to forget.\n"
    for line in (
        f"%sandbox key {new_key()}",
        f"%sandbox key openai {new_key()}",
        f"%sandbox key {'0123abcd' * 4}",
    ):
        told = notebook.run(line)
        assert "remove it from the cell" in told
        assert line.split()[-1] not in told


def test_a_key_can_be_replaced_and_forgotten(notebook: Notebook) -> None:
    right = new_key()
    with ScriptedServer(SCRIPT, api_key=right) as model:
        cell = CELL.format(url=model.url, isolation="process")
        assert "No API key" in notebook.run(cell)
        notebook.run("%sandbox key", typed=new_key())
        assert "The API key was refused" in notebook.run(cell)
        notebook.run("%sandbox key", typed=right)
        notebook.run("result.resume()")
        assert notebook.run("print(result.stop_reason)") == "submitted\n", "a run that failed resumes with it"
        listed = [
            line for line in notebook.run("%sandbox settings").splitlines() if line.startswith("api_key ")
        ]
        assert [line.split(maxsplit=2)[1:] for line in listed] == [["(set)", "%sandbox key, for openai"]]
        assert "openai (its key is set)" in notebook.run("%sandbox model")
        assert notebook.run("%sandbox key --forget openai") == "Forgotten: the key for openai.\n"
        assert "No API key" in notebook.run(cell)


def test_without_a_name_it_is_for_the_model_that_cells_use(notebook: Notebook) -> None:
    client = notebook.kernel.client
    for model, provider in {
        "": "openai",
        "scripted/strawberry": "openai",
        "anthropic/claude-sonnet-4-5": "anthropic",
        "gpt-5": "openai",
    }.items():
        notebook.run(f"%config SandboxMagics.model = {model!r}")
        cell = str(client.execute("%sandbox key", allow_stdin=True))
        assert client.get_stdin_msg(timeout=PATIENCE)["content"]["prompt"] == f"Key for {provider}: "
        client.input("k")
        notebook.kernel.messages(cell)


def test_a_key_goes_to_its_own_provider_only(notebook: Notebook) -> None:
    key = new_key()
    with ScriptedServer(SCRIPT) as model:
        notebook.run("%sandbox key anthropic", typed=key)
        notebook.run(CELL.format(url=model.url, isolation="process"))
        assert model.requests
        assert not any(key in str(one.headers) for one in model.requests)


def test_where_nobody_can_type_it_is_one_sentence(tmp_path: Path) -> None:
    done = execute(notebook_of("%sandbox key"), tmp_path, kernel_environment(tmp_path), allow_errors=True)
    [error] = outputs(done.cells[1])
    assert error.evalue.startswith("This front end cannot ask for a key: set the variable of")
    assert "\n" not in error.evalue
    words = [sys.executable, "-m", "IPython", "--no-banner", "-c", "%load_ext llm_sandbox_nb\n%sandbox key"]
    shell = subprocess.run(
        words,
        cwd=tmp_path,
        env=kernel_environment(tmp_path),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert "SandboxUsageError: This front end cannot ask for a key" in shell.stdout + shell.stderr
    assert "Warning" not in shell.stdout + shell.stderr


# ------------------------------------------------------------------------------------- keys that are given otherwise


@pytest.mark.parametrize(
    "isolation",
    [
        pytest.param("bubblewrap", marks=pytest.mark.bubblewrap),
        pytest.param("docker", marks=[pytest.mark.docker, pytest.mark.campaign]),
    ],
    indirect=True,
)
def test_a_key_of_the_environment_is_in_that_environment_alone(isolation: str, tmp_path: Path) -> None:
    """The kernel's environment has it, and so has whatever the kernel was started by; no sandbox and no file."""
    key = new_key()
    with (
        ScriptedServer(SCRIPT, api_key=key) as model,
        live_kernel(tmp_path, keep=False, OPENAI_API_KEY=key) as kernel,
    ):
        made = Notebook(None, kernel, tmp_path / "n.ipynb")  # type: ignore[arg-type]
        run_with_it(made, model, CELL.format(url=model.url, isolation=isolation), in_processes(key))
        holders = {pid for kind, pid in in_processes(key) if kind == "environ"}
        assert holders <= {kernel.manager.provisioner.pid}
        content = inside(made, isolation)
        assert b"three" in content
        made.run("result")
    assert not holds(content, key)
    assert not holds(made.received(), key)
    assert in_folder(tmp_path, key) == []


@pytest.mark.parametrize("way", ["--api_key", pytest.param("OPENAI_API_KEY", marks=pytest.mark.campaign)])
def test_a_key_of_a_command_line_is_on_it_while_it_runs_and_nowhere_else(way: str, tmp_path: Path) -> None:
    """`--api_key` shows it to everybody who may list processes; a variable shows it to you and to root alone."""
    key = new_key()
    with ScriptedServer(SCRIPT, api_key=key) as model, contextmanager(open_command_line)(tmp_path) as shell:
        words = ["run", "How many?", "-m", "openai/gpt-5", "--api_base", model.url, "--isolation", "process"]
        given = {way: key} if way == "OPENAI_API_KEY" else {}
        with model.held_at(2):
            process = shell.start(*shell.words(*words), *([] if given else [way, key]), **given)
            until(lambda: len(model.requests) == 2, "the model was not asked twice")
            assert in_processes(key) == {("environ" if given else "cmdline", process.pid)}
        assert process.wait(PATIENCE) == 0, shell.shown()
        assert in_processes(key) == set()
    assert in_folder(tmp_path, key) == []
