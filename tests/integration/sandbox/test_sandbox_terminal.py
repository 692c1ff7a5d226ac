"""A terminal in each kind of sandbox: typed into, resized, bounded, and ended with all that it started."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support import PATIENCE, with_sandbox

from llm_sandbox_nb.sandbox.errors import SandboxLostError
from llm_sandbox_nb.sandbox.protocol.frames import Kind, ProtocolError
from llm_sandbox_nb.sandbox.terminal import TYPED_AHEAD, UNDER_WAY, Terminal

Opener = Callable[..., Any]


class Person:
    """Looks at a terminal and types; gives back what was shown unless it looks away."""

    def __init__(self, box: Any, *, looks: bool = True, **size: int) -> None:
        self.shown = b""
        self.looks = looks
        self.terminal = Terminal(box, self._see, **size)
        self.task = asyncio.create_task(self.terminal.run())

    def _see(self, data: bytes) -> None:
        self.shown += data
        if self.looks:
            self.terminal.ask(len(data))

    async def sees(self, text: bytes, timeout: float = PATIENCE) -> None:
        deadline = time.monotonic() + timeout
        while text not in self.shown:
            assert not self.task.done(), self.shown[-500:]
            assert time.monotonic() < deadline, self.shown[-500:]
            await asyncio.sleep(0.02)

    async def closes(self) -> None:
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


async def count(box: Any, mark: str) -> int:
    """Processes whose command line holds the mark."""
    found = await box.exec(["sh", "-c", f"grep -la '[{mark[0]}]{mark[1:]}' /proc/[0-9]*/cmdline | wc -l"])
    return int(found.stdout)


async def until(true: Callable[[], Awaitable[bool]], timeout: float = PATIENCE) -> None:
    deadline = time.monotonic() + timeout
    while not await true():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.03)


async def until_there(box: Any, mark: str, least: int, most: int) -> None:
    async def there() -> bool:
        return least <= await count(box, mark) <= most

    await until(there)


async def until_shown(person: Person, size: int) -> None:
    async def shown() -> bool:
        return len(person.shown) >= size

    await until(shown)


def test_it_is_a_terminal_of_its_own(opener: Opener) -> None:
    async def body(box: Any) -> None:
        person = Person(box, rows=30, columns=100)
        person.terminal.type(
            b"tty; stty size; echo $((6*7)) in $PWD; test -t 0 -a -t 1 -a -t 2 && echo three\r"
        )
        await person.sees(b"30 100")
        await person.sees(f"42 in {box.directories.root}".encode())
        await person.sees(b"\nthree")
        person.terminal.resize(50, 132)
        person.terminal.type(b"stty size\r")
        await person.sees(b"50 132")
        person.terminal.type(b"sleep 600\r")
        await asyncio.sleep(0.3)
        person.terminal.type(b"\x03")
        person.terminal.type(b"echo back-$((1+1))\r")
        await person.sees(b"back-2")
        assert (await box.run("echo the shell of the model is another")).exit_code == 0
        person.terminal.type(b"exit 7\r")
        assert await asyncio.wait_for(person.task, 10) == 7

    with_sandbox(opener, body)


def test_what_the_terminal_answers_is_not_typed_into_the_shell(opener: Opener) -> None:
    async def body(box: Any) -> None:
        answer = b"\x1b[6;8R"
        person = Person(box)
        person.terminal.type(b"printf '\\033[6n'; echo as''ked\r")
        await person.sees(b"asked")
        person.terminal.report(answer)
        person.terminal.type(b"echo af''ter\r")
        await person.sees(b"after\r\n")
        person.terminal.type(b"cat\r")
        await asyncio.sleep(0.5)
        person.terminal.report(answer)
        person.terminal.type(b"li''ne\r")
        await person.sees(b"li''ne\r\nli''ne\r\n")
        assert b"8R" not in person.shown
        person.terminal.type(b"\x04")
        await person.closes()
        canary = Person(box)
        canary.terminal.type(answer)
        canary.terminal.type(b"echo af''ter\r")
        await canary.sees(b"8R")
        await canary.closes()

    with_sandbox(opener, body)


def test_a_program_that_asks_the_terminal_is_answered(opener: Opener) -> None:
    async def body(box: Any) -> None:
        person = Person(box)
        asks = b"stty -icanon -echo; echo as''ked; head -c 6 | tail -c 5; stty sane"
        person.terminal.type(b'sh -c "%s"\r' % asks)
        await person.sees(b"asked")
        person.terminal.report(b"\x1b[6;8R")
        await person.sees(b"[6;8R")
        await person.closes()

    with_sandbox(opener, body)


def test_closing_it_ends_all_that_it_started(opener: Opener) -> None:
    async def body(box: Any) -> None:
        person = Person(box)
        person.terminal.type(
            b"sleep 771377.3 & setsid sleep 771377.3 & nohup sh -c 'trap \"\" HUP TERM; sleep 771377.3' &\r"
        )
        person.terminal.type(b"echo sta''rted\r")
        await person.sees(b"started")
        await until_there(box, "771377.3", 3, 9)
        await box.run("sleep 882488.4 &")
        await person.closes()
        await until_there(box, "771377.3", 0, 0)
        await until_there(box, "882488.4", 1, 1)  # what others started stays

    with_sandbox(opener, body)


def test_the_end_of_the_shell_ends_what_it_left_running(process_opener: Opener) -> None:
    async def body(box: Any) -> None:
        person = Person(box)
        person.terminal.type(b"(setsid sleep 7714 &); sleep 0.3; exit\r")
        assert await asyncio.wait_for(person.task, 10) == 0
        await until_there(box, "7714", 0, 0)

    with_sandbox(process_opener, body)


def test_what_prints_without_end_waits_and_holds_nobody_up(opener: Opener) -> None:
    async def body(box: Any) -> None:
        person = Person(box, looks=False)
        person.terminal.type(b"yes 0123456789\r")
        await until_shown(person, UNDER_WAY)
        await asyncio.sleep(0.5)
        assert len(person.shown) == UNDER_WAY
        assert (await box.run("echo quick", timeout=10)).stdout == b"quick\n"
        person.terminal.ask(1000)
        await until_shown(person, UNDER_WAY + 1000)
        person.looks = True
        person.terminal.ask(UNDER_WAY)
        person.terminal.type(b"\x03echo sto''pped\r")
        await person.sees(b"stopped")
        await person.closes()

    with_sandbox(opener, body)


def test_input_that_nobody_reads_is_bounded(process_opener: Opener) -> None:
    async def body(box: Any) -> None:
        person = Person(box)
        person.terminal.type(b"stty raw -echo; echo re''ady; sleep 600\r")
        await person.sees(b"ready")
        person.terminal.type(b"x" * TYPED_AHEAD)
        await asyncio.sleep(1)
        with pytest.raises(ValueError, match="takes no more input"):
            person.terminal.type(b"x" * TYPED_AHEAD)
        await person.closes()

    with_sandbox(process_opener, body)


def test_a_long_paste_arrives_whole(process_opener: Opener) -> None:
    async def body(box: Any) -> None:
        person = Person(box)
        person.terminal.type(b"stty -echo -icanon; head -c 500000 > pasted; wc -c < pasted; stty sane\r")
        await asyncio.sleep(0.5)
        person.terminal.type(b"y" * 500_000)
        await person.sees(b"500000\r\n")
        await person.closes()

    with_sandbox(process_opener, body)


def test_a_person_who_leaves_at_once_leaves_nothing(process_opener: Opener) -> None:
    async def body(box: Any) -> None:
        for _ in range(5):
            person = Person(box)
            await asyncio.sleep(0)
            await person.closes()
        assert (await box.run("echo fine")).stdout == b"fine\n"

    with_sandbox(process_opener, body)


@pytest.mark.parametrize(("kind", "size"), [(Kind.STDOUT, UNDER_WAY + 1), (Kind.STDERR, 1)])
def test_a_sandbox_that_sends_more_than_was_asked_for_is_given_up(
    process_opener: Opener, kind: int, size: int
) -> None:
    async def body(box: Any) -> None:
        terminal = Terminal(box, lambda _: None)
        with pytest.raises(ProtocolError, match="more than was asked for"):
            terminal._take(kind, b"x" * size)

    with_sandbox(process_opener, body)


def test_a_lost_sandbox_ends_it(process_opener: Opener) -> None:
    async def body(box: Any) -> None:
        person = Person(box)
        person.terminal.type(b"echo he''re\r")
        await person.sees(b"here")
        await box.close()
        with pytest.raises(SandboxLostError):
            await person.task

    with_sandbox(process_opener, body)


def test_acknowledging_what_never_came_is_refused(process_opener: Opener) -> None:
    async def body(box: Any) -> None:
        terminal = Terminal(box, lambda _: None)
        for wrong in (1, -1):
            with pytest.raises(ValueError, match="More output"):
                terminal.ask(wrong)

    with_sandbox(process_opener, body)
