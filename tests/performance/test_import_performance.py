"""`import llm_sandbox_nb` and `%load_ext` add little to a bare interpreter and a bare IPython."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable

IMPORT = """
import time
start = time.perf_counter()
import llm_sandbox_nb
print(time.perf_counter() - start)
"""
LOAD_EXT = """
import time
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_cell("1 + 1")
start = time.perf_counter()
shell.run_line_magic("load_ext", "llm_sandbox_nb")
print(time.perf_counter() - start)
"""


def median_seconds(program: str, times: int = 7) -> float:
    def once() -> float:
        done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
        return float(done.stdout.split()[-1])

    once()
    return statistics.median(once() for _ in range(times))


def test_import_takes_at_most_100_ms(measured: Callable[..., None]) -> None:
    seconds = median_seconds(IMPORT)
    measured("import llm_sandbox_nb", seconds * 1000, "ms", bar="at most 100 ms", note="median of 7")
    assert seconds <= 0.1


def test_load_ext_takes_at_most_300_ms(measured: Callable[..., None]) -> None:
    seconds = median_seconds(LOAD_EXT)
    measured("%load_ext llm_sandbox_nb", seconds * 1000, "ms", bar="at most 300 ms", note="median of 7")
    assert seconds <= 0.3
