"""A terminal in each kind of sandbox: typed into, resized, bounded, and ended with all that it started."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from sandbox_commands import living, until, until_living
from support import eventually, own_mark

from llm_sandbox_nb.sandbox.errors import SandboxLostError
from llm_sandbox_nb.sandbox.protocol.frames import Kind, ProtocolError
from llm_sandbox_nb.sandbox.terminal import MAX_TYPED_BYTES, MAX_UNREAD_BYTES, Terminal

ANSWER = b"\x1b[6;8R"


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
            self.terminal.acknowledge(len(data))

    async def sees(self, text: bytes) -> None:
        await eventually(lambda: text in self.shown or self.task.done(), "it was not shown")
        assert text in self.shown, self.shown[-500:]

    async def closes(self) -> None:
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


@pytest.mark.smoke
async def test_it_is_a_terminal_of_its_own(box: Any) -> None:
    mark = own_mark()
    person = Person(box, rows=30, columns=100)
    person.terminal.type(b"tty; stty size; echo $((6*7)) in $PWD; test -t 0 -a -t 1 -a -t 2 && echo three\r")
    await person.sees(b"30 100")
    await person.sees(f"42 in {box.directories.root}".encode())
    await person.sees(b"\nthree")
    person.terminal.resize(50, 132)
    person.terminal.type(b"stty size\r")
    await person.sees(b"50 132")
    person.terminal.type(f"sleep {mark}\r".encode())
    await until_living(mark, 1)
    person.terminal.type(b"\x03")
    person.terminal.type(b"echo back-$((1+1))\r")
    await person.sees(b"back-2")
    assert living(mark) == 0
    assert (await box.run("echo the shell of the model is another")).exit_code == 0
    person.terminal.type(b"exit 7\r")
    assert await person.task == 7


@pytest.mark.smoke
async def test_closing_it_ends_all_that_it_started(box: Any) -> None:
    mark, other = own_mark(), own_mark()
    person = Person(box)
    nohup = f"nohup sh -c 'trap \"\" HUP TERM; sleep {mark}; :' &"
    person.terminal.type(f"sleep {mark} & setsid sleep {mark} & {nohup}\r".encode())
    await until_living(mark, 3)
    await box.run(f"sleep {other} &")
    await until_living(other, 1)
    await person.closes()
    await until_living(mark, 0)
    assert living(other) == 1, "what others started stays"


async def test_the_end_of_the_shell_ends_what_it_left_running(box: Any) -> None:
    mark = own_mark()
    person = Person(box)
    person.terminal.type(f"(setsid sleep {mark} &)\r".encode())
    await until_living(mark, 1)
    person.terminal.type(b"exit\r")
    assert await person.task == 0
    await until_living(mark, 0)


async def test_what_the_terminal_answers_is_not_typed_into_the_shell(box: Any) -> None:
    person = Person(box)
    person.terminal.type(b"printf '\\033[6n'; echo as''ked\r")
    await person.sees(b"asked")
    person.terminal.report(ANSWER)
    person.terminal.type(b"echo af''ter\r")
    await person.sees(b"after\r\n")
    person.terminal.type(b"sh -c 'echo re\"\"ady; exec cat'\r")
    await person.sees(b"ready")
    person.terminal.report(ANSWER)
    person.terminal.type(b"li''ne\r")
    await person.sees(b"li''ne\r\nli''ne\r\n")
    assert b"8R" not in person.shown
    person.terminal.type(b"\x04")
    await person.closes()
    canary = Person(box)
    canary.terminal.type(ANSWER)
    canary.terminal.type(b"echo af''ter\r")
    await canary.sees(b"8R")
    await canary.closes()


async def test_a_program_that_asks_the_terminal_is_answered(box: Any) -> None:
    person = Person(box)
    asks = b"stty -icanon -echo; echo as''ked; head -c 6 | tail -c 5; stty sane"
    person.terminal.type(b'sh -c "%s"\r' % asks)
    await person.sees(b"asked")
    person.terminal.report(ANSWER)
    await person.sees(b"[6;8R")
    assert not person.task.done()
    await person.closes()


async def test_what_prints_without_end_waits_and_holds_nobody_up(box: Any) -> None:
    person = Person(box, looks=False)
    person.terminal.type(b"yes 0123456789\r")
    await eventually(lambda: len(person.shown) >= MAX_UNREAD_BYTES)
    for _ in range(5):  # more that it sent would come before the answers
        assert (await box.run("echo quick")).stdout == b"quick\n"
    assert len(person.shown) == MAX_UNREAD_BYTES
    person.terminal.acknowledge(1000)
    await eventually(lambda: len(person.shown) >= MAX_UNREAD_BYTES + 1000)
    person.looks = True
    person.terminal.acknowledge(MAX_UNREAD_BYTES)
    person.terminal.type(b"\x03echo sto''pped\r")
    await person.sees(b"stopped")
    await person.closes()


async def test_input_that_nobody_reads_is_bounded(box: Any) -> None:
    person = Person(box)
    person.terminal.type(b"stty raw -echo; echo re''ady; sleep infinity\r")
    await person.sees(b"ready")
    person.terminal.type(b"x" * MAX_TYPED_BYTES)

    async def taken() -> bool:
        """Whether no more goes into the sandbox."""
        before = person.terminal._typed_bytes
        await box.exec(["true"])
        return 0 < before == person.terminal._typed_bytes < MAX_TYPED_BYTES

    await until(taken)
    with pytest.raises(ValueError, match="accepts no more input"):
        person.terminal.type(b"x" * MAX_TYPED_BYTES)
    await person.closes()


async def test_a_long_paste_arrives_whole(box: Any) -> None:
    person = Person(box)
    person.terminal.type(
        b"stty -echo -icanon; echo re''ady; head -c 500000 > pasted; wc -c < pasted; stty sane\r"
    )
    await person.sees(b"ready")
    person.terminal.type(b"y" * 500_000)
    await person.sees(b"500000\r\n")
    assert await box.read_file("pasted") == b"y" * 500_000
    await person.closes()


async def test_a_person_who_leaves_at_once_leaves_nothing(box: Any) -> None:
    for _ in range(5):
        person = Person(box)
        await asyncio.sleep(0)
        await person.closes()
    assert (await box.run("echo fine")).stdout == b"fine\n"


@pytest.mark.isolations("process")
async def test_neither_side_gets_away_with_more_than_was_agreed(box: Any) -> None:
    for kind, size in ((Kind.STDOUT, MAX_UNREAD_BYTES + 1), (Kind.STDERR, 1)):
        with pytest.raises(ProtocolError, match="sent more output than it may"):
            Terminal(box, lambda _: None)._receive(kind, b"x" * size)
    for wrong in (1, -1):
        with pytest.raises(ValueError, match="More output"):
            Terminal(box, lambda _: None).acknowledge(wrong)


@pytest.mark.own_sandbox
async def test_a_lost_sandbox_ends_it(box: Any) -> None:
    person = Person(box)
    person.terminal.type(b"echo he''re\r")
    await person.sees(b"here")
    await box.close()
    with pytest.raises(SandboxLostError):
        await person.task
