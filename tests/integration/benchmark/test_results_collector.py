"""The collector of test results in a sandbox: the tested code, of the same user, cannot look into it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support import run

from llm_sandbox_nb.benchmark import results_collector
from llm_sandbox_nb.sandbox.open import open_sandbox

LOOK = """
import os, sys
found = [name for name in filter(str.isdigit, os.listdir("/proc"))
         if sys.argv[1] in open("/proc/%s/cmdline" % name).read() and int(name) != os.getpid()]
for path in ("fd/1", "mem"):
    try:
        os.close(os.open("/proc/%s/%s" % (found[0], path), os.O_RDWR if path == "mem" else os.O_WRONLY))
        print("open")
    except OSError:
        print("closed")
"""


@pytest.mark.bubblewrap
@pytest.mark.parametrize("profile", ["standard", "strict"])
def test_another_process_cannot_write_the_outcomes_of_the_collector(
    profile: str, bubblewrap_engine: str
) -> None:
    source = Path(results_collector.__file__).read_text()
    unprotected = source.replace("ctypes.CDLL(None).prctl", "(lambda *_: None)")
    assert unprotected != source

    async def body() -> list[list[str]]:
        found = []
        async with open_sandbox("bubblewrap", profile=profile) as box:
            for number, text in enumerate([unprotected, source]):
                path, mark = f"/tmp/results{number}", f"mark{number}"
                collector = ["python3", "-I", "-S", "-c", text, mark]
                collecting = asyncio.ensure_future(box.exec(collector, stdin=f"{path}\nlast\n".encode()))
                await box.run(f"until [ -S {path} ]; do sleep 0.05; done")
                found.append((await box.exec(["python3", "-c", LOOK, mark])).stdout.decode().split())
                collecting.cancel()
        return found

    assert run(body()) == [["open", "open"], ["closed", "closed"]], "the canary is the first"
