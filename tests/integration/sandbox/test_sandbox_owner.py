"""Who owns an executor: a new owner takes over in the middle of anything; without one, it ends by itself."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import PATIENCE, eventually, processes_with, run, until

from llm_sandbox_nb.sandbox.bootstrap import bootstrap_argv, executor_source
from llm_sandbox_nb.sandbox.client import ChannelSandbox
from llm_sandbox_nb.sandbox.contract import Directories, Protection
from llm_sandbox_nb.sandbox.errors import SandboxLostError
from llm_sandbox_nb.sandbox.protocol.channel import Channel
from llm_sandbox_nb.sandbox.protocol.frames import StreamTransport

MARK = f"700.{os.getpid()}"
"""Seconds that a command sleeps, by which it is told from all others."""
PROTECTION = Protection("process", "standard", "0", (), False, "none", "open", False, None, None, None)


class Pipe:
    """An executor on a bare pair of pipes, which one owner after the other can talk to."""

    def __init__(self, folder):
        self.folder = folder
        source, self.write_fd = os.pipe()
        self.read_fd, sink = os.pipe()
        env = {"PATH": os.environ["PATH"]}
        self.process = subprocess.Popen(
            bootstrap_argv(sys.executable), stdin=source, stdout=sink, env=env, start_new_session=True
        )
        os.close(source)
        os.close(sink)
        view = memoryview(executor_source())
        while view:
            view = view[os.write(self.write_fd, view) :]

    async def owner(self, adopt=False, ping_every=5.0, **hello):
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        self.reading, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(os.dup(self.read_fd), "rb", 0)
        )
        transport, protocol = await loop.connect_write_pipe(
            lambda: asyncio.streams.FlowControlMixin(), os.fdopen(os.dup(self.write_fd), "wb", 0)
        )
        writer = asyncio.StreamWriter(transport, protocol, None, loop)

        async def kill():
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

    async def abandon(self, box):
        """As when the owner is killed: no goodbye, the pipe stays."""
        self.reading.close()
        await box.channel.close(bye=False)

    def end(self):
        os.close(self.write_fd)
        self.process.wait(PATIENCE)
        os.close(self.read_fd)


@pytest.fixture
def pipe(tmp_path):
    pipe = Pipe(tmp_path)
    yield pipe
    if pipe.process.returncode is None:
        pipe.end()


def test_adoption_keeps_the_shell_and_ends_what_was_under_way(pipe):
    async def test():
        first = await pipe.owner()
        await first.run("cd /tmp; x=kept; sleep 711 & echo $!")
        job = int((await first.run("echo $!")).stdout)
        await first.write_file("file", b"kept")
        word = f"owner-{os.getpid()}"
        under_way = asyncio.ensure_future(first.run(f"yes {word}; touch AFTER"))
        beside = asyncio.ensure_future(first.exec(["sh", "-c", f"yes {word} >&2"], stdin=bytes(3 * 2**20)))
        await eventually(lambda: len(processes_with(word)) >= 2)
        await pipe.abandon(first)
        for task in (under_way, beside):
            with pytest.raises(SandboxLostError):
                await task
        second = await pipe.owner(adopt=True)
        assert second.executor["adopted"] is True
        result = await second.run(f"echo $x; pwd; kill -0 {job} && echo job")
        assert result.stdout == b"kept\n/tmp\njob\n"
        await eventually(lambda: not processes_with(word))
        assert await second.read_file("file") == b"kept"
        assert [entry.kind for entry in await second.list_files("file")] == ["file"]
        await second.run("kill $!")
        await second.close()

    run(test())


def test_adoption_in_the_middle_of_a_frame(pipe):
    async def test():
        first = await pipe.owner()
        await first.run("x=kept")
        await pipe.abandon(first)
        os.write(pipe.write_fd, b"LS\x01\x00\x00\x00\x09\x00\x00\xff\xff" + b"LS\x02half a frame")
        second = await pipe.owner(adopt=True)
        assert (await second.run("echo $x")).stdout == b"kept\n"
        await pipe.abandon(second)
        third = await pipe.owner(adopt=True)
        assert (await third.run("echo $x")).stdout == b"kept\n"
        await third.close()

    run(test())


def test_adoption_a_hundred_times_under_load(pipe):
    async def test():
        box = await pipe.owner()
        await box.run("n=0")
        for turn in range(30):
            task = asyncio.ensure_future(box.run(f"n={turn}; head -c 3000000 /dev/urandom; yes LS"))
            await asyncio.sleep(0.01 + turn % 7 * 0.004)
            await pipe.abandon(box)
            await asyncio.gather(task, return_exceptions=True)
            box = await pipe.owner(adopt=True)
        assert (await box.run("echo $n")).stdout.strip().isdigit()
        assert (await box.run("echo $n")).stdout.strip().isdigit()
        await box.close()

    run(test(), 120)


def test_without_an_owner_it_ends_after_its_lease(pipe):
    async def test():
        box = await pipe.owner(lease=1.0)
        await box.run(f"setsid sleep {MARK} & sleep {MARK} &")
        started = time.monotonic()
        await pipe.abandon(box)
        return started

    started = run(test())
    pipe.process.wait(PATIENCE)
    assert time.monotonic() - started > 0.3
    until(lambda: not processes_with(MARK))


def test_pings_keep_the_lease(pipe):
    async def test():
        box = await pipe.owner(lease=4.0, ping_every=0.2)
        assert (await box.run("sleep 6; echo fine", timeout=60)).stdout == b"fine\n"
        await box.close()

    run(test())


def test_the_end_of_its_pipe_is_its_end(pipe):
    async def test():
        box = await pipe.owner()
        await box.run(f"setsid sleep {MARK} & (trap '' TERM HUP; sleep {MARK}) &")
        await eventually(lambda: len(processes_with(MARK)) == 2)
        await pipe.abandon(box)

    run(test())
    pipe.end()
    until(lambda: not processes_with(MARK))


def test_goodbye_ends_everything(pipe):
    async def test():
        box = await pipe.owner()
        await box.run(f"setsid sleep {MARK} & echo")
        await box.close()

    run(test())
    assert pipe.process.wait(PATIENCE) == 0
    until(lambda: not processes_with(MARK))


def test_signals_from_outside_do_not_hurt_it(pipe):
    async def test():
        box = await pipe.owner()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGPIPE):
            pipe.process.send_signal(number)
        assert (await box.run("echo fine")).stdout == b"fine\n"
        await box.close()

    run(test())


KILLED = """
import asyncio, os, sys
from llm_sandbox_nb import open_sandbox
async def main():
    box = await open_sandbox("process")
    print(box.directories.root, flush=True)
    await box.run("setsid sleep MARK & (trap '' TERM; sleep MARK) & sleep MARK")
asyncio.run(main())
""".replace("MARK", MARK)


def test_kill_minus_nine_of_the_host_leaves_nothing():
    with subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True) as host:
        root = host.stdout.readline().strip()
        until(lambda: len(processes_with(MARK)) == 3)
        assert Path(root).is_dir()
        host.kill()
    until(lambda: not processes_with(MARK))
    until(lambda: not Path(root).parent.exists())
