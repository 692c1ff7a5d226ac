"""The check of the tests' own habits refuses a planted example of each kind, and accepts its cure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import check_tests
import pytest

LONG = "sleep 5" + "41"
HABITS = {
    "a constant mark": (f"box.start('{LONG}')\nassert x", "box.start(f'sleep {own_mark()}')\nassert x"),
    "a constant mark as two words": (
        f"start({LONG.split()})\nassert x",
        "start(['sleep', own_mark()])\nassert x",
    ),
    "a constant that is searched for": (
        "assert not processes_with" + "('word')",
        "assert not processes_with(mark)",
    ),
    "a search of the whole machine": (
        "assert not box.run('cat /proc/*/cmdline | grep word')",
        "assert not box.run(f'cat /proc/*/cmdline | grep {mark}')",
    ),
    "sleep, then assert": (
        "time.sleep(0.5)\nassert done",
        "until(lambda: done)\nassert done",
    ),
    "sleep, then read, then assert": (
        "await asyncio.sleep(0.5)\nread = await box.read('a')\nassert read",
        "await asyncio.sleep(0.5)\nawait eventually(lambda: done)\nassert done",
    ),
    "sleep in a browser, then assert": (
        "page.wait_for_timeout(500)\nassert card.is_visible()",
        "expect(card).to_be_visible()",
    ),
    "sleep, then cancel": (
        "await asyncio.sleep(0.4)\ntask.cancel()\nassert x",
        "await begun.wait()\ntask.cancel()\nassert x",
    ),
    "sleep, then kill": ("time.sleep(1)\nprocess.kill()\nassert x", "until(begun)\nprocess.kill()\nassert x"),
    "a short time-out of a command": (
        "got = await box.run('work', timeout=2)\nassert got",
        "# A time-out is what is tested: a time-out is what is tested.\n"
        "got = await box.run('work', timeout=2)\nassert got",
    ),
    "a short time-out of asyncio": (
        "async with asyncio.timeout(5):\n    assert await work()",
        "async with asyncio.timeout(60):\n    assert await work()",
    ),
    "a short wait_for": (
        "assert await asyncio.wait_for(work(), 2)",
        "with pytest.raises(TimeoutError):\n    await asyncio.wait_for(work(), 2)",
    ),
    "a short time-out of a process": (
        "process.communicate(timeout=5)\nassert x",
        "process.communicate(timeout=60)\nassert x",
    ),
    "a short time-out in a browser": (
        "expect(card).to_be_visible(timeout=2000)",
        "expect(card).to_be_visible(timeout=60000)",
    ),
    "no assertion": ("box.run('work')", "check_work(box.run('work'))"),
}


def found(folder: Path, body: str, name: str = "integration/test_planted.py") -> list[str]:
    file = folder / "tests" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    indented = "\n".join(f"    {line}" for line in body.splitlines())
    file.write_text(f"async def test_planted():\n{indented}\n")
    return [one.kind for one in check_tests.findings(check_tests.read([file]))]


@pytest.mark.parametrize("habit", HABITS)
def test_each_habit_is_refused_and_its_cure_accepted(habit: str, tmp_path: Path) -> None:
    planted, cure = HABITS[habit]
    assert len(found(tmp_path, planted)) == 1
    assert found(tmp_path, cure) == []


@pytest.mark.parametrize(
    ("source", "kinds"),
    [
        ("import torch", ["import"]),
        ("from openai.types import chat", ["import"]),
        ("@pytest.mark.campaign\ndef test_it(): assert torch\nimport torch", ["import"]),
        ("pytestmark = pytest.mark.campaign\nimport torch", []),
        ("pytestmark = [pytest.mark.timeout(9), pytest.mark.campaign]\nimport torch", []),
        ("def test_it():\n    import torch\n    assert torch", []),
    ],
)
def test_an_import_that_takes_long_is_refused_where_every_worker_makes_it(
    source: str, kinds: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "tests" / "test_planted.py"
    file.parent.mkdir()
    file.write_text(source)
    assert [one.kind for one in check_tests.findings(check_tests.read([file]))] == kinds


def test_an_exception_needs_a_reason(tmp_path: Path) -> None:
    planted = "time.sleep(0.5){}\nassert not alive"
    assert found(tmp_path, planted.format("  # on purpose")) == ["sleep"]
    assert found(tmp_path, planted.format("  # on purpose: nothing may happen meanwhile")) == []


def test_virtual_time_and_polling_are_no_habits(tmp_path: Path) -> None:
    body = "async def body():\n    await asyncio.sleep(9)\n    assert done\nrun_in_virtual_time(body())"
    assert found(tmp_path, body, "unit/test_planted.py") == []
    assert found(tmp_path, "while not done:\n    time.sleep(0.1)\nassert done", "unit/test_planted.py") == []


def test_unit_tests_sleep_three_times_at_most_and_say_why(tmp_path: Path) -> None:
    sleeps = ["work(lambda: time.sleep(1))  # the thread must be held"] * 4
    assert found(tmp_path, "\n".join([*sleeps[:3], "assert x"]), "unit/test_planted.py") == []
    assert found(tmp_path, "\n".join([*sleeps, "assert x"]), "unit/test_planted.py") == ["unit sleeps"] * 4
    silent = "work(lambda: time.sleep(1))\nassert x"
    assert found(tmp_path, silent, "unit/test_planted.py") == ["unit sleep"]


def test_a_helper_of_another_file_asserts(tmp_path: Path) -> None:
    folder = tmp_path / "tests"
    (folder / "unit").mkdir(parents=True)
    (folder / "helpers.py").write_text("def same(one, other):\n    assert one == other\n")
    test = "from helpers import {0}\n\ndef test_it():\n    {0}(1, 2)\n"
    for name, expected in (("same", []), ("other", ["no assertion"])):
        (folder / "unit" / "test_it.py").write_text(test.format(name))
        assert [one.kind for one in check_tests.findings(check_tests.read([folder]))] == expected


def test_the_command_names_file_line_and_cure(tmp_path: Path) -> None:
    found(tmp_path, "time.sleep(1)\nprocess.kill()\nassert x")
    command = [sys.executable, check_tests.__file__, str(tmp_path / "tests")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "tests/integration/test_planted.py:2: sleeps, then calls kill(): wait for" in done.stdout
