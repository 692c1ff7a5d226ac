"""Who holds a sandbox: it acts as any user of `strict`, and knows what the sandbox has used, whatever that says."""

from __future__ import annotations

from typing import Any

import pytest
from sandbox_commands import living, timed_out
from shared_sandboxes import isolated
from support import own_mark

from llm_sandbox_nb.benchmark.report import cell_row
from llm_sandbox_nb.benchmark.results import Result
from llm_sandbox_nb.sandbox.bubblewrap.launch import is_host_root
from llm_sandbox_nb.sandbox.contract import ResourceUsage
from llm_sandbox_nb.sandbox.errors import SandboxUserError
from llm_sandbox_nb.sandbox.open import resource_usage

FEW_RIGHTS = "00000000000000fb"


@pytest.fixture
def users(isolation: str) -> None:
    if isolation == "bubblewrap" and not is_host_root():
        pytest.skip("bubblewrap started by an ordinary user has only that user inside")


def administered(test: Any) -> Any:
    """In `strict`, where the holder may act as others."""
    with_users = pytest.mark.usefixtures("users")(test)
    return isolated(pytest.mark.own_sandbox(pytest.mark.sandbox(profile="strict")(with_users)))


@administered
async def test_the_holder_acts_as_any_user(box: Any) -> None:
    users = ("root", "0", "nobody", "1000", None)
    names = [(await box.exec(["id", "-u"], user=user)).text.strip() for user in users]
    assert names == ["0", "0", "65534", "1000", "1000"]
    with pytest.raises(SandboxUserError):
        await box.exec(["true"], user="stranger")


@administered
async def test_root_has_few_rights_and_the_model_none(box: Any) -> None:
    show = ["grep", "-E", "^(CapEff|CapBnd|NoNewPrivs|Seccomp):", "/proc/self/status"]
    as_root = await box.exec(show, user="root")
    model = [await box.exec(show), await box.run(" ".join(f"'{word}'" for word in show))]
    assert as_root.text.split()[1::2] == [FEW_RIGHTS, FEW_RIGHTS, "1", "2"]
    assert [result.text.split()[1::2] for result in model] == [["0" * 16, "0" * 16, "1", "2"]] * 2
    groups = [(await box.exec(["cat", "/proc/self/cgroup"], user=user)).text for user in ("root", None)]
    assert groups[0] == groups[1]


@administered
async def test_the_model_reaches_nothing_of_it(box: Any) -> None:
    attack = """
import glob, os
for path in glob.glob("/proc/[0-9]*"):
    if os.stat(path).st_uid == 0:
        for name in ("mem", "environ", "fd/0", "fd/1"):
            try:
                open(f"{path}/{name}", "rb").read(1)
                print("reached", path, name)
            except OSError:
                pass
os.kill(-1, 9)
"""
    await box.exec(["sh", "-c", "echo hers > /run/file; chmod 600 /run/file"], user="root")
    await box.run("mkdir -p ~/bin; printf '#!/bin/sh\\necho mine' > ~/bin/whoami; chmod +x ~/bin/whoami")
    assert "Permission denied" in (await box.exec(["cat", "/run/file"])).text
    assert "reached" not in (await box.exec(["python3", "-c", attack])).text
    assert (await box.exec(["whoami"], user="root")).text == "root\n"


@administered
async def test_a_time_out_kills_what_root_started(box: Any) -> None:
    mark = own_mark()
    script = f"echo begun; setsid sleep {mark} & trap '' TERM; sleep {mark}; :"
    await timed_out(box, ["bash", "-c", script], user="root", mark=mark, least=2)
    assert living(mark) == 0


# ---------------------------------------------------------------------------------------- what it has used


@isolated
@pytest.mark.own_sandbox
async def test_memory_and_disk_come_from_the_engine(box: Any, isolation: str) -> None:
    before = await resource_usage(box)
    assert before.memory_peak is not None
    assert before.disk is not None
    assert before.memory_peak < 60e6
    assert (await box.run("python3 -c 'held = bytearray(80_000_000); print(len(held))'")).exit_code == 0
    after = await resource_usage(box)
    assert after.memory_peak is not None
    assert 80e6 < after.memory_peak < 200e6
    assert (await box.run("head -c 30000000 /dev/urandom > /testbed/file")).exit_code == 0
    filled = await resource_usage(box)
    assert filled.disk is not None
    grown = filled.disk - before.disk
    assert 29e6 < grown < 40e6 if isolation == "docker" else filled.disk == 0


@pytest.mark.isolations("process")
async def test_what_cannot_be_known_is_nothing(box: Any) -> None:
    assert await resource_usage(box) == ResourceUsage()


@pytest.mark.isolations("docker")
@pytest.mark.own_sandbox
async def test_a_container_that_is_gone_is_no_failure(box: Any) -> None:
    await box.close()
    assert await resource_usage(box) == ResourceUsage()


def test_a_report_has_what_is_known_of_it() -> None:
    known = [
        Result("t", "sandbox", "a", 0, memory_peak=20_000_000, disk=1_000_000),
        Result("t", "sandbox", "b", 0, memory_peak=40_000_000, disk=None),
        Result("t", "sandbox", "c", 0, memory_peak=900_000_000, error_kind="server"),
    ]
    row = cell_row("t", "sandbox", known)
    assert (row["memory_peak_mb_mean"], row["memory_peak_mb_most"]) == (30.0, 40.0)
    assert (row["disk_mb_mean"], row["disk_mb_most"]) == (1.0, 1.0)
    assert cell_row("t", "llm", [Result("t", "llm", "a", 0)])["memory_peak_mb_mean"] is None
