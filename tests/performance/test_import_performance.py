"""`import llm_sandbox_nb` and `%load_ext` add little to a bare interpreter and a bare IPython."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable

from best_of import best_of

IMPORT = """
import time
start = time.perf_counter()
import llm_sandbox_nb
print(time.perf_counter() - start)
"""
LOAD_EXT = """
import time
start = time.process_time()
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_cell("1 + 1")
bare = time.process_time() - start
start = time.process_time()
shell.run_line_magic("load_ext", "llm_sandbox_nb")
print((time.process_time() - start) / bare)
"""


def median_of(program: str, times: int = 7) -> float:
    def once() -> float:
        done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
        return float(done.stdout.split()[-1])

    once()
    return statistics.median(once() for _ in range(times))


def test_import_takes_at_most_100_ms(measured: Callable[..., None]) -> None:
    seconds = best_of(3, lambda: median_of(IMPORT), bar=0.1)
    measured("import llm_sandbox_nb", seconds * 1000, "ms", bar="at most 100 ms", note="median of 7")
    assert seconds <= 0.1


def test_load_ext_takes_at_most_4_5_times_as_long_as_ipython_itself(measured: Callable[..., None]) -> None:
    """In processor time of one process, so that the speed of the machine and its other work do not count."""
    ratio = best_of(3, lambda: median_of(LOAD_EXT), bar=4.5)
    note = "processor time; median of 7"
    measured("%load_ext llm_sandbox_nb", ratio, "x the start of bare IPython", bar="at most 4.5", note=note)
    assert ratio <= 4.5
