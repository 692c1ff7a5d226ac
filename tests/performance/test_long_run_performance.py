"""What a step of a long run costs, and how soon the first step is there."""

from __future__ import annotations

import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from best_of import best_of
from warm_kernels import connected, kernel_environment, warm_kernel

STEPS = 1000
MOST_GROWTH = 1.3
# Answers without reading what it is sent, so that its own work does not grow. The last reply submits.
SERVER = """
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
asked = 0
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_): pass
    def do_POST(self):
        global asked
        asked += 1
        self.rfile.read(int(self.headers["content-length"]))
        last = asked == int(sys.argv[1])
        arguments = json.dumps({} if last else {"command": f"echo {asked}; seq 1 40"})
        function = {"name": "submit" if last else "execute_bash", "arguments": arguments}
        call = {"index": 0, "id": f"call_{asked}", "type": "function", "function": function}
        deltas = [{"role": "assistant", "content": "I look at the next one."}, {"tool_calls": [call]}, {}]
        chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
        chunks[-1]["choices"][0]["finish_reason"] = "tool_calls"
        chunks.append({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18}})
        head = {"id": f"c{asked}", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        events = [f"data: {json.dumps(head | chunk)}\\n\\n" for chunk in chunks] + ["data: [DONE]\\n\\n"]
        data = "".join(events).encode()
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(f"http://127.0.0.1:{server.server_address[1]}/v1", flush=True)
server.serve_forever()
"""
# Prints the seconds of CPU that this process had used when it asked for each step, the seconds of the run, and the
# seconds of CPU that it took together with its sandbox.
RUN = """
import asyncio, json, os, sys, time
from llm_sandbox_nb.runs.solve import solve
used = []
def listen(event):
    if event.kind == "model.requested":
        used.append(time.process_time())
given = json.loads(sys.argv[1])
start = time.monotonic()
run = asyncio.run(solve("Look at all of them.", isolation="process", listeners=[listen], **given))
print(json.dumps([used, time.monotonic() - start, sum(os.times()[:4]), run.stop_reason, len(run.steps)]))
"""
COMMAND_LINE = """
import sys, time
from llm_sandbox_nb.cli import main
from llm_sandbox_nb.cli.printer import Printer
take = Printer.__call__
def timed(printer, event):
    if event.kind == "call.proposed" and not used:
        used.append(time.process_time())
    take(printer, event)
used, Printer.__call__ = [], timed
assert main(sys.argv[1:]) == 0
print(used[0])
"""


@contextmanager
def quick_server() -> Iterator[str]:
    command = [sys.executable, "-c", SERVER, str(STEPS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().strip()
        finally:
            server.kill()


@contextmanager
def real_model(_: Path) -> Iterator[dict[str, Any]]:
    with quick_server() as url:
        yield {"model": "openai/m", "api_base": url, "api_key": "key"}


@contextmanager
def scripted_model(folder: Path) -> Iterator[dict[str, Any]]:
    command = {"tool": "execute_bash", "arguments": {"command": "echo next; seq 1 40"}}
    looks = [{"text": "I look at the next one.", "calls": [command]}] * (STEPS - 1)
    path = folder / "long.yaml"
    path.write_text(json.dumps({"turns": [*looks, {"calls": [{"tool": "submit"}]}]}))
    yield {"model": f"scripted/{path}"}


@pytest.mark.timeout(400)
@pytest.mark.parametrize("model", [real_model, scripted_model], ids=["HTTP", "scripted"])
def test_a_late_step_costs_what_an_early_one_costs(
    model: Callable[[Path], Any], tmp_path: Path, measured: Callable[..., None]
) -> None:

    def once() -> tuple[float, float, float, float]:
        """Milliseconds of CPU for an early and for a late step, seconds of the run, and its seconds of CPU."""
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        with model(folder) as given:
            given |= {"limits": {"steps": STEPS, "tokens": None}, "output_dir": str(folder)}
            used, seconds, busy, reason, steps = json.loads(python(folder, RUN, json.dumps(given)))
        assert (reason, steps) == ("submitted", STEPS)
        costs = [1000 * (after - before) for before, after in itertools.pairwise(used)]
        early, late = (statistics.quantiles(part, n=10)[1] for part in (costs[25:225], costs[-200:]))
        return early, late, seconds, busy

    best = best_of(3, once, bar=MOST_GROWTH, by=lambda figures: figures[1] / figures[0])
    early, late, seconds, busy = best
    name = model.__name__.partition("_")[0]
    note = f"{early:.1f} ms of CPU a step after step 25, {late:.1f} ms before step 1,000; the quickest fifth"
    measured(
        f"1,000 steps, {name} model: growth", late / early, "x", bar=f"at most {MOST_GROWTH} x", note=note
    )
    measured(
        f"1,000 steps, {name} model, process", seconds, "s", bar="under 60 s", note=f"{busy:.0f} s of CPU"
    )
    assert late <= MOST_GROWTH * early, note
    assert min(seconds, busy) < 60, "more than a machine with other work explains"


def test_the_first_scripted_cell_of_a_kernel_shows_its_first_step(
    tmp_path: Path, measured: Callable[..., None]
) -> None:
    wait = best_of(3, lambda: first_step(tmp_path), bar=1.5)
    measured("first scripted cell of a kernel: first step", wait, "s", bar="within 1.5 s")
    assert wait <= 1.5


def first_step(folder: Path) -> float:
    """Seconds until the first cell of a new kernel shows its first step."""
    shown: list[float] = []

    def listen(message: dict[str, Any]) -> None:
        if "\n  1  " in message["content"].get("data", {}).get("text/plain", ""):
            shown.append(time.monotonic())

    cell = "%%sandbox -m scripted/strawberry --isolation process\nHow many r's are in strawberry?"
    with warm_kernel(folder, kernel_environment(folder), keep=False) as kernel, connected(kernel) as client:
        client.execute_interactive("%load_ext llm_sandbox_nb", timeout=60)
        start = time.monotonic()
        client.execute_interactive(cell, timeout=60, output_hook=listen)
    return shown[0] - start


def test_the_command_line_shows_a_scripted_step_at_once(
    tmp_path: Path, measured: Callable[..., None]
) -> None:
    words = ["run", "--llm_name", "scripted/strawberry", "--query", "Count.", "--isolation", "process"]
    used = best_of(3, lambda: float(python(tmp_path, COMMAND_LINE, *words)), bar=2)
    measured("run with a scripted model: CPU before the first step", used, "s", bar="at most 2 s")
    assert used <= 2


def python(folder: Path, code: str, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=folder, env=kernel_environment(folder), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]
