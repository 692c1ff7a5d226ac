"""Writes runs.json: runs as events, and what is said of each, in Python, TypeScript, server, card and terminal.

    python tests/data/make_runs.py

Look at each difference that it makes: the words of the file are what readers see. Fields that have their default are
left out of the events, and ids are `e1`, `e2` ... in the order of the events.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from llm_sandbox_nb.runs.rewind_points import end_of_step
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.calm_steps import CalmSteps, step_rows
from llm_sandbox_nb.trajectory.journal import read_journal
from llm_sandbox_nb.trajectory.step_line import step_line
from llm_sandbox_nb.trajectory.trajectory import Trajectory

FOLDER = Path(__file__).parent
ROOT = "/work"
Events = list[ev.Event]
DIFF = "--- a\n+++ b\n@@ -1,3 +1,2 @@\n-x\n-y\n+z\n same\n"


def start(**settings: Any) -> Events:
    known = {"settings": {"limits": settings}} if settings else {}
    protection = {"isolation": "docker", "network": "none"}
    return [
        ev.RunStarted(run_id="r", task="Count the letters.", model="scripted/x", scripted=True, **known),
        ev.SandboxReady(sandbox_id="s", protection=protection, start_time=0.1, root=ROOT),
    ]


def replays(run: str) -> Events:
    first, *rest = start(steps=100)
    assert isinstance(first, ev.RunStarted)
    return [first.model_copy(update={"settings": {**first.settings, "replay_of": run}}), *rest]


def asked(step: int) -> Events:
    return [ev.ModelRequested(step=step)]


def reply(step: int, text: str = "I look.", **more: Any) -> Events:
    given = {"usage": ev.Usage(prompt_tokens=10, completion_tokens=5, cost=None), "model_time": 0.5, **more}
    return [*asked(step), ev.ModelReplied(step=step, message={"role": "assistant", "content": text}, **given)]


def proposed(step: int, tool: str, arguments: Any, call: str = "", raw: str | None = None) -> Events:
    text = json.dumps(arguments) if raw is None else raw
    return [
        ev.CallProposed(
            step=step, call_id=call or f"c{step}", tool=tool, raw_arguments=text, arguments=arguments
        )
    ]


def started(step: int, tool: str, arguments: Any, call: str = "") -> Events:
    return [ev.CallStarted(step=step, call_id=call or f"c{step}", tool=tool, arguments=arguments)]


def result(step: int, observation: str = "", call: str = "", **more: Any) -> Events:
    return [ev.CallFinished(step=step, call_id=call or f"c{step}", observation=observation, **more)]


def called(step: int, tool: str, arguments: Any, *, call: str = "", said: str = "", **more: Any) -> Events:
    return [
        *proposed(step, tool, arguments, call),
        *started(step, tool, arguments, call),
        *result(step, said, call, **more),
    ]


def bash(step: int, command: Any = "ls", *, text: str = "I look.", call: str = "", **more: Any) -> Events:
    given = {"exit_code": 0, "stdout": "out\n", "said": "Exit code: 0\n[stdout]\nout", **more}
    return [*reply(step, text), *called(step, "execute_bash", {"command": command}, call=call, **given)]


def edit(step: int, arguments: dict[str, Any], **more: Any) -> Events:
    return [*reply(step, "I write."), *called(step, "str_replace_editor", arguments, **more)]


def own(step: int, tool: str, arguments: Any, **more: Any) -> Events:
    return [*reply(step, "I ask."), *called(step, tool, arguments, **{"said": "21 degrees", **more})]


def change(path: str, kind: Any = "modified", diff: str | None = DIFF, **more: Any) -> ev.FileDiff:
    return ev.FileDiff(path=path, kind=kind, size=9, diff=diff, **more)


def saved(step: int, path: str) -> Events:
    return [ev.ArtifactSaved(step=step, path=path, mime="text/plain", size=3, sha256="0")]


def end(reason: Any, **more: Any) -> Events:
    return [ev.RunFinished(stop_reason=reason, steps=1, wall_time=3.0, **more)]


def control(*actions: Any, source: str = "") -> Events:
    return [
        ev.Controlled(action=action, text="Hurry." if action == "say" else None, source=source)
        for action in actions
    ]


def held(step: int, at: Any = "call") -> Events:
    call = ev.CallHeld(step=step, call_id=f"c{step}", at=at, reason="approval", text="rm deletes files")
    return [call, *control("paused")]


def decided(step: int, action: Any, call: str = "", **more: Any) -> Events:
    given = {"source": "browser", **more}
    return [ev.CallDecided(step=step, call_id=call or f"c{step}", action=action, **given)]


def back(events: Events, step: int, what: Any = "both", **more: Any) -> Events:
    to = end_of_step(Trajectory(numbered(events)), step)
    return numbered(
        [*events, ev.RewindStarted(to=to, step=step), ev.Rewound(to=to, step=step, what=what, **more)]
    )


def undone(events: Events) -> Events:
    rewind, before = events[-1], events[-3]
    assert isinstance(rewind, ev.Rewound)
    step = Trajectory(events).step_at(before.id)
    return numbered([*events, ev.Rewound(to=before.id, step=step, undo_of=rewind.id)])


def forked(events: Events) -> Events:
    """The same events as a fork that shares them all."""
    first, *rest = numbered(events)
    assert isinstance(first, ev.RunStarted)
    step = max((event.step for event in rest if isinstance(event, ev.ModelRequested)), default=0)
    origin = ev.ForkedFrom(run_id="r0", folder="r0", step=step, event=rest[-1].id)
    return [first.model_copy(update={"forked_from": origin}), *rest]


def numbered(events: Events) -> Events:
    for number, event in enumerate(events, 1):
        event.id, event.time = f"e{number}", float(number)
    return events


def states() -> Iterator[tuple[str, Events, bool]]:
    """Runs that stand or end in every way: name, events, whether a process executes them."""
    yield "nothing but a start, live", start(), True
    yield "nothing but a start, killed", start(), False
    opening = {"settings": {"isolation": "docker"}}
    for name, first in (("", start()[0]), (", Docker", start()[0].model_copy(update=opening))):
        yield f"the sandbox starts{name}", [first], True
    yield "a step without a sandbox that is known", [*start()[:1], *asked(1)], True
    yield "the first request", [*start(), *asked(1)], True
    yield "killed in the first request", [*start(), *asked(1)], False
    yield (
        "the first request again",
        [*start(), *asked(1), failed(1, "timeout", 2.0), ev.ModelRequested(step=1, attempt=2)],
        True,
    )
    yield "one step done", [*start(), *bash(1)], True
    yield "killed after one step", [*start(), *bash(1)], False
    yield (
        "killed in a call",
        [
            *start(),
            *reply(1),
            *proposed(1, "execute_bash", {"command": "sleep 9"}),
            *started(1, "execute_bash", {"command": "sleep 9"}),
        ],
        False,
    )
    yield (
        "a call runs",
        [
            *start(),
            *reply(1),
            *proposed(1, "execute_bash", {"command": "sleep 9"}),
            *started(1, "execute_bash", {"command": "sleep 9"}),
        ],
        True,
    )
    rm = [*start(), *bash(1), *reply(2), *proposed(2, "execute_bash", {"command": "rm -r data"})]
    yield "held before a call", [*rm, *held(2)], True
    yield "held, then killed", [*rm, *held(2)], False
    yield "held, and something was said", [*rm, *held(2), *control("say")], True
    yield "held, then resumed", [*rm, *held(2), *control("resume")], True
    yield "held, then one step", [*rm, *held(2), *control("step")], True
    yield "held, then stopped", [*rm, *held(2), *control("stop")], True
    yield "held, then stopped, and ended", [*rm, *held(2), *control("stop"), *end("interrupted")], False
    yield "held, then allowed", [*rm, *held(2), *decided(2, "run")], True
    yield (
        "held, allowed, and it runs",
        [*rm, *held(2), *decided(2, "run"), *started(2, "execute_bash", {"command": "rm -r data"})],
        True,
    )
    yield "held, killed and continued", [*rm, *held(2), ev.Continued(), *asked(3)], True
    yield "held after a call", [*start(), *bash(1), *held(1, "observation")], True
    yield (
        "held after a call, then another result",
        [*start(), *bash(1), *held(1, "observation"), *decided(1, "observe", observation="nothing")],
        True,
    )
    yield "a pause was asked for", [*start(), *bash(1), *asked(2), *control("pause")], True
    yield (
        "a pause was asked for, and something was said",
        [*start(), *asked(1), *control("pause", "say")],
        True,
    )
    yield (
        "a pause was asked for, then killed and continued",
        [*start(), *asked(1), *control("pause"), ev.Continued()],
        True,
    )
    yield "paused", [*start(), *bash(1), *control("pause", "paused")], True
    yield "paused, and something was said", [*start(), *bash(1), *control("paused", "say")], True
    yield "paused, then resumed", [*start(), *bash(1), *control("paused", "resume")], True
    yield "paused, then killed", [*start(), *bash(1), *control("paused")], False
    yield (
        "paused, killed and continued",
        [*start(), *bash(1), *control("paused"), ev.Continued(), *asked(2)],
        True,
    )
    yield "stopped by a person", [*start(), *bash(1), *control("stop"), *end("interrupted")], False
    for source in ("on_pause", "mcp", "kernel"):
        stopped = control("stop", source=source)
        yield f"stopped: {source}", [*start(), *bash(1), *stopped, *end("interrupted")], False
    for reason in ("submitted", "answered", "no_answer", "refused", "repeated", "sandbox_lost", "error"):
        yield f"ended: {reason}", [*start(), *bash(1), *end(reason)], False
    yield "ended while a page shows it", [*start(), *bash(1), *end("submitted")], True
    yield "ended: submitted with nothing", [*start(), *bash(1), *end("submitted", without_answer=True)], False
    yield from checked_runs()
    yield "ended: steps, no limit known", [*start(), *bash(1), *end("steps")], False
    yield "ended: steps", [*start(steps=100), *bash(1), *end("steps")], False
    yield (
        "ended: steps, a limit that was changed",
        [*start(steps=5), *bash(1), ev.SettingsChanged(limits={"steps": 9}), *end("steps")],
        False,
    )
    yield "ended: tokens", [*start(tokens=65536), *bash(1), *end("tokens")], False
    yield (
        "ended: the model's context",
        [*start(tokens=65536), *bash(1), *end("tokens", error="Too long.")],
        False,
    )
    yield "ended: cost", [*start(cost=0.5), *bash(1), *end("cost")], False
    yield "ended: time", [*start(time=600), *bash(1), *end("time")], False
    yield "ended: time, without a limit", [*start(time=None), *bash(1), *end("time")], False
    for name, of in (("", "20260101-120000-ffb91111"), (", of a name that is none", "\x1b[31m-<b>")):
        yield f"a replay{name}", [*replays(of), *bash(1), *end("steps")], False
    yield "a replay of a submission", [*replays("20-ffb9"), *bash(1), *end("submitted")], False
    yield "a replay that was stopped", [*replays("20-ffb9"), *control("stop"), *end("interrupted")], False
    yield (
        "a replay that was continued",
        [*replays("20-ffb9"), *bash(1), *end("steps"), ev.Continued(), *bash(2), *end("submitted")],
        False,
    )
    for kind in ("authentication", "quota", "rate_limit", "unreachable", "timeout", "of_a_later_version"):
        yield (
            f"ended: model error, {kind}",
            [*start(), *bash(1), *asked(2), failed(2, kind), *end("model_error", error="No.")],
            False,
        )
    yield "ended: model error, without a failure", [*start(), *asked(1), *end("model_error")], False
    yield (
        "ended: model error, of an earlier step",
        [*start(), *asked(1), failed(1, "quota", 1.0), *bash(1)[1:], *asked(2), *end("model_error")],
        False,
    )
    two = [*start(), *bash(1), *bash(2)]
    for name, live in (("", False), (", live", True)):
        yield f"rewound{name}", back(two, 1), live
    yield "rewound to the beginning", back(two, 0), False
    yield "rewound from the end", back([*two, *end("submitted")], 1), False
    yield "rewound, then a note", [*back(two, 1), ev.Noted(text="The disk is nearly full.")], False
    yield "rewound, then a checkpoint", [*back(two, 1), ev.Checkpointed(step=1, checkpoint="k")], False
    yield "rewound, then a file", [*back(two, 1), *saved(1, "a.txt")], False
    yield "rewound, then forked", [*back(two, 1), ev.Forked(run_id="f", folder="f", step=1)], False
    yield "rewound, then something was said", [*back(two, 1), *control("say")], False
    yield "rewound, then other limits", [*back(two, 1), ev.SettingsChanged(limits={"steps": 9})], False
    yield "rewound, then continued", [*back(two, 1), ev.Continued()], True
    yield "rewound, continued, and killed", [*back(two, 1), ev.Continued(), *asked(2)], False
    yield "rewound, and another step", [*back(two, 1), ev.Continued(), *bash(2, "cat b", call="d2")], True
    yield "rewound twice", back([*back(two, 1), ev.Continued(), *bash(2, "cat b", call="d2")], 0), False
    yield "rewound and undone", undone(back(two, 1)), False
    yield "rewound from the end and undone", undone(back([*two, *end("submitted")], 1)), False
    yield "rewound, only the conversation", back(two, 1, "conversation"), False
    yield "killed, then only the files go back", back(two, 1, "files", target="k"), False
    yield "ended, then only the files go back", back([*two, *end("submitted")], 1, "files", target="k"), False
    yield "rewound before a call", before_call(two), False
    yield "a rewind that did not happen", [*two, ev.RewindStarted(to="e1", step=0)], False
    yield "ended, then continued", [*two, *end("steps"), ev.Continued(), *asked(3)], True
    yield (
        "ended, continued and ended",
        [*two, *end("steps"), ev.Continued(), *bash(3), *end("answered")],
        False,
    )
    yield "the context was reduced", [*two, ev.ContextReduced(step=3, how="mask"), *asked(3)], True
    yield "it made other runs", [*two, *end("submitted"), ev.Forked(run_id="f", folder="f", step=1)], False
    yield (
        "a rollout with a reward",
        [*two, *end("submitted"), ev.Rewarded(training_step=3, group="g", reward=0.5)],
        False,
    )


def check(outcome: Any, summary: str = "pytest 12 passed", **more: Any) -> Events:
    verdict = ev.Verdict(outcome=outcome, summary=summary, **more)
    what = {"number": 1, "what": "pytest -q"}
    return [ev.CheckStarted(**what), ev.Checked(**what, verdict=verdict, output="12 passed in 0.1s\n")]


def checked(
    outcome: Any, summary: str = "pytest 12 passed", reason: str = "submitted", **more: Any
) -> Events:
    found = check(outcome, summary, **more)
    assert isinstance(found[-1], ev.Checked)
    submit = called(2, "submit", {}, said="Submitted.")
    return [
        *start(),
        *bash(1),
        *asked(2),
        *submit[:2],
        *found,
        submit[2],
        *end(reason, check=found[-1].verdict),
    ]


def checked_runs() -> Iterator[tuple[str, Events, bool]]:
    running = [*start(), *bash(1), *check("passed")[:1]]
    yield "a check runs", running, True
    yield "killed in a check", running, False
    yield "stopped in a check", [*running, *control("stop"), *end("interrupted")], False
    for outcome, summary in (
        ("passed", "pytest 12 passed"), ("failed", "pytest 1 failed, 11 passed"), ("score", "0.83"),
        ("text", "The map lacks a legend."), ("error", "No engine answers."),
    ):  # fmt: skip
        yield f"checked: {outcome}", checked(outcome, summary), False
        yield f"checked without protection: {outcome}", checked(outcome, summary, protected=False), False
    yield "a text, checked", checked("passed", reason="answered"), False
    nothing = checked("passed")
    nothing[-1] = nothing[-1].model_copy(update={"without_answer": True})
    yield "submitted with nothing, and the check passed", nothing, False
    yield "a replay, checked", [*replays("20-ffb9"), *checked("passed")[2:]], False
    again = [*checked("failed", "pytest 1 failed")[:-1], *asked(3)]
    yield "a check failed, and the model tries again", again, True
    yield "a check passed, then resumed", [*checked("passed"), ev.Continued(), *bash(3)], True
    yield (
        "a check passed, then resumed, not checked",
        [*checked("passed"), ev.Continued(), *end("submitted")],
        False,
    )
    yield "a check passed, then a limit", [*again, *check("passed"), *end("steps")], False
    yield "a check passed, then rewound", back(checked("passed"), 1), False
    yield "a check passed, rewound and undone", undone(back(checked("passed"), 1)), False
    yield "scored after its end", [*start(), *bash(1), *end("submitted"), *check("score", "0.5")], False
    yield (
        "passed after its end",
        [*start(), *bash(1), *end("submitted"), *check("passed", "exact")[1:]],
        False,
    )


def failed(
    step: int, kind: str, again: float | None = None, message: str = "It did not work."
) -> ev.ModelFailed:
    return ev.ModelFailed(step=step, attempt=1, error=kind, message=message, retry_in=again)


def before_call(events: Events) -> Events:
    """A rewind to where the calls of step 2 are proposed."""
    whole = numbered([*events, ev.Rewound(to="?", step=2)])
    place = next(event.id for event in whole if isinstance(event, ev.CallProposed) and event.step == 2)
    assert isinstance(whole[-1], ev.Rewound)
    whole[-1].to = place
    return whole


def forks() -> Iterator[tuple[str, Events, bool]]:
    two = [*start(), *bash(1), *bash(2)]
    yield "a fork that waits", forked(two), False
    yield "a fork of the beginning", forked(start()), False
    yield "a fork with its files", [*forked(two), ev.Checkpointed(step=2, checkpoint="k")], False
    yield "a fork that runs", [*forked(two), *asked(3)], True
    yield "a fork that was killed", [*forked(two), *asked(3)], False
    yield "a fork, another step, and back", back([*forked(two), *bash(3)], 2), False


def lines() -> Iterator[tuple[str, Events]]:
    """One step of every kind: name, events after the start."""
    yield "a command", bash(1)
    yield "a command after cd", bash(1, "cd /work/data && ls -l")
    yield "a command of several lines", bash(1, "\n\ncat <<END\nx\nEND\n")
    yield "a long command", bash(1, "echo " + "abc " * 100)
    yield "an emoji at the cut of a long command", bash(1, "echo " + "😀" * 200)
    yield "an empty command", bash(1, "")
    yield "a command that is no text", bash(1, 7)
    yield "exit 2 with errors", bash(1, exit_code=2, stderr="a\nFATAL: no such column\n\n")
    yield "exit 1 with output only", bash(1, exit_code=1, stdout="one\ntwo\n")
    yield "exit 1 without a word", bash(1, "false", exit_code=1, stdout="", said="Exit code: 1\n(no output)")
    yield (
        "a progress bar that failed",
        bash(1, exit_code=1, stdout="", stderr="10 %\r50 %\r100 % \x1b[31mred\x1b[0m\n"),
    )
    yield "a long last line", bash(1, exit_code=1, stderr="x" * 300)
    yield (
        "a large output",
        bash(1, exit_code=1, stdout=ev.Blob(sha256="0" * 64, size=9, preview="head\ntail\n")),
    )
    yield "timed out", bash(1, exit_code=None, timed_out=True, stdout="begun\n", said="Timed out after 5 s")
    yield (
        "timed out in silence",
        bash(1, exit_code=None, timed_out=True, stdout="", said="Timed out after 5 s"),
    )
    yield (
        "interrupted",
        bash(1, exit_code=None, error="interrupted", stdout="begun\n", said="Interrupted by the user"),
    )
    yield (
        "interrupted in silence",
        bash(1, exit_code=None, error="interrupted", stdout="", said="Interrupted"),
    )
    yield "an exit code of zero is no word", bash(1, duration=1.25)
    yield "two calls", [*bash(1), *called(1, "execute_bash", {"command": "pwd"}, call="d", exit_code=0)]
    three = [
        *bash(1),
        *(e for n in "de" for e in called(1, "execute_bash", {"command": n}, call=n, exit_code=0)),
    ]
    yield "three calls", three
    wrong = [
        e
        for n in "de"
        for e in called(1, "execute_bash", {"command": n}, call=n, exit_code=3, stderr=f"{n}!\n")
    ]
    yield "three calls that failed", [*bash(1, exit_code=1, stderr="a!\n"), *wrong]
    yield "a file that a command changed", bash(1, changes=[change("/work/data.csv")])
    yield (
        "a file that a command removed",
        bash(1, "rm old.txt", changes=[change("/work/old.txt", "deleted", None)]),
    )
    yield (
        "a file removed, with its lines",
        bash(1, "rm old.txt", changes=[change("/work/old.txt", "deleted", "--- a\n+++ b\n-x\n-y\n")]),
    )
    yield "a file without a diff", bash(1, changes=[change("/work/a.png", "added", None)])
    yield "a file elsewhere", bash(1, changes=[change("/tmp/a.txt", "added")])
    yield "three files", bash(1, changes=[change(f"/work/{name}.txt") for name in "abc"])
    yield (
        "an installation",
        bash(1, "pip install x", changes=[change(f"/lib/{n}.py", "added", None) for n in range(130)]),
    )
    yield (
        "a file that was saved",
        [*bash(1, changes=[change("/work/out/map.png", "added", None)]), *saved(1, "map.png")],
    )
    yield (
        "saved and changed",
        [*bash(1, changes=[change("/work/out/map.png"), change("/work/b.txt")]), *saved(1, "map.png")],
    )
    yield "three saved files", [*bash(1), *saved(1, "a"), *saved(1, "sub/b"), *saved(1, "c")]
    yield "a file that was saved twice", [*bash(1), *saved(1, "a"), *saved(1, "a")]
    yield "a name that turns letters round", bash(1, changes=[change("/work/a\u202egpj.exe", "added", None)])
    create = {"command": "create", "path": "/work/a.py", "file_text": "import os\nprint(1)\n"}
    yield (
        "a new file",
        edit(
            1,
            create,
            said="made",
            changes=[change("/work/a.py", "added", "--- a\n+++ b\n+import os\n+print(1)\n")],
        ),
    )
    replace = {"command": "str_replace", "path": "/work/a.py", "old_str": "x\ny", "new_str": "z"}
    yield "an edit", edit(1, replace, said="done", changes=[change("/work/a.py")])
    yield "an edit that nothing tells of", edit(1, replace, said="done")
    yield "an edit that runs", [*reply(1), *proposed(1, "str_replace_editor", replace)]
    yield (
        "an edit that was refused",
        edit(1, replace, said="Error: old_str is not in /work/a.py.", error="editor"),
    )
    yield "a file that is looked at", edit(1, {"command": "view", "path": "/work/a.py"}, said="1 import os")
    yield "an edit elsewhere", edit(1, {**create, "path": "/etc/motd"}, said="made")
    yield (
        "an edit without a path",
        edit(1, {"command": "create"}, said="Error: path is missing", error="bad_arguments"),
    )
    yield (
        "an edit of a file that was saved",
        [*edit(1, replace, changes=[change("/work/out/a.py")]), *saved(1, "a.py")],
    )
    yield (
        "an edit, and another file was saved",
        [*edit(1, replace, changes=[change("/work/a.py")]), *saved(1, "b.py")],
    )
    second = called(
        1, "str_replace_editor", {**replace, "path": "/work/b.py"}, call="d", changes=[change("/work/b.py")]
    )
    yield "two edits", [*edit(1, replace, changes=[change("/work/a.py")]), *second]
    yield "a command, then an edit", [*bash(1), *second]
    yield "an own tool", own(1, "weather", {"city": "Oslo", "days": 3})
    yield "an own tool without arguments", own(1, "now", {})
    values = {"a": True, "b": None, "c": 1.5, "d": 2.0, "e": [1, "x"], "f": {"g": "h"}, "i": "l1\nl2"}
    yield "an own tool with all kinds of arguments", own(1, "mix", values)
    yield "an own tool with many arguments", own(1, "many", {f"n{n}": n for n in range(12)})
    yield "an own tool with a long argument", own(1, "long", {"text": "word " * 90})
    yield (
        "an own tool that failed",
        own(1, "weather", {"city": "?"}, said="Error: no such city", error="failed"),
    )
    yield (
        "an own tool that failed without a reason",
        own(1, "weather", {"city": "?"}, said="", error="failed"),
    )
    yield (
        "an own tool that runs",
        [*reply(1), *proposed(1, "weather", {"city": "Oslo"}), *started(1, "weather", {"city": "Oslo"})],
    )
    unknown = "Error: There is no tool 'fly': the tools are execute_bash, submit."
    yield (
        "an unknown tool",
        [*reply(1), *proposed(1, "fly", {"to": "Rome"}), *result(1, unknown, error="unknown_tool")],
    )
    yield (
        "an unknown tool without a reason",
        [*reply(1), *proposed(1, "fly", {}), *result(1, "", error="unknown_tool")],
    )
    yield (
        "arguments that are no JSON",
        [
            *reply(1),
            *proposed(1, "fly", None, raw='{"to": '),
            *result(1, "Error: no JSON", error="malformed_json"),
        ],
    )
    yield (
        "a call that was cut off",
        [
            *reply(1),
            *proposed(1, "execute_bash", None, raw='{"comm'),
            *result(1, "Error: cut", error="cut_off"),
        ],
    )
    yield "a tool that is called like what every object has", own(1, "constructor", {"__proto__x": "y"})
    footer = "\n\n[Steps remaining: 7]"
    tail = f"Error: [Steps remaining: 5]\nthe answer is 42{footer}"
    yield "a result that looks like a footer", own(1, "weather", {}, said=tail, after=footer, error="failed")
    note = "[A person changed this call before it was executed.]\n\n"
    yield (
        "edited by a person",
        [
            *reply(1),
            *proposed(1, "execute_bash", {"command": "rm -r ."}),
            *decided(1, "edit", tool="execute_bash", arguments={"command": "ls"}),
            *started(1, "execute_bash", {"command": "ls"}),
            *result(1, f"{note}Exit code: 0{footer}", before=note, after=footer, exit_code=0),
        ],
    )
    yield (
        "denied by a person",
        [
            *reply(1),
            *proposed(1, "execute_bash", {"command": "rm -r ."}),
            *decided(1, "skip", observation="No."),
            *result(1, "No.", error="skipped"),
        ],
    )
    for source, who in (("nobody", "nobody could approve"), ("mcp", "the agent withdrew")):
        yield (
            f"a call that {who}",
            [
                *reply(1),
                *proposed(1, "s__echo", {"text": "one"}),
                *decided(1, "skip", observation="Not called.", source=source),
                *result(1, "Not called.", error="skipped"),
            ],
        )
    yield (
        "one denied and one failed",
        [
            *reply(1),
            *proposed(1, "execute_bash", {"command": "rm -r ."}),
            *decided(1, "skip", observation="No."),
            *result(1, "No.", error="skipped"),
            *called(1, "execute_bash", {"command": "x"}, call="d", exit_code=127, stderr="x: not found\n"),
        ],
    )
    yield "a result that a person changed", [*bash(1), *decided(1, "observe", observation="nothing")]
    yield (
        "changed before and after",
        [
            *reply(1),
            *proposed(1, "execute_bash", {"command": "a"}),
            *decided(1, "edit", tool="execute_bash", arguments={"command": "b"}),
            *started(1, "execute_bash", {"command": "b"}),
            *result(1, "b", exit_code=0),
            *decided(1, "observe", observation="c"),
        ],
    )
    yield (
        "allowed by a person",
        [
            *reply(1),
            *proposed(1, "execute_bash", {"command": "a"}),
            *decided(1, "run"),
            *started(1, "execute_bash", {"command": "a"}),
            *result(1, "a", exit_code=0),
        ],
    )
    yield "the end", [*reply(1, "Done."), *called(1, "submit", {}, said="Submitted.")]
    refused = "Not accepted yet: a check of your result failed.\n\nE   assert 41 == 42\n1 failed in 0.1s"
    yield "a check failed", [*reply(1, "Done."), *called(1, "submit", {}, said=refused, error="check_failed")]
    yield (
        "the end in another program",
        [*reply(1, "Done."), *called(1, "finish", {"message": "x"}, said="ok")],
    )
    yield (
        "an end that is not accepted yet",
        [*reply(1), *proposed(1, "submit", {}), *result(1, "Nothing is saved.", error="nothing_saved")],
    )
    yield "asked again", [*asked(1), failed(1, "rate_limit", 2.0), *bash(1)[1:]]
    yield "asked again for another reason", [*asked(1), failed(1, "odd", 2.0, "Try\nlater"), *bash(1)[1:]]
    for how in ("mask", "summary", "repeats"):
        reduced = ev.ContextReduced(step=2, how=how)
        yield f"the context was reduced: {how}", [*bash(1), reduced, *bash(2), *bash(3)]
    refused = failed(2, "context", 0.1)
    reduced = ev.ContextReduced(step=2, how="mask")
    yield "reduced after a refused request", [*bash(1), *asked(2), refused, reduced, *bash(2)]
    yield "no reply at all", [*asked(1), failed(1, "authentication"), *end("model_error", error="No key.")]
    yield "a reply that never came", asked(1)
    yield "only thoughts", reply(1, "", reasoning="**Hm.** I think about it. Then more.")
    yield "nothing said", reply(1, "")
    yield "a heading and a list", reply(1, "# The plan\n\n- first\n- then")
    yield "marks only", reply(1, "---\n***\n\n1. Read the file: it is long. Then write.")
    yield "a long sentence", reply(1, "word " * 60)
    yield "letters of many scripts", reply(1, "Ångström naïve 数える。 Ну вот! And more.")
    yield "terminal codes in words", reply(1, "\x1b[1mBold\x1b[0m words. More.")
    yield (
        "content in parts",
        [
            *asked(1),
            ev.ModelReplied(
                step=1, message={"role": "assistant", "content": [{"type": "text", "text": "In parts."}]}
            ),
        ],
    )
    yield (
        "no figures",
        [*reply(1, usage=None, model_time=0.0), *called(1, "execute_bash", {"command": "ls"}, exit_code=0)],
    )
    yield (
        "many tokens",
        reply(1, usage=ev.Usage(prompt_tokens=1_200_000, completion_tokens=34, cost=None), model_time=75.0),
    )
    yield "tokens while it runs", [*reply(1), *proposed(1, "execute_bash", {"command": "ls"})]
    yield (
        "a call written as text",
        [
            *reply(1, calls_from="text", raw_text="```bash\nls\n```"),
            *called(1, "execute_bash", {"command": "ls"}, exit_code=0),
        ],
    )
    yield (
        "a reply without a call, and its answer",
        [
            *reply(1, "It is 3."),
            ev.MessageAdded(message={"role": "user", "content": "Call submit."}),
            *bash(2),
        ],
    )
    yield (
        "saved while the next step began",
        [
            *bash(1),
            *reply(2),
            *saved(1, "late.txt"),
            *called(2, "execute_bash", {"command": "pwd"}, exit_code=0),
        ],
    )
    yield "saved after the next step began", [*bash(1), *bash(2), *saved(1, "later.txt"), *bash(3)]


def long_runs() -> Iterator[tuple[str, Events, bool]]:
    """Runs that do not fit a screen, and what of them is calm."""

    def many(*kinds: str) -> Events:
        made = [step for number, kind in enumerate(kinds, 1) for step in one(number, kind)]
        return [*start(), *made]

    def one(step: int, kind: str) -> Events:
        match kind:
            case "change":
                return bash(step, f"touch f{step}", changes=[change(f"/work/src/f{step}.py", "added")])
            case "edit":
                return edit(
                    step, {"command": "create", "path": f"/work/e{step}.md", "file_text": "a\n"}, said="ok"
                )
            case "fails":
                return bash(step, "make", exit_code=2, stdout="", stderr="no rule\n", said="Exit code: 2")
            case "fails so":
                return bash(step, "make", exit_code=2, stdout="", stderr=f"no {step}\n", said="Exit code: 2")
            case "saves":
                return [*bash(step, "draw"), *saved(step, f"plot{step}.png")]
            case "denied":
                return [*bash(step, "rm a"), *decided(step, "skip", text="No.")]
            case "reduces":
                return [ev.ContextReduced(step=step, how="mask"), *bash(step)]
            case "asks again":
                failed = ev.ModelFailed(
                    step=step, attempt=1, error="rate_limit", message="Slowly.", retry_in=1.0
                )
                return [*asked(step), failed, *bash(step)[1:]]
            case "submits":
                return [*reply(step), *called(step, "submit", {}, said="")]
        return bash(step, f"cat part{step}.txt")

    yield "reads of a run that fits a screen", many(*["read"] * 11, "submits"), False
    yield "reads, and the end", many(*["read"] * 29, "submits"), False
    yield "reads of a long run that runs", many(*["read"] * 29), True
    yield "reads around a failure", many(*["read"] * 20, "fails", *["read"] * 20, "submits"), False
    yield "the same failure again and again", many("read", *["fails"] * 28, "submits"), False
    yield "other failures of the same command", many("read", *["fails so"] * 13, "submits"), False
    doubt = ev.Doubt(rule="data-lost", step=14, text="work.csv lost 161 of 361 lines", severity="high")
    yield (
        "a step with a doubt stands alone",
        [*many(*["read"] * 29, "submits"), ev.DoubtsFound(doubts=[doubt], final=True)],
        False,
    )
    yield "two reads are no fold", many(*["read", "read", "fails so"] * 5, "submits"), False
    yield (
        "reads alone are folded where the rest fits",
        many("change", "edit", *["read"] * 12, "saves", "submits"),
        False,
    )
    yield "changes are folded where it does not", many(*["read", "change", "edit"] * 20, "submits"), False
    yield (
        "saved files stay where the rest fits",
        many(*(["read"] * 3 + ["change"]) * 6, "saves", "edit", "submits"),
        False,
    )
    yield "many files", many(*["change", "saves"] * 10, "denied", *["edit"] * 4, "submits"), False
    yield (
        "a person and a second request",
        many(*["read"] * 5, "denied", *["read"] * 5, "asks again", *["read"] * 5),
        False,
    )
    yield "a shorter context", many(*["read"] * 8, "reduces", *["read"] * 8, "submits"), False
    yield (
        "sixty steps and one failure",
        many(*(["read"] * 4 + ["change"]) * 6, "fails", *["read", "edit", "read"] * 10, "submits"),
        False,
    )


def recorded() -> Iterator[tuple[str, Events]]:
    for path in sorted((FOLDER / "journals").glob("*/*/journal.jsonl")):
        yield f"recorded: {path.parent.parent.name}, {path.parent.name[-6:]}", list(read_journal(path))


def facts(trajectory: Trajectory, *, live: bool) -> dict[str, Any]:
    state = trajectory.state(live=live)
    running = live and trajectory.finish is None
    last = trajectory.steps[-1:] if running else []
    found = [step_line(step, trajectory.root, running=step in last) for step in trajectory.steps]
    return {
        **state.to_json(),
        "held": trajectory.status.held.call_id if trajectory.status.held and live else None,
        "paused": trajectory.paused,
        "ready_at": trajectory.ready_at,
        "steps": [step.number for step in trajectory.steps],
        "branches": [[branch.step, branch.steps, branch.head] for branch in trajectory.branches],
        "lines": [line.model_dump(exclude_defaults=True) for line in found],
        "calm": [
            [row.numbers, row.words, row.figures]
            for row in step_rows(trajectory, live=live)
            if isinstance(row, CalmSteps)
        ],
    }


def rows() -> Iterator[dict[str, Any]]:
    named = [*states(), *long_runs(), *((name, [*start(), *events], False) for name, events in lines())]
    named += [(name, events, False) for name, events in recorded()]
    named += forks()  # last, because tests/format_table.py reads every second row
    for name, events, live in named:
        events = events if name.startswith("recorded") else numbered(events)
        kept = [
            {"kind": event.kind, **event.model_dump(mode="json", exclude_defaults=True)} for event in events
        ]
        read = [ev.parse_python(event) for event in kept]
        yield {"name": name, "live": live, "events": kept, "facts": facts(Trajectory(read), live=live)}


def main() -> int:
    made = list(rows())
    names = [row["name"] for row in made]
    assert len(set(names)) == len(names), "each row has its own name"
    text = ",\n".join(json.dumps(row, ensure_ascii=True, separators=(",", ":")) for row in made)
    (FOLDER / "runs.json").write_text(f"[\n{text}\n]\n", "utf-8")
    print(f"{len(made)} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
