"""What doubts cost: of a run of 500 steps and 20 MB, all together and for each step while it goes on."""

from __future__ import annotations

import time
from typing import Any

from card_runs import start_event

from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.doubts.rules import DoubtFinder
from llm_sandbox_nb.trajectory.trajectory import Trajectory

STEPS = 500
OUTPUT = "".join(f"row {number}: value {number * 37 % 1000}.{number % 10} kept\n" for number in range(1_560))
COMMANDS = (
    "cd /work && python3 total.py input/a.csv > output/total.txt && cat output/total.txt",
    "cat > step.py <<'EOF'\n"
    + "print('one line of a program')\n" * 40
    + "EOF\npython3 step.py | tee parts/step.txt",
    "python3 -m pytest -q tests 2>&1 | tail -n 5",
    "grep -rn 'value' src | head -n 50; ls -la",
)


def step_events(number: int) -> list[ev.Event]:
    """A step with a command, 40 kB of output and a changed file."""
    call, command = f"c{number}", COMMANDS[number % len(COMMANDS)]
    diff = f"--- a/f\n+++ b/f\n@@ -1,2 +1,3 @@\n a,b\n 1,2\n+{number},4\n"
    change = ev.FileDiff(
        path=f"/work/data{number % 40}.csv", kind="modified" if number > 40 else "added", size=20 + number,
        size_before=19 + number, lines=3 + number, lines_before=2 + number, diff=diff,
    )  # fmt: skip
    arguments: dict[str, Any] = {"command": command}
    return [
        ev.ModelRequested(step=number),
        ev.ModelReplied(step=number, message={"role": "assistant", "content": "I go on with the work."}),
        ev.CallProposed(step=number, call_id=call, tool="execute_bash", raw_arguments="", arguments=arguments),
        ev.CallStarted(step=number, call_id=call, tool="execute_bash", arguments=arguments),
        ev.CallFinished(
            step=number, call_id=call, observation=f"Exit code: 0\n{OUTPUT[:16_000]}", stdout=f"{number}\n{OUTPUT}",
            exit_code=0, changes=[change],
        ),
    ]  # fmt: skip


def test_doubts_of_a_long_run() -> None:
    assert STEPS * len(OUTPUT) >= 20_000_000
    finish = ev.RunFinished(stop_reason="submitted", answer="The sum is 48213.75, in total.txt.", steps=STEPS)
    steps = [step_events(number) for number in range(1, STEPS + 1)]
    each, whole = [], []
    for _ in range(5):
        trajectory, finder, seconds = Trajectory([start_event()]), DoubtFinder(), 0.0
        for events in steps:
            for event in events:
                trajectory.add(event)
            begin = time.process_time()
            finder.newest(trajectory, events[-1])  # type: ignore[arg-type]
            seconds += time.process_time() - begin
        begin = time.process_time()
        finder.all(trajectory, finish)
        each.append(seconds / STEPS)
        whole.append(time.process_time() - begin)
    again = []
    for _ in range(3):
        trajectory = Trajectory([start_event(), *(event for events in steps for event in events)])
        begin = time.process_time()
        DoubtFinder().all(trajectory, finish)
        again.append(time.process_time() - begin)
    print(f"{1e3 * min(each):.3f} ms a step, then {1e3 * min(whole):.1f} ms at the end")
    print(f"without them, on reading: {1e3 * min(again):.1f} ms")
    # Twice the aim of 0.2 ms and 50 ms: a shared machine is half as fast at times.
    assert min(each) <= 0.000_4
    assert min(whole) <= 0.1
