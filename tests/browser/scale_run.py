"""Long runs: so many steps, so much output, diffs among them, as events that the view can be given."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

from llm_sandbox_nb.trajectory import events as ev

WORDS = [
    "alpha",
    "beta",
    "gamma",
    "delta",
    "error:",
    "warning:",
    "/usr/lib/python3",
    "0.25",
    "built",
    "[ok]",
    "--",
    "ünï",
]
DIFF_EVERY = 5
FAILED_EVERY = 50


def long_run(steps: int, output_bytes: int, seed: int = 7) -> list[ev.Event]:
    """A whole run with about `output_bytes` of output together; the same for the same seed."""
    source = random.Random(seed)
    events: list[ev.Event] = [
        ev.RunStarted(run_id="scale", task="Build everything.", model="scripted/long", scripted=True),
        ev.SandboxReady(sandbox_id="s", protection={"isolation": "docker"}, start_time=0.2),
    ]
    for number in range(1, steps + 1):
        events += step(number, output_bytes // steps, source)
    events.append(ev.RunFinished(stop_reason="submitted", answer="**Done.**", steps=steps, wall_time=900.0))
    return events


def step(number: int, output_bytes: int, source: random.Random) -> Iterator[ev.Event]:
    call = f"call_{number}"
    command = {"command": f"cd /srv/project{number} && make -j4 target{number} && ./run --case {number}"}
    raw = json.dumps(command)
    text = prose(source, 60)
    asked = {"id": call, "type": "function", "function": {"name": "execute_bash", "arguments": raw}}
    yield ev.ModelRequested(step=number)
    yield ev.ModelReplied(
        step=number,
        message={
            "role": "assistant",
            "content": f"I build **target {number}**: {text}",
            "tool_calls": [asked],
        },
        reasoning=prose(source, 40),
        usage=ev.Usage(prompt_tokens=9000, completion_tokens=120, cost=0.01),
        model_time=1.5,
    )
    yield ev.CallProposed(
        step=number, call_id=call, tool="execute_bash", raw_arguments=raw, arguments=dict(command)
    )
    yield ev.CallStarted(step=number, call_id=call, tool="execute_bash", arguments=dict(command))
    stdout = output(source, output_bytes)
    failed = number % FAILED_EVERY == 0
    yield ev.CallFinished(
        step=number,
        call_id=call,
        observation=f"Exit code: {int(failed)}\n\n[stdout]\n{stdout}",
        exit_code=int(failed),
        stdout=stdout,
        duration=2.0,
        changes=[diff(number, source)] if number % DIFF_EVERY == 0 else [],
    )


def output(source: random.Random, size: int) -> str:
    """Lines of a build, about `size` bytes of them; some coloured as a terminal would show them."""
    lines: list[str] = []
    while size > 0:
        words = prose(source, 12)
        line = f"\x1b[32m{words}\x1b[0m" if source.random() < 0.02 else words
        lines.append(line)
        size -= len(line.encode()) + 1
    return "\n".join(lines) + "\n"


def prose(source: random.Random, words: int) -> str:
    return " ".join(source.choices(WORDS, k=words))


def diff(number: int, source: random.Random) -> ev.FileDiff:
    lines = [f"{source.choice('+- ')}{prose(source, 8)}" for _ in range(100)]
    text = (
        f"--- a/src/part{number}.py\n+++ b/src/part{number}.py\n@@ -1,70 +1,70 @@\n" + "\n".join(lines) + "\n"
    )
    return ev.FileDiff(path=f"src/part{number}.py", kind="modified", size=4000, diff=text)
