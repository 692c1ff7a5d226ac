"""Run by the seed package's own interpreter: start, round trips and close of its DockerRuntime, as JSON on stdout.

python seed_runtime.py IMAGE ROUNDS
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from llm_in_sandbox import DockerRuntime


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    value = action()
    return time.perf_counter() - started, value


def main() -> None:
    image, rounds = sys.argv[1], int(sys.argv[2])
    start, runtime = timed(lambda: DockerRuntime(image, logger=False))
    round_trips = [timed(lambda: runtime.run("true"))[0] for _ in range(rounds)]
    close, _ = timed(runtime.close)
    result = {"start": start, "round_trip": statistics.median(round_trips), "close": close}
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
