"""How many functions of ours a reader passes between a `%%sandbox` cell and the bytes of the command it causes.

What counts: every distinct function, method, coroutine or lambda of the package on the call stack, from the magic to
the one that writes the command's bytes. A coroutine that awaits another is on the stack above it. Where a task, a
thread or a callback of an event loop begins, the path continues from the stack that made it. Functions that have
returned before the write (options, inputs, the start of the sandbox) are not on the path.
"""

import asyncio
import contextvars
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from support import require

import llm_sandbox_nb

CEILING = 18
"""Functions on the path; it may shrink, and never grow beyond 20."""
MARK = b"mark-of-the-first-command"
PACKAGE = str(Path(llm_sandbox_nb.__file__).parent)

Path_ = tuple[CodeType, ...]
begun_from: contextvars.ContextVar[Path_] = contextvars.ContextVar("begun_from", default=())
"""The path to what began this task, thread or callback."""


def path_here() -> Path_:
    here: list[CodeType] = []
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.startswith(PACKAGE):
            here.append(frame.f_code)
        frame = frame.f_back
    return tuple(dict.fromkeys((*begun_from.get(), *reversed(here))))


@pytest.fixture
def paths(monkeypatch: pytest.MonkeyPatch) -> list[Path_]:
    found: list[Path_] = []
    write = asyncio.StreamWriter.write

    def noted(writer: asyncio.StreamWriter, data: bytes) -> None:
        if MARK in data:
            found.append(path_here())
        write(writer, data)

    def with_origin(original: Callable[..., Any]) -> Callable[..., Any]:
        def begin(*args: Any, context: contextvars.Context | None = None, **rest: Any) -> Any:
            path, context = path_here(), context or contextvars.copy_context()
            if path:
                context.run(begun_from.set, path)
            return original(*args, context=context, **rest)

        return begin

    monkeypatch.setattr(asyncio.StreamWriter, "write", noted)
    for name in ("create_task", "call_soon_threadsafe"):
        monkeypatch.setattr(asyncio.BaseEventLoop, name, with_origin(getattr(asyncio.BaseEventLoop, name)))
    return found


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    llm_sandbox_nb.load_ipython_extension(shell)
    magics = shell.magics_manager.registry["SandboxMagics"]
    magics.use_server = False
    yield shell
    magics._close()
    InteractiveShell.clear_instance()


@pytest.mark.parametrize("isolation", ["process", pytest.param("docker", marks=pytest.mark.docker)])
def test_the_path_from_the_cell_to_the_command_is_short(
    isolation: str, shell: Any, paths: list[Path_], tmp_path: Path
) -> None:
    require(isolation)
    (tmp_path / "script.yaml").write_text(
        "turns:\n"
        f"  - calls: [{{tool: execute_bash, arguments: {{command: 'echo {MARK.decode()}'}}}}]\n"
        "  - calls: [{tool: submit, arguments: {}}]\n"
    )
    shell.run_cell_magic("sandbox", f"-m scripted/script.yaml --isolation {isolation}", "A task.")
    path = paths[0]
    steps = [f"{Path(code.co_filename).relative_to(PACKAGE)} {code.co_qualname}" for code in path]
    print(*steps, sep="\n")
    assert steps[0] == "notebook/magics.py SandboxMagics.sandbox_cell"
    assert "agent/" in " ".join(steps), "the path is cut"
    assert steps[-1] == "sandbox/protocol/frames.py StreamTransport.write"
    assert len(steps) <= CEILING, "\n".join(steps)
