"""docs/reference/formats.md's table: what each format keeps of a run, measured on the runs of tests/data/make_runs.py.

    PYTHONPATH=tests python tests/format_table.py

writes it anew; a test compares. *yes*: it comes back from the format's own fields, in every run. *extra*: it comes back
from the field that the format has for other programs' data. *no*: it is lost in at least one run.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from support import module_at

from llm_sandbox_nb.formats import inspect_log, llm_in_sandbox
from llm_sandbox_nb.formats.entries import REST, entries_of, events_of
from llm_sandbox_nb.formats.records import FORMATS, branches_of, document
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.messages import message_text
from llm_sandbox_nb.trajectory.trajectory import Call, Trajectory

make_runs = module_at(Path(__file__).parent / "data" / "make_runs.py")
PAGE = Path(__file__).parents[1] / "docs" / "reference" / "formats.md"
BEGIN, END = "<!-- table_formats: begin -->", "<!-- table_formats: end -->"
COLUMNS = ["atif", "mini-swe-agent", "inspect", "anthropic", "openai", "llm-in-sandbox"]
_TABLE = re.compile(f"{BEGIN}.*{END}", re.DOTALL)


def calls(run: Trajectory) -> list[Call]:
    return [call for step in run.steps for call in step.calls]


def results(run: Trajectory) -> list[ev.CallFinished]:
    return [call.result for call in calls(run) if call.result]


def of_kinds(run: Trajectory, *kinds: type) -> list[Any]:
    """What events of these kinds say, without their places."""
    found = [event for event in run.path if isinstance(event, kinds)]
    return [event.model_dump(exclude={"id", "parent", "time"}) for event in found]


FACTS: dict[str, Callable[[Trajectory], Any]] = {
    "the task": lambda run: run.start and run.start.task,
    "the model": lambda run: run.start and run.start.model,
    "tools that were offered": lambda run: run.start and run.start.tools,
    "settings, versions, inputs": lambda run: (
        run.start and (run.start.settings, run.start.versions, run.start.inputs)
    ),
    "system and user messages": lambda run: [
        (one.message.get("role"), message_text(one.message))
        for one in run.path
        if isinstance(one, ev.MessageAdded)
    ],
    "replies": lambda run: [step.thought for step in run.steps if step.replied],
    "reasoning": lambda run: [step.reasoning for step in run.steps if step.replied],
    "several calls of a reply": lambda run: [
        (one.step, one.tool, one.arguments or None) for one in run.path if isinstance(one, ev.CallProposed)
    ],
    "calls as they were executed": lambda run: of_kinds(run, ev.CallStarted),
    "arguments that are not a JSON object": lambda run: [
        call.raw_arguments for call in calls(run) if call.arguments is None
    ],
    "results as the model saw them": lambda run: [call.output for call in calls(run)],
    "exit codes": lambda run: [one.exit_code for one in results(run)],
    "stdout and stderr apart": lambda run: [(one.stdout, one.stderr, one.background) for one in results(run)],
    "time-outs and errors of calls": lambda run: [(one.timed_out, one.error) for one in results(run)],
    "files that calls changed": lambda run: [one.changes for one in results(run)],
    "files that the model left": lambda run: of_kinds(run, ev.ArtifactSaved, ev.ArtifactRemoved),
    "checkpoints": lambda run: of_kinds(run, ev.Checkpointed),
    "what a person decided and said": lambda run: of_kinds(run, ev.CallHeld, ev.CallDecided, ev.Controlled),
    "changes of model and settings": lambda run: of_kinds(run, ev.SettingsChanged),
    "requests that failed": lambda run: of_kinds(run, ev.ModelFailed),
    "connections, notes, doubts": lambda run: of_kinds(run, ev.ConnectionMade, ev.Noted, ev.DoubtsFound),
    "tokens": lambda run: [step.usage and step.usage.total_tokens for step in run.steps if step.replied],
    "cost": lambda run: [step.usage and step.usage.cost for step in run.steps if step.replied],
    "times of events": lambda run: [event.time for event in run.path if not isinstance(event, ev.StepFacts)],
    "seconds of model and calls": lambda run: [
        *(step.model_time for step in run.steps if step.replied),
        *(one.duration for one in results(run)),
    ],
    "why the run ended": lambda run: run.stop_reason,
    "the answer": lambda run: run.answer,
    "checks and scores": lambda run: of_kinds(run, ev.Checked, ev.CheckStarted),
    "ids of events": lambda run: [event.id for event in run.path if not isinstance(event, ev.StepFacts)],
    "branches": lambda run: [(one.step, one.steps, one.head) for one in run.branches],
}


IN_TEXT = "calls that a model wrote in its text"
FACTS[IN_TEXT] = lambda run: [
    FACTS[name](run) for name in ("several calls of a reply", "results as the model saw them")
]


def wrote_calls(run: Trajectory) -> bool:
    return any(isinstance(event, ev.ModelReplied) and event.calls_from for event in run.path)


@cache
def runs() -> list[Trajectory]:
    """The runs of the table that a loop could have recorded, and in which something was said."""
    found = []
    for row in make_runs.rows():
        events = [inline(ev.parse_python(event)) for event in row["events"]]
        replied = {event.step for event in events if isinstance(event, ev.ModelReplied)}
        proposed = {event.step for event in events if isinstance(event, ev.CallProposed)}
        run = Trajectory(map(with_calls(events), events))
        if proposed <= replied and any(
            isinstance(event, ev.MessageAdded | ev.ModelReplied) for event in run.path
        ):
            found.append(run)
    return found


def inline(event: ev.Event) -> ev.Event:
    """The event with the beginnings of its outputs in place of other files; replies cost something."""
    if isinstance(event, ev.ModelReplied) and event.usage:
        event = event.model_copy(update={"usage": event.usage.model_copy(update={"cost": 0.25})})
    blobs = {name: value.preview for name, value in event if isinstance(value, ev.Blob)}
    return event.model_copy(update=blobs)


def with_calls(events: list[ev.Event]) -> Callable[[ev.Event], ev.Event]:
    """Gives messages the calls that were proposed after them, as servers send them; the rows leave these out."""
    following: dict[str, list[dict[str, Any]]] = {}
    last = ""
    for event in events:
        if isinstance(event, ev.ModelReplied):
            last = event.id
        elif isinstance(event, ev.CallProposed):
            function = {"name": event.tool, "arguments": event.raw_arguments}
            call = {"id": event.call_id, "type": "function", "function": function}
            following.setdefault(last, []).append(call)

    def completed(event: ev.Event) -> ev.Event:
        if not isinstance(event, ev.ModelReplied) or event.calls_from or event.id not in following:
            return event
        return event.model_copy(update={"message": {**event.message, "tool_calls": following[event.id]}})

    return completed


def without_rest(content: Any) -> Any:
    """The document without what the format has no own field for."""
    if isinstance(content, list):
        return [without_rest(one) for one in content]
    if isinstance(content, dict):
        return {key: without_rest(one) for key, one in content.items() if key != REST}
    return content


def copies(run: Trajectory, form: str) -> Iterator[tuple[Trajectory, Trajectory, Trajectory]]:
    """For each document of a run: what it is of, what is read from it, and what is read from its own fields."""
    if form == "inspect":
        content = json.loads(json.dumps(inspect_log.log_content(branches_of(run))))
        model = content["eval"]["model"]

        def read_log(log: Any) -> Trajectory:
            return Trajectory(inspect_log.sample_events(log["samples"][0], model, "x"))

        yield run, read_log(content), read_log(without_rest(content))
        return
    for branch in branches_of(run):
        if form == "llm-in-sandbox":
            read = llm_in_sandbox.from_seed(llm_in_sandbox.to_seed(branch), "x")
            yield branch, read, read
            continue
        its = FORMATS[form]
        assert its.read is not None
        content = json.loads(json.dumps(document(its, entries_of(branch))))
        own = without_rest(copy.deepcopy(content))
        yield (
            branch,
            Trajectory(events_of(its.read(content), "x")),
            Trajectory(events_of(its.read(own), "x")),
        )


@cache
def measured(form: str) -> dict[str, str]:
    """Facts that a format keeps."""
    found = dict.fromkeys(FACTS, "yes")
    for run in runs():
        for of, read, own in copies(run, form):
            for name, fact in FACTS.items():
                if wrote_calls(of) != (name == IN_TEXT):
                    continue
                if found[name] == "yes" and fact(own) != fact(of):
                    found[name] = "extra"
                if fact(read) != fact(of):
                    found[name] = "no"
    if form not in ("inspect",):
        found["branches"] = "a file each"
    return found


def table() -> str:
    titles = [FORMATS[name].title for name in COLUMNS]
    lines = [f"| of a run | {' | '.join(titles)} |", "|---|" + "---|" * len(titles)]
    lines += [f"| {fact} | {' | '.join(measured(name)[fact] for name in COLUMNS)} |" for fact in FACTS]
    return "\n".join(lines)


def filled(page: str) -> str:
    return _TABLE.sub(lambda _: f"{BEGIN}\n{table()}\n\n{END}", page)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text("utf-8")), "utf-8")
