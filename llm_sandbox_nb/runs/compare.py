"""Comparison of runs: their steps side by side, their tokens, cost and time, and their final files."""

from __future__ import annotations

from collections.abc import Sequence

from llm_sandbox_nb.agent.errors import InputError
from llm_sandbox_nb.agent.run_record import RunRecord
from llm_sandbox_nb.runs.aligned_steps import align
from llm_sandbox_nb.runs.comparison_data import ComparedRuns, R, Totals
from llm_sandbox_nb.runs.comparison_drawing import as_html, as_text
from llm_sandbox_nb.runs.end_files import EndFiles
from llm_sandbox_nb.runs.event_loops import AwaitableResult
from llm_sandbox_nb.sandbox.errors import HistoryError


class Comparison(ComparedRuns[R], AwaitableResult):
    """The result of `run.compare`. A notebook shows the result as a table.

    >>> comparison.divergence, comparison.diff("/testbed/answer.txt")
    """

    def __str__(self) -> str:
        return as_text(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return as_html(self)


def compare_runs(runs: Sequence[R], names: Sequence[str] = ()) -> Comparison[R]:
    """Compare runs. `names` has a name for each run in the result, by default its number and folder name.

    Raises:
        InputError: if there are fewer than two runs.
    """
    if len(runs) < 2:
        raise InputError("There is only one attempt: name another run to compare this run with.")
    rows = align([[step for step in run.steps if step.replied] for run in runs])
    named = names or [f"{number}: {run.folder.name}" for number, run in enumerate(runs, 1)]
    totals = [_totals(run, name) for run, name in zip(runs, named, strict=True)]
    made = Comparison(list(runs), rows, totals)
    try:
        made._files = [EndFiles(run, run.trajectory.files) for run in runs]
    except HistoryError as error:
        made.note = f"The files are not compared: {error}"
        return made
    made.files = EndFiles.differing(made._files)
    made.others = tuple(sorted(set().union(*(end.others for end in made._files))))
    return made


def _totals(run: RunRecord, name: str) -> Totals:
    results = [call.result for step in run.steps for call in step.calls if call.result]
    return Totals(
        name=name,
        steps=run.trajectory.steps_done,
        stop_reason=run.stop_reason,
        state=run.trajectory.state(live=False).words if run.trajectory.finish else "No end",
        answer=run.answer,
        usage=run.usage,
        model_time=sum(step.model_time for step in run.steps),
        tool_time=sum(result.duration for result in results),
        scripted=run.trajectory.scripted,
    )
