"""A function in a thread that nobody waits for keeps neither an event loop nor a program alive."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import threading

import pytest
from support import eventually

from llm_sandbox_nb.daemon_threads import in_daemon_thread

ENDS = """
import asyncio, time
from llm_sandbox_nb.daemon_threads import in_daemon_thread
async def main():
    try:
        async with asyncio.timeout(0.2):
            await in_daemon_thread(time.sleep, 600)
    except TimeoutError:
        print("ended")
asyncio.run(main())
"""


def test_neither_the_loop_nor_the_program_waits() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDS], capture_output=True, text=True, timeout=60, check=True
    )
    assert (done.stdout, done.stderr) == ("ended\n", "")


def test_results_failures_and_context_come_through() -> None:
    variable = contextvars.ContextVar("variable", default="")

    def fail() -> None:
        raise KeyError("typo")

    async def go() -> None:
        variable.set("here")
        assert await in_daemon_thread(variable.get) == "here"
        assert await in_daemon_thread(lambda: threading.current_thread().name, name="mine") == "mine"
        assert await in_daemon_thread(pow, 2, 5) == 32
        with pytest.raises(KeyError, match="typo"):
            await in_daemon_thread(fail)
        with pytest.raises(RuntimeError, match=r"SystemExit\(3\)"):
            await in_daemon_thread(sys.exit, 3)
        with pytest.raises(RuntimeError, match="StopIteration"):
            await in_daemon_thread(next, iter(()))

    asyncio.run(go())


def test_a_result_that_comes_too_late_is_dropped() -> None:
    began, released = threading.Event(), threading.Event()

    def slow() -> None:
        began.set()
        released.wait()

    async def go() -> None:
        task = asyncio.ensure_future(in_daemon_thread(slow))
        await eventually(began.is_set)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        released.set()
        await eventually(lambda: all(one.name != "in-thread" for one in threading.enumerate()))

    asyncio.run(go())
