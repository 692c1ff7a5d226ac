"""In `strict` the model is an ordinary user; who holds the sandbox may act as others, and only they."""

from __future__ import annotations

import pytest
import support

from llm_sandbox_nb import open_sandbox
from llm_sandbox_nb.sandbox.bubblewrap.launch import is_host_root
from llm_sandbox_nb.sandbox.errors import SandboxUserError

FEW_RIGHTS = "00000000000000fb"


@pytest.fixture(autouse=True)
def users(strong_isolation: str) -> None:
    if strong_isolation == "bubblewrap" and not is_host_root():
        pytest.skip("bubblewrap started by an ordinary user has only that user inside")


def test_the_holder_acts_as_any_user(strong_isolation: str) -> None:
    async def act() -> list[str]:
        async with open_sandbox(strong_isolation, profile="strict") as box:
            users = ("root", "0", "nobody", "1000", None)
            names = [(await box.exec(["id", "-u"], user=user)).text.strip() for user in users]
            with pytest.raises(SandboxUserError):
                await box.exec(["true"], user="stranger")
            return names

    assert support.run(act()) == ["0", "0", "65534", "1000", "1000"]


def test_root_has_few_rights_and_the_model_none(strong_isolation: str) -> None:
    async def look() -> list[list[str]]:
        async with open_sandbox(strong_isolation, profile="strict") as box:
            show = ["grep", "-E", "^(CapEff|CapBnd|NoNewPrivs|Seccomp):", "/proc/self/status"]
            as_root = await box.exec(show, user="root")
            groups = [
                (await box.exec(["cat", "/proc/self/cgroup"], user=user)).text for user in ("root", None)
            ]
            assert groups[0] == groups[1]
            model = [await box.exec(show), await box.run(" ".join(f"'{word}'" for word in show))]
            return [result.text.split()[1::2] for result in (as_root, *model)]

    as_root, *model = support.run(look())
    assert as_root == [FEW_RIGHTS, FEW_RIGHTS, "1", "2"]
    assert model == [["0" * 16, "0" * 16, "1", "2"]] * 2


def test_the_model_reaches_nothing_of_it(strong_isolation: str) -> None:
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

    async def act() -> list[str]:
        async with open_sandbox(strong_isolation, profile="strict") as box:
            await box.exec(["sh", "-c", "echo hers > /run/file; chmod 600 /run/file"], user="root")
            await box.run(
                "mkdir -p ~/bin; printf '#!/bin/sh\\necho mine' > ~/bin/whoami; chmod +x ~/bin/whoami"
            )
            reading = await box.exec(["cat", "/run/file"])
            attacking = await box.exec(["python3", "-c", attack])
            after = await box.exec(["whoami"], user="root")
            return [result.text for result in (reading, attacking, after)]

    reading, attacking, after = support.run(act())
    assert "Permission denied" in reading
    assert "reached" not in attacking
    assert after == "root\n"


def test_a_time_out_kills_what_root_started(strong_isolation: str) -> None:
    async def act() -> tuple[bool, str]:
        async with open_sandbox(strong_isolation, profile="strict") as box:
            script = "setsid sleep 1234 & trap '' TERM; sleep 1234"
            result = await box.exec(["bash", "-c", script], user="root", timeout=1)
            listing = "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"
            return result.timed_out, (await box.exec(["sh", "-c", listing], user="root")).text

    timed_out, processes = support.run(act())
    assert timed_out
    assert "1234" not in processes
