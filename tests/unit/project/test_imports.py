"""Importing is light: no heavy library, no socket, no thread; the command line too."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {"litellm", "docker", "pandas", "pyarrow", "openai", "matplotlib", "ray"}

WATCH = """
import json, sys, threading
sockets = []
armed = False
def hook(event, arguments):
    if armed and event.startswith("socket."):
        sockets.append(event)
sys.addaudithook(hook)
{before}
threads = threading.active_count()
armed = True
{watched}
armed = False
print(json.dumps({{
    "modules": sorted(sys.modules), "sockets": sockets, "threads": threading.active_count() - threads,
}}))
"""
SHELL = "from IPython.core.interactiveshell import InteractiveShell; shell = InteractiveShell.instance()"


def watch(watched: str, before: str = "") -> dict[str, object]:
    program = WATCH.format(before=before, watched=watched)
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    seen: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return seen


@pytest.mark.parametrize(
    ("watched", "before", "others"),
    [
        ("import llm_sandbox_nb", "", {"pydantic", "tornado", "IPython", "yaml", "traitlets"}),
        ("shell.run_line_magic('load_ext', 'llm_sandbox_nb')", SHELL, set()),
        ("import llm_sandbox_nb.cli.parser; llm_sandbox_nb.cli.parser.make_parser()", "", set()),
        # a benchmark starts two of these processes, and a task with many rows many
        ("import llm_sandbox_nb.benchmark.scorers", "", {"pydantic", "asyncio", "sympy", "math_verify"}),
        # The models of events are built with the first run, not at the start of a Jupyter server.
        ("import llm_sandbox_nb.server.app", "import jupyter_server.serverapp", {"pydantic"}),
    ],
    ids=["import", "load_ext", "cli", "scoring process", "server"],
)
def test_nothing_heavy_no_socket_no_thread(watched: str, before: str, others: set[str]) -> None:
    seen = watch(watched, before)
    assert not (HEAVY | others) & set(seen["modules"])  # type: ignore[call-overload]
    assert seen["sockets"] == []
    assert seen["threads"] == 0


def test_the_validators_of_events_are_built_on_first_use() -> None:
    code = (
        "from llm_sandbox_nb.trajectory import events as ev\n"
        "ev.dump_event(ev.Noted(text='x'))\n"
        "print([kind for kind, cls in ev._KINDS.items() if cls.__pydantic_complete__], ev._ADAPTER.pydantic_complete)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "['note'] False\n"


def test_the_watch_sees_sockets_and_threads() -> None:
    wait = "threading.Thread(target=threading.Event().wait, daemon=True).start()"
    seen = watch(f"import socket, threading; socket.socket(); {wait}")
    assert seen["sockets"]
    assert seen["threads"] == 1


def test_every_public_name_is_there() -> None:
    import llm_sandbox_nb

    assert all(getattr(llm_sandbox_nb, name) for name in llm_sandbox_nb.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = llm_sandbox_nb.nonsense


def test_a_library_has_one_room() -> None:
    homes = {"docker": "sandbox/docker/", "litellm": "model/", "ray": "benchmark/ray"}
    package = Path(__file__).parents[3] / "llm_sandbox_nb"
    sources = {path: path.read_text("utf-8") for path in package.rglob("*.py")}
    importing = {
        (name.partition(".")[0], path.relative_to(package).as_posix())
        for path, source in sources.items()
        if any(library in source for library in homes)  # parsing all files takes seconds
        for node in ast.walk(ast.parse(source))
        for name in imported(node)
    }
    found = {(library, path) for library, path in importing if library in homes}
    assert {library for library, _ in found} == homes.keys()
    assert {path for library, path in found if not path.startswith(homes[library])} == set()


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []


# The first thread waits in the middle of its import until the second waits for an import too, or for PATIENCE seconds:
# where a lock of ours keeps the second out, it never does.
TWO_THREADS = """
import importlib._bootstrap, sys, threading, time
from importlib.machinery import PathFinder
import requests
halfway = threading.Event()
def pause():
    halfway.set()
    end = time.monotonic() + {patience}
    while time.monotonic() < end and not importlib._bootstrap._blocking_on.get(threads[1].ident):
        time.sleep(0.01)
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "docker.api":
            spec = PathFinder.find_spec(name, path)
            execute = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (pause(), execute(module))
            return spec
sys.meta_path.insert(0, Slow())
{first}
{second}
failed = []
def call(function):
    try:
        function()
    except Exception as error:
        failed.append(str(error))
threads = [threading.Thread(target=call, args=[function]) for function in (first, second)]
threads[0].start()
halfway.wait()
threads[1].start()
for thread in threads:
    thread.join()
print(json.dumps(failed))
"""
PARTS = ("def first(): import docker.errors", "def second(): import docker.context")
OURS = (
    "from llm_sandbox_nb.sandbox.docker.engine import engine_errors\ndef first(): engine_errors().__enter__()",
    "from llm_sandbox_nb.sandbox.docker.engine import find_endpoint as second",
)


@pytest.mark.parametrize(("functions", "fails"), [(OURS, False), (PARTS, True)], ids=["ours", "canary"])
def test_threads_that_need_docker_at_once_all_get_it(functions: tuple[str, str], fails: bool) -> None:
    program = "import json\n" + TWO_THREADS.format(
        first=functions[0], second=functions[1], patience=60 if fails else 2
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert bool(json.loads(done.stdout)) is fails, done.stdout
