"""A bubblewrap sandbox ends with its owner, however that ends, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import support

from llm_sandbox_nb import open_sandbox
from llm_sandbox_nb.sandbox.bootstrap import bootstrap_argv
from llm_sandbox_nb.sandbox.bubblewrap.launch import bubblewrap_path
from llm_sandbox_nb.sandbox.bubblewrap.limits import Group, InForce, find_groups
from llm_sandbox_nb.sandbox.bubblewrap.sandbox import remove_leftovers
from llm_sandbox_nb.sandbox.errors import IsolationUnavailableError, SandboxLostError
from llm_sandbox_nb.sandbox.open import start_sandbox
from llm_sandbox_nb.sandbox.options import SandboxOptions

pytestmark = [pytest.mark.bubblewrap, pytest.mark.usefixtures("bubblewrap_engine")]
OWNER = """
import asyncio, sys
from llm_sandbox_nb import open_sandbox

async def own():
    async with open_sandbox("bubblewrap", profile=sys.argv[1]) as box:
        await box.run("sleep infinity & (setsid sleep infinity &) ; trap '' TERM HUP INT")
        if sys.argv[1] == "strict":
            await box.exec(["sh", "-c", "setsid sleep infinity &"], user="root" if len(sys.argv) > 3 else None)
        print("ready", flush=True)
        await asyncio.Event().wait()

asyncio.run(own())
"""


def start_owner(profile: str, marker: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", OWNER, profile, marker]
    command += ["root"] if os.getuid() == 0 else []
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def is_running(pid: int, started: str) -> bool:
    return start_of(pid) == started != ""


def start_of(pid: int) -> str:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def until_ended(processes: dict[int, str]) -> None:
    support.until(
        lambda: not any(is_running(*one) for one in processes.items()),
        f"of {[support.command_line(pid) for pid in processes]} some run",
    )


def groups_of(pid: int) -> list[Path]:
    return [folder for folder in find_groups() if folder.name.split("-")[4] == str(pid)]


@pytest.mark.parametrize(
    ("profile", "number"),
    [("standard", signal.SIGTERM), ("strict", signal.SIGTERM), ("strict", signal.SIGKILL)],
)
def test_the_sandbox_dies_with_its_owner(profile: str, number: signal.Signals) -> None:
    for round in range(support.size(1, 5)):
        owner = start_owner(profile, str(round))
        assert owner.stdout
        assert owner.stdout.readline() == "ready\n"
        inside = {pid: start_of(pid) for pid in support.descendants(owner.pid)}
        assert len(inside) >= 4
        owner.send_signal(number)
        owner.wait(support.PATIENCE)
        until_ended(inside)
        owner.stdout.close()
        remove_leftovers()
        assert not groups_of(owner.pid)


def test_an_owner_killed_while_it_starts_leaves_nothing() -> None:
    """Killed as soon as it has so many descendants: from the first to all of a sandbox."""
    for count in range(0, 6, 1 if support.CAMPAIGN else 2):
        owner = start_owner("strict", str(count))
        assert owner.stdout
        seen: dict[int, str] = {}

        def has_begun(owner: Any = owner, seen: dict[int, str] = seen, count: int = count) -> bool:
            seen |= {pid: start_of(pid) for pid in support.descendants(owner.pid)}
            return len(seen) >= count

        support.until(has_begun)
        owner.kill()
        owner.wait(support.PATIENCE)
        until_ended({pid: start for pid, start in seen.items() if start})
        owner.stdout.close()
        remove_leftovers()
        assert not groups_of(owner.pid)


def test_groups_of_living_owners_are_left_alone() -> None:
    async def look() -> tuple[list[Path], list[str], list[Path], str]:
        async with open_sandbox("bubblewrap") as box:
            before = groups_of(os.getpid())
            removed = remove_leftovers()
            alive = await box.run("echo alive")
            return before, removed, groups_of(os.getpid()), alive.text

    before, removed, after, alive = support.run(look())
    assert before == after
    assert not any(str(os.getpid()) in name for name in removed)
    assert alive == "alive\n"
    assert not groups_of(os.getpid())


def waiting_bubblewrap() -> int:
    """One whose outer part was killed before it let it go on: it could not write what it was to tell before."""
    told, full = os.pipe()
    os.set_blocking(full, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(full, bytes(1))
    os.set_blocking(full, True)
    path = bubblewrap_path()
    assert path is not None
    words = [path, "--dev-bind", "/", "/", "--unshare-pid", "--as-pid-1", "--die-with-parent"]
    outside = subprocess.Popen(
        [*words, "--info-fd", str(full), "--", *bootstrap_argv(sys.executable)],
        stdin=subprocess.DEVNULL,
        pass_fds=[full],
    )
    support.until(lambda: support.descendants(outside.pid))
    (inside,) = support.descendants(outside.pid)
    outside.kill()
    outside.wait()
    os.close(told)
    os.close(full)
    return inside


@pytest.mark.alone  # other tests reap too
def test_a_bubblewrap_that_nobody_will_let_go_on_is_ended() -> None:
    async def while_another_runs() -> tuple[int, str, str]:
        async with open_sandbox("bubblewrap") as box:
            inside = waiting_bubblewrap()
            began = start_of(inside)
            assert is_running(inside, began)
            remove_leftovers()
            return inside, began, (await box.run("echo alive")).text

    inside, began, alive = support.run(while_another_runs())
    until_ended({inside: began})
    assert alive == "alive\n"


def test_a_start_that_is_cancelled_ends_at_once() -> None:
    """Also while asyncio starts the process: it would kill the outermost one only, and wait for the others."""

    async def cancel() -> None:
        for rounds in [*range(12), 20, 40, 80]:
            opening = asyncio.ensure_future(start_sandbox(SandboxOptions("bubblewrap")))
            for _ in range(rounds):
                await asyncio.sleep(0.001 * (rounds > 12))
            opening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await (await opening).close()

    others = support.descendants(os.getpid())
    support.run(cancel())
    support.until(lambda: not support.descendants(os.getpid()) - others)
    remove_leftovers()
    assert not groups_of(os.getpid())


def test_a_start_whose_limits_cannot_be_applied_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(group: Group, pid: int) -> None:
        raise OSError(errno.EBUSY, "the kernel refuses")

    monkeypatch.setattr(Group, "add", refuse)
    others = support.descendants(os.getpid())
    with pytest.raises(IsolationUnavailableError, match="the kernel refuses"):
        support.run(start_sandbox(SandboxOptions("bubblewrap")))
    support.until(lambda: not support.descendants(os.getpid()) - others)


def test_a_program_that_fails_at_its_start_is_lost_for_its_own_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    invalid = {9999: 1}
    monkeypatch.setattr(
        "llm_sandbox_nb.sandbox.bubblewrap.sandbox.process_limits", lambda *_: (invalid, InForce())
    )
    with pytest.raises(SandboxLostError, match="invalid resource") as caught:
        support.run(start_sandbox(SandboxOptions("bubblewrap")))
    assert "\n" not in str(caught.value)


def test_an_interrupt_of_the_owners_process_group_reaches_no_process_of_a_sandbox() -> None:
    async def groups() -> set[int]:
        others = support.descendants(os.getpid())
        async with open_sandbox("bubblewrap", profile="strict") as box:
            if os.getuid() == 0:
                assert (await box.exec(["id", "-un"], user="root")).stdout == b"root\n"
            return {os.getpgid(pid) for pid in support.descendants(os.getpid()) - others}

    found = support.run(groups())
    assert found
    assert os.getpgid(0) not in found


def test_closing_ends_everything_at_once() -> None:
    async def close() -> dict[int, str]:
        others = support.descendants(os.getpid())
        box = await open_sandbox("bubblewrap")
        await box.run("for i in 1 2 3; do setsid sleep infinity & done; trap '' TERM")
        inside = {pid: start_of(pid) for pid in support.descendants(os.getpid()) - others}
        await box.close()
        await box.close()
        return inside

    for _ in range(3):
        inside = support.run(close())
        assert len(inside) >= 5
        assert not any(is_running(*item) for item in inside.items()), "they ended before `close` returned"


def test_a_sandbox_killed_from_outside_is_lost_and_says_so() -> None:
    async def lose() -> str:
        others = support.descendants(os.getpid())
        async with open_sandbox("bubblewrap") as box:
            for pid in support.descendants(os.getpid()) - others:
                with contextlib.suppress(ProcessLookupError):  # it died with one before it
                    os.kill(pid, signal.SIGKILL)
            with pytest.raises(SandboxLostError) as caught:
                await box.run("echo alive")
            return str(caught.value)

    assert "open a new one" in support.run(lose())
    assert not groups_of(os.getpid())
