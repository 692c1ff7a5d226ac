"""Who owns an executor: a new owner takes over in the middle of anything; without one, it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from relay_wire import Wire
from sandbox_commands import begun
from support import PATIENCE, eventually, own_mark, processes_with, run, size, until

from llm_sandbox_nb.sandbox.bootstrap import bootstrap_argv, executor_source
from llm_sandbox_nb.sandbox.client import ChannelSandbox
from llm_sandbox_nb.sandbox.contract import Directories, Protection
from llm_sandbox_nb.sandbox.errors import SandboxLostError
from llm_sandbox_nb.sandbox.protocol.channel import Channel
from llm_sandbox_nb.sandbox.protocol.frames import StreamTransport

PROTECTION = Protection("process", "standard", "0", (), False, "none", "open", False, None, None, None)


@pytest.mark.smoke
@pytest.mark.own_sandbox
async def test_the_next_client_of_a_server_s_sandbox_takes_over(box: Any) -> None:
    """What the first left behind is there, and what it had started of the shell is not in the way."""
    wire = Wire(box)
    first = await wire.sandbox(box)
    await first.run("cd /tmp; x=kept; sleep infinity & job=$!")
    running = await begun(first, "echo begun; sleep infinity")
    wire.client.leave()
    with pytest.raises(SandboxLostError):
        await running
    await first.close()
    second = await Wire(box).sandbox(box)
    await second.interrupt()
    assert (await second.run("echo $x; pwd; kill -0 $job && echo job")).stdout == b"kept\n/tmp\njob\n"
    await second.close()


class Pipe:
    """An executor on a bare pair of pipes, which one owner after the other can talk to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        source, self.write_fd = os.pipe()
        self.read_fd, sink = os.pipe()
        env = {"PATH": os.environ["PATH"]}
        argv = bootstrap_argv(sys.executable)
        self.process = subprocess.Popen(argv, stdin=source, stdout=sink, env=env, start_new_session=True)
        os.close(source)
        os.close(sink)
        view = memoryview(executor_source())
        while view:
            view = view[os.write(self.write_fd, view) :]

    async def owner(self, adopt: bool = False, ping_every: float = 5.0, **hello: Any) -> ChannelSandbox:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        self.reading, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(os.dup(self.read_fd), "rb", 0)
        )
        transport, protocol = await loop.connect_write_pipe(
            lambda: asyncio.streams.FlowControlMixin(), os.fdopen(os.dup(self.write_fd), "wb", 0)
        )
        writer = asyncio.StreamWriter(transport, protocol, None, loop)

        async def kill() -> None:
            pass

        box = ChannelSandbox(
            Channel(StreamTransport(reader, writer), ping_every=ping_every),
            id="bare",
            directories=Directories(str(self.folder / "testbed")),
            protection=PROTECTION,
            kill=kill,
            spill=str(self.folder / "spill"),
            hello=hello,
        )
        await box.start(adopt=adopt)
        return box

    async def abandon(self, box: ChannelSandbox) -> None:
        """As when the owner is killed: no goodbye, the pipe stays."""
        self.reading.close()
        await box.channel.close(bye=False)

    def end(self) -> None:
        os.close(self.write_fd)
        self.process.wait(PATIENCE)
        os.close(self.read_fd)


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Pipe]:
    pipe = Pipe(tmp_path)
    yield pipe
    if pipe.process.returncode is None:
        pipe.end()


async def test_adoption_keeps_the_shell_and_ends_what_ran(pipe: Pipe) -> None:
    first = await pipe.owner()
    job = int((await first.run("cd /tmp; x=kept; sleep infinity & echo $!")).stdout)
    await first.write_file("file", b"kept")
    word = own_mark()
    running = asyncio.ensure_future(first.run(f"yes {word}; touch AFTER"))
    beside = asyncio.ensure_future(first.exec(["sh", "-c", f"exec yes {word} >&2"], stdin=bytes(3 * 2**20)))
    await eventually(lambda: len(processes_with(word)) >= 2)
    await pipe.abandon(first)
    for task in (running, beside):
        with pytest.raises(SandboxLostError):
            await task
    second = await pipe.owner(adopt=True)
    result = await second.run(f"echo $x; pwd; kill -0 {job} && echo job")
    assert result.stdout == b"kept\n/tmp\njob\n"
    await eventually(lambda: not processes_with(word))
    assert await second.read_file("file") == b"kept"
    assert [entry.kind for entry in await second.list_files("file")] == ["file"]
    await second.run(f"kill {job}")
    await second.close()


async def test_adoption_in_the_middle_of_a_frame(pipe: Pipe) -> None:
    first = await pipe.owner()
    await first.run("x=kept")
    await pipe.abandon(first)
    os.write(pipe.write_fd, b"LS\x01\x00\x00\x00\x09\x00\x00\xff\xff" + b"LS\x02half a frame")
    for _ in range(2):
        next_one = await pipe.owner(adopt=True)
        assert (await next_one.run("echo $x")).stdout == b"kept\n"
        await pipe.abandon(next_one)
    await (await pipe.owner(adopt=True)).close()


async def test_adoption_again_and_again_under_load(pipe: Pipe) -> None:
    """Before the command began, in the first of its output, and amid much of it."""
    box = await pipe.owner()
    await box.run("n=0")
    for turn in range(size(12, 30)):
        seen: list[int] = []
        command = f"n={turn}; head -c 3000000 /dev/urandom; yes LS"
        task = asyncio.ensure_future(
            box.run(command, on_output=lambda _, data, seen=seen: seen.append(len(data)))
        )
        await eventually(lambda: sum(seen) >= (0, 1, 10**6, 4 * 10**6)[turn % 4])  # noqa: B023
        await pipe.abandon(box)
        await asyncio.gather(task, return_exceptions=True)
        box = await pipe.owner(adopt=True)
    for _ in range(2):
        assert (await box.run("echo $n")).stdout.strip().isdigit()
    await box.close()


def test_without_an_owner_it_ends_after_its_lease(pipe: Pipe) -> None:
    mark = own_mark()

    async def test() -> float:
        box = await pipe.owner(lease=1.0)
        await box.run(f"setsid sleep {mark} & sleep {mark} &")
        await eventually(lambda: len(processes_with(mark)) == 2)
        abandoned = time.monotonic()
        await pipe.abandon(box)
        return abandoned

    abandoned = run(test())
    pipe.process.wait(PATIENCE)
    assert time.monotonic() - abandoned > 0.3
    until(lambda: not processes_with(mark))


async def test_pings_keep_the_lease(pipe: Pipe) -> None:
    box = await pipe.owner(lease=3.0, ping_every=0.2)
    assert (await box.run("sleep 4; echo fine")).stdout == b"fine\n"
    await box.close()


def test_the_end_of_its_pipe_is_its_end(pipe: Pipe) -> None:
    mark = own_mark()

    async def test() -> None:
        box = await pipe.owner()
        await box.run(f"setsid sleep {mark} & (trap '' TERM HUP; sleep {mark}) &")
        await eventually(lambda: len(processes_with(mark)) == 2)
        await pipe.abandon(box)

    run(test())
    pipe.end()
    until(lambda: not processes_with(mark))


def test_goodbye_ends_everything(pipe: Pipe) -> None:
    mark = own_mark()

    async def test() -> None:
        box = await pipe.owner()
        await box.run(f"setsid sleep {mark} & echo")
        await eventually(lambda: len(processes_with(mark)) == 1)
        await box.close()

    run(test())
    assert pipe.process.wait(PATIENCE) == 0
    until(lambda: not processes_with(mark))


async def test_signals_from_outside_do_not_hurt_it(pipe: Pipe) -> None:
    box = await pipe.owner()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGPIPE):
        pipe.process.send_signal(number)
    assert (await box.run("echo fine")).stdout == b"fine\n"
    await box.close()


KILLED = """
import asyncio, sys
from llm_sandbox_nb import open_sandbox
async def main():
    box = await open_sandbox("process")
    print(box.directories.root, flush=True)
    await box.run("setsid sleep MARK & (trap '' TERM; sleep MARK) & sleep MARK".replace("MARK", sys.argv[1]))
asyncio.run(main())
"""


def test_kill_minus_nine_of_the_host_leaves_nothing() -> None:
    mark = own_mark()
    command = [sys.executable, "-c", KILLED, mark]  # the host has the mark too
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout
        root = host.stdout.readline().strip()
        until(lambda: len(processes_with(mark)) == 4)
        assert Path(root).is_dir()
        host.kill()
    until(lambda: not processes_with(mark))
    until(lambda: not Path(root).parent.exists())
