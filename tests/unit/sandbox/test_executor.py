"""The executor's README names what there is; its source is small; its event loop reads data in any pieces."""

from __future__ import annotations

import ast
import builtins
import json
import marshal
import os
import re
import socket
import subprocess
import sys
import zlib
from collections import namedtuple
from collections.abc import Iterator
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from typing import Any

import pytest
from support import until

from llm_sandbox_nb.sandbox.bootstrap import bootstrap_argv, executor_source
from llm_sandbox_nb.sandbox.client import MAX_LISTING_BYTES
from llm_sandbox_nb.sandbox.executor import (
    children,
    disk_watch,
    door,
    files,
    frames,
    light,
    main,
    processes,
    records,
    request,
)
from llm_sandbox_nb.sandbox.executor.children import ChildRequest, ExecRequest, FileRequest, ServiceProcess
from llm_sandbox_nb.sandbox.executor.door import DoorListener
from llm_sandbox_nb.sandbox.executor.event_loop import IN, EventLoop, Timer
from llm_sandbox_nb.sandbox.executor.frames import quietly_close
from llm_sandbox_nb.sandbox.executor.history import CheckpointRequest, HistoryService
from llm_sandbox_nb.sandbox.executor.mounts import Epoch
from llm_sandbox_nb.sandbox.executor.shell import Shell, ShellCommand
from llm_sandbox_nb.sandbox.protocol.channel import GRACE
from llm_sandbox_nb.sandbox.protocol.frames import Kind

FOLDER = Path(main.__file__).parent
README = (FOLDER / "README.md").read_text("utf-8")


def section(title: str) -> str:
    return README.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def first_cells(text: str) -> set[str]:
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| ")]
    return {name for row in rows for name in re.findall(r"`?(\w+)`?", row)}


def test_the_readme_names_every_module() -> None:
    modules = {file.stem for file in FOLDER.glob("*.py")} - {"__init__"}
    assert first_cells(section("Modules")) - {"module"} == modules


def test_the_readme_names_every_kind_of_frame() -> None:
    rows = re.findall(r"^\| ([A-Z, ]+) \| ([\d, ]+) \|", section("Frames"), re.M)
    named = {
        name: int(number)
        for names, numbers in rows
        for name, number in zip(names.split(", "), numbers.split(", "), strict=True)
    }
    assert named == {kind.name: kind.value for kind in Kind}
    assert all(getattr(frames, name) == number for name, number in named.items())


def test_the_readme_names_every_operation() -> None:
    source = Path(main.__file__).read_text("utf-8").partition("def new_request")[2].partition("    def ")[0]
    served = children.FILE_OPERATIONS | set(re.findall(r'"(\w+)"', source)) - {"op"}
    assert first_cells(section("Requests")) - {"op"} == served


def test_the_readme_names_every_argument_of_an_operation() -> None:
    _, *rows = re.findall(r"^\| (`[^|]+)\|([^|]*)\|", section("Requests"), re.M)
    told = {
        name: set(re.findall(r"`(\w+)`", cell)) for names, cell in rows for name in re.findall(r"\w+", names)
    }
    for name in ("checkpoint", "describe", "restore"):
        told[name] = set(
            re.findall(r'"(\w+)": ', README.partition(f"\n### {name}\n")[2].partition("Outcome:")[0])
        )
        told[name] -= {"op", "timeout"}  # `timeout` is an argument of every operation
    told["restore"] |= set(re.findall(r'With `"(\w+)": ', README))
    assert told == {name: set(checks) - {"body"} for name, checks in request.OPERATIONS.items()}


def test_the_readme_names_every_field_of_hello() -> None:
    source = Path(main.__file__).read_text("utf-8").partition("def welcome")[2].partition("    def ")[0]
    taken = set(re.findall(r'hello(?:\.get\(|\[)"(\w+)"|"(\w+)" in hello', source))
    given = set(re.findall(r'answer\["(\w+)"\]|"(\w+)": ', source))
    told_in, _, told_out = README.partition("\nHELLO in: ")[2].partition("\n\n")[0].partition(" Out: ")
    assert set(re.findall(r"`(\w+)`", told_in)) == {"".join(names) for names in taken}
    assert set(re.findall(r"`(\w+)`", told_out)) == {"".join(names) for names in given}


def test_the_readme_names_every_kind_of_record() -> None:
    kinds = {
        getattr(records, name) for name in ("CHUNK", "ENTRIES", "GONE", "SHELL", "DELETE", "MAKE", "FILE")
    }
    kinds |= {
        getattr(records, name) for name in ("PATCH", "WRITE", "PACKED", "HOLE", "METADATA", "DELIVERED")
    }
    named = set(re.findall(r"^- `([A-Z])` ", section("Records of the history"), re.M))
    assert named == {chr(kind) for kind in kinds}


def sources() -> dict[str, str]:
    texts: dict[str, str] = json.loads(zlib.decompress(parts()[0]))
    return texts


def parts() -> tuple[bytes, bytes]:
    """Return the sources, and the compiled modules after Python's magic number."""
    source = executor_source()
    size = int(source[:8])
    compiled = source[8 + size :]
    assert len(compiled) == 8 + int(compiled[:8])
    assert compiled[8:12] == MAGIC_NUMBER
    return source[8 : 8 + size], compiled[12:]


def test_compiled_modules_come_from_the_cache_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """To compile them again would take each process that opens a sandbox 0.1 s."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    executor_source.__wrapped__()
    with monkeypatch.context() as patched:
        patched.setattr(builtins, "compile", lambda *_, **__: pytest.fail("compiled again"))
        executor_source.__wrapped__()


def test_compiled_modules_name_no_folder_of_this_machine() -> None:
    codes = {name: zlib.decompress(code) for name, code in marshal.loads(parts()[1]).items()}
    assert codes.keys() == sources().keys()
    assert b"executor.main" in codes["executor.main"]
    assert os.fsencode(FOLDER) in marshal.dumps(main.main.__code__)  # the canary
    for name, code in codes.items():
        assert os.fsencode(FOLDER) not in code, name


def test_the_source_is_old_python() -> None:
    """It runs on whatever python3 an image has, from 3.8 on."""
    with pytest.raises(SyntaxError):
        ast.parse("match x:\n    case 1: pass", feature_version=(3, 8))
    for name, text in sources().items():
        assert ast.parse(text, name, feature_version=(3, 8)).body, name


def test_the_source_needs_the_standard_library_only_and_little_of_it() -> None:
    """Start-up time is everybody's: `typing`, `re` or `subprocess` cost more than all of ours."""
    allowed = {"__future__", "binascii", "ctypes", "errno", "fcntl", "gc", "grp", "os", "pwd"}
    allowed |= {"select", "signal", "stat", "struct", "sys", "termios", "time", "zlib"}
    for name, text in sources().items():
        tree = ast.parse(text)
        # Files are hashed by the child that remembers them, which is started only when it is asked.
        # Only a sandbox with a network that is closed in part, or a list of hosts, imports the last three.
        rare = {
            "executor.disk_watch": {"resource"},
            "executor.filesystem_scan": {"collections", "hashlib"},
            "executor.light": {"_json", "json"},
            "executor.records": {"_socket", "collections"},
            "executor.door": {"_socket"},
            "executor.firewall": {"socket"},
            "executor.name_server": {"socket"},
        }
        modules = allowed | rare.get(name, set())
        checking = [node for node in tree.body if isinstance(node, ast.If)]
        skipped = {id(inner) for node in checking for inner in ast.walk(node)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import) and id(node) not in skipped:
                assert {alias.name for alias in node.names} <= modules
            if isinstance(node, ast.ImportFrom) and id(node) not in skipped:
                assert node.level == 1 or node.module in modules


def test_a_start_imports_no_slow_module() -> None:
    """They took a third of the processor time of a start."""
    step = "import executor.main, os\nprint(*sys.modules, flush=True)\nos._exit(0)"
    done = subprocess.run(
        bootstrap_argv(sys.executable, steps=[step]),
        input=executor_source(),
        stdout=subprocess.PIPE,
        check=True,
    )
    loaded = done.stdout.decode().split()
    assert "executor.main" in loaded
    assert not {"collections", "enum", "json", "re", "shutil", "subprocess", "typing"} & set(loaded)


def test_what_is_not_json_is_an_error_without_the_package_json() -> None:
    """The C part finds no class for its own error then."""
    step = "import executor.light as light, os"
    tries = "\n".join(
        f"try:\n    light.parse_json({text!r})\nexcept ValueError:\n    print('refused', flush=True)"
        for text in ("{", "[1", '{"a"', '"', "", "1 2")
    )
    done = subprocess.run(
        bootstrap_argv(sys.executable, steps=[f"{step}\n{tries}\nos._exit(0)"]),
        input=executor_source(),
        stdout=subprocess.PIPE,
        check=True,
    )
    assert done.stdout.split() == [b"refused"] * 6


JSON_TEXTS = [
    '{"a": [1, 2.5, null, true]}',
    ' "\\ud800\\u00e4" ',
    "NaN",
    "-Infinity",
    "1e400",
    b"[1]",
    bytearray(b"{}"),
]


@pytest.mark.parametrize("text", JSON_TEXTS)
def test_json_is_parsed_as_by_the_package(text: Any) -> None:
    assert repr(light.parse_json(text)) == repr(json.loads(text))


@pytest.mark.parametrize("text", ["", "{", "[1] 2", '{"a" 1}', "nul", '"\x01"', b"\xff", "[" * 100_000])
def test_a_text_that_is_not_json_is_refused(text: Any) -> None:
    with pytest.raises((ValueError, RecursionError)):
        light.parse_json(text)


@pytest.mark.parametrize(
    "value",
    [{"a": [1, -2.5, 1e300, None, True]}, '\ud800ä\n"', [], {"1": {}}, (1, (2,)), float("inf"), "\U0001f600"],
)
def test_json_is_written_as_by_the_package(value: Any) -> None:
    assert light.dump(value) == json.dumps(value, separators=(",", ":")).encode()
    with pytest.raises(TypeError):
        light.dump({"a": object()})


def test_a_named_tuple_is_one_of_collections() -> None:
    pair, usual = light.named_tuple("Pair", "one two"), namedtuple("Pair", "one two")
    assert pair(1, 2) == usual(1, 2) == (1, 2)
    assert pair(1, 2)._replace(two=3).two == 3
    with pytest.raises(TypeError):
        pair(1)
    with pytest.raises(AttributeError):
        pair(1, 2).one = 2


class Numbers(ServiceProcess):
    """A service without a child: the test writes what the child would."""

    def __init__(self) -> None:
        super().__init__(EventLoop())  # type: ignore[arg-type]
        self.events: list[Any] = []
        self.data_r, self.data_w = os.pipe()
        self.outcome_r, self.outcome_w = os.pipe()
        for fd in (self.data_r, self.outcome_r):
            os.set_blocking(fd, False)

    def take_data(self, data: bytes) -> None:
        self.events.append(data)

    def finish(self, outcome: dict[str, Any]) -> None:
        self.events.append(outcome)


@pytest.mark.parametrize("data_first", [True, False])
def test_an_outcome_comes_after_all_its_data_and_in_any_pieces(data_first: bool) -> None:
    service = Numbers()
    os.write(service.data_w, b"12")
    if data_first:
        service.read_data()
    for piece in (b'{"n"', b": 1", b"}\n"):
        os.write(service.outcome_w, piece)
        service.read_outcome()
    if not data_first:
        assert service.events == []
        service.read_data()
    service.read_data()
    assert service.events == [b"12", {"n": 1}]
    for fd in (service.data_r, service.data_w, service.outcome_r, service.outcome_w):
        os.close(fd)


def test_a_listing_too_long_for_its_answer_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long names that are not UTF-8 take six times as many bytes in the answer, which the host limits."""
    for number in range(9):
        (tmp_path / f"{number}").touch()
    written: list[bytes] = []
    monkeypatch.setattr(files, "write_all", lambda _, data: written.append(data))
    params = {"path": str(tmp_path), "depth": 1, "limit": 9}
    assert files.list_files(params) == {}
    assert files.MAX_LISTING_BYTES <= MAX_LISTING_BYTES
    monkeypatch.setattr(files, "MAX_LISTING_BYTES", len(written[0]) - 1)
    files.list_files(params)
    assert written[1].splitlines() == written[0].splitlines()[:8]


def test_no_handler_gets_an_event_of_an_earlier_file_with_its_number() -> None:
    """Such a handler would read where there is nothing to read, and might wait for ever."""
    loop = EventLoop()
    called: list[str] = []
    (first, _), (second, _), (unready, _) = pipes = [os.pipe() for _ in range(3)]
    os.write(pipes[0][1], b"x")
    os.write(pipes[1][1], b"x")

    def replace(other: int) -> None:
        called.append("first")
        loop.unwatch(other)
        os.dup2(unready, other)
        loop.watch(other, IN, lambda _: called.append("stale"))

    loop.watch(first, IN, lambda _: replace(second))
    loop.watch(second, IN, lambda _: replace(first))
    loop.wait(0)
    assert called == ["first"]
    loop.poll.close()
    quietly_close(*(end for pipe in pipes for end in pipe))


def test_connections_that_waited_when_the_listener_was_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host accepts them. The timer that would close them must not end the executor."""
    executor: Any = Clock()
    executor.watch = executor.unwatch = lambda *_: None
    here, there = socket.socketpair()
    with here, there, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        monkeypatch.setattr(door, "HANDED", here.fileno())
        listener = DoorListener(executor)
        assert listener.open(port)
        listener.knocked()
        listener.hand_out()
        for timer in executor.begun:
            if timer.action:
                timer.action()
        assert listener.timer is None


class Waiting:
    """An executor whose files are on hold."""

    def __init__(self) -> None:
        self.answers: list[Any] = []

    def when_files_ready(self, action: Any) -> None:
        """Do not call `action` yet."""

    def send(self, kind: int, number: int, payload: bytes) -> None:
        assert kind == Kind.RESPONSE
        self.answers.append(json.loads(payload))

    def forget(self, number: int) -> None:
        """Forget nothing, because the request is in no table."""


@pytest.mark.parametrize(
    ("kind", "end", "answer"),
    [
        (FileRequest, "cancel", {"error": {"kind": "interrupted", "message": "the file operation was interrupted"}}),
        (FileRequest, "timed_out", {"error": {"kind": "timed_out", "message": "the file operation took too long"}}),
        (ExecRequest, "cancel", {"exit_code": None, "timed_out": False, "interrupted": True}),
    ],
)  # fmt: skip
def test_a_request_that_ends_before_it_begins_says_why(
    kind: type[ChildRequest], end: str, answer: object
) -> None:
    """A file that was not read must not look like an empty one."""
    executor = Waiting()
    waiting = kind(executor, 1, {"op": "read", "path": "/x"})  # type: ignore[arg-type]
    waiting.begin()
    getattr(waiting, end)()
    assert executor.answers == [answer]


class Clock(Waiting):
    """An executor whose timers a test calls."""

    def __init__(self) -> None:
        super().__init__()
        self.timers: list[tuple[float, Any]] = []
        self.begun: list[Timer] = []
        self.holds: set[str] = set()

    def watch_output(self, fd: int, handler: Any) -> None:
        """Watch nothing."""

    def after(self, delay: float, action: Any) -> Timer:
        self.timers.append((delay, action))
        self.begun.append(Timer(delay, action))
        return self.begun[-1]


@pytest.mark.parametrize("timeout", [0, 3.0])
def test_a_command_that_no_shell_begins_is_answered_before_the_host_gives_up(timeout: float) -> None:
    """Programs that use up all processes may leave none for a shell."""
    executor: Any = Clock()
    shell = Shell(executor)
    command = ShellCommand(shell, 1, {"op": "run", "timeout": timeout, "output_limit": 9})
    command.end()
    ((delay, over),) = executor.timers
    assert timeout < delay < timeout + GRACE
    over()
    (answer,) = executor.answers
    assert (answer["exit_code"], answer["timed_out"], answer["interrupted"]) == (None, True, False)
    assert "not started" in answer["notice"]
    assert shell.queue == []
    quietly_close(*shell.out, *shell.err)


def test_a_checkpoint_that_is_cancelled_before_it_begins_was_interrupted() -> None:
    executor: Any = Waiting()
    history = HistoryService(executor, *[Any] * 2, Epoch())  # type: ignore[arg-type] # neither a shell nor a watcher
    waiting = CheckpointRequest(history, 1, {"op": "checkpoint", "id": "a"})
    history.queue.append(waiting)
    waiting.cancel()
    assert executor.answers == [
        {"error": {"kind": "interrupted", "message": "the operation was interrupted"}}
    ]
    assert history.queue == []


HEADLESS = """
import ctypes, os, threading, time
threading.Thread(target=lambda: [print("begun", flush=True), time.sleep(600)]).start()
held = open("held", "wb"); held.write(bytes(10 * 2**20)); held.flush(); os.unlink("held")
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
"""
"""A program whose first thread ends: the kernel shows it as a zombie, with no files and no memory, though it runs."""


@pytest.fixture
def headless(tmp_path: Path) -> Iterator[int]:
    """The pid of such a program."""
    with subprocess.Popen([sys.executable, "-c", HEADLESS], stdout=subprocess.PIPE, cwd=tmp_path) as program:
        assert program.stdout
        assert program.stdout.readline() == b"begun\n"
        until(lambda: b") Z " in processes.read_proc(f"/proc/{program.pid}/stat"))
        yield program.pid
        program.kill()


def test_a_program_without_its_first_thread_lives(headless: int) -> None:
    assert processes.identity_of(headless)
    assert headless in processes.process_table()
    assert headless in processes.own_tree()


def test_the_files_of_a_program_without_its_first_thread_count(headless: int) -> None:
    counter = disk_watch.FileCounter(0, disk_watch.DiskUsage(2**40, 2**40))
    counter.add_deleted_files({headless})
    assert counter.usage.size >= 10 * 2**20


def test_the_files_that_one_thread_opens_for_itself_count(tmp_path: Path) -> None:
    program = """
import ctypes, os, threading, time
def work():
    assert ctypes.CDLL(None, use_errno=True).unshare(0x400) == 0
    held = os.open("held", os.O_CREAT | os.O_RDWR)
    os.write(held, bytes(10 * 2**20))
    os.unlink("held")
    print("begun", flush=True)
    time.sleep(600)
threading.Thread(target=work).start()
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=tmp_path) as running:
        assert running.stdout
        assert running.stdout.readline() == b"begun\n"
        counter = disk_watch.FileCounter(0, disk_watch.DiskUsage(2**40, 2**40))
        counter.add_deleted_files({running.pid})
        running.kill()
    assert counter.usage.size >= 10 * 2**20


def test_a_program_that_has_ended_does_not_live() -> None:
    with subprocess.Popen(["true"]) as program:
        until(lambda: b") Z " in processes.read_proc(f"/proc/{program.pid}/stat"))
        assert processes.identity_of(program.pid) is None
