"""Tables with a row for each run, turn, or group of runs. This module needs pandas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from llm_sandbox_nb.analysis.behaviour import behaviour_of, plain_output, succeeded, writing_of
from llm_sandbox_nb.analysis.capability_rules import CAPABILITIES
from llm_sandbox_nb.analysis.load import Loaded
from llm_sandbox_nb.analysis.usage import Times, throughput, times_of, tokens_of
from llm_sandbox_nb.trajectory.doubts.rules import doubts_of
from llm_sandbox_nb.trajectory.state import state_words

if TYPE_CHECKING:
    import pandas

RUN_COLUMNS = [
    "group", "run", "task", "model", "form", "stop_reason", "turns", "calls", "failed_calls",
    *(f"{name}_rate" for name in CAPABILITIES), *(f"{name}_succeeded_rate" for name in CAPABILITIES),
    "barren_share", "wanders", "prompt_tokens", "model_tokens", "environment_tokens", "tokens_once",
    "environment_share", "billed_input", "billed_output", "tokens_billed", "billed_environment_share", "cached_tokens",
    "tokens_estimated", "cost", "model_time", "tool_time", "wall_time", "tool_share", "start", "verification",
    "structure", "observation_characters", "doubts", "first_doubt",
]  # fmt: skip
TURN_COLUMNS = [
    "group", "run", "turn", "tools", *CAPABILITIES, *(f"{name}_succeeded" for name in CAPABILITIES), "barren",
    "prompt_tokens", "completion_tokens", "model_time",
]  # fmt: skip
TOOL_COLUMNS = ["group", "tool", "calls", "share"]


def run_row(run: Loaded) -> dict[str, Any]:
    """Return all measures of a run. The keys are the names in `RUN_COLUMNS`."""
    trajectory = run.trajectory
    behaviour, tokens = behaviour_of(trajectory), tokens_of(trajectory)
    times = times_of(trajectory, foreign=run.form != "journal")
    steps = [step for step in trajectory.steps if step.replied]
    writing = [writing_of(step.thought) for step in steps]
    calls = [call for step in steps for call in step.calls]
    row = {
        "group": run.group,
        "run": run.name,
        "task": trajectory.start.task if trajectory.start else "",
        "model": trajectory.start.model if trajectory.start else "",
        "form": run.form,
        "stop_reason": trajectory.stop_reason,
        "turns": len(behaviour.turns),
        "calls": len(calls),
        "failed_calls": sum(succeeded(call) is False for call in calls),
        "barren_share": behaviour.barren_share,
        "wanders": behaviour.wanders,
        "prompt_tokens": tokens.prompt,
        "model_tokens": tokens.model,
        "environment_tokens": tokens.environment,
        "tokens_once": tokens.once,
        "environment_share": tokens.environment_share,
        "billed_input": tokens.billed_input,
        "billed_output": tokens.billed_output,
        "tokens_billed": tokens.billed,
        "billed_environment_share": tokens.billed_environment_share,
        "cached_tokens": tokens.cached,
        "tokens_estimated": tokens.estimated,
        "cost": tokens.cost,
        "model_time": times.model,
        "tool_time": times.tools,
        "wall_time": times.wall,
        "tool_share": times.tool_share,
        "start": times.start,
        "verification": sum(counts.verification for counts in writing),
        "structure": sum(counts.structure for counts in writing),
        "observation_characters": sum(len(plain_output(call)) for call in calls),
        "doubts": len(doubts := doubts_of(trajectory)),
        "first_doubt": doubts[0].line if doubts else "",
    }
    for name in CAPABILITIES:
        row[f"{name}_rate"] = behaviour.rate(name)
        row[f"{name}_succeeded_rate"] = behaviour.rate(name, only_succeeded=True)
    return row


def turn_rows(run: Loaded) -> list[dict[str, Any]]:
    """Return a row for each turn of a run."""
    steps = {step.number: step for step in run.trajectory.steps}
    rows = []
    for turn in behaviour_of(run.trajectory).turns:
        usage = steps[turn.number].usage
        row: dict[str, Any] = {
            "group": run.group,
            "run": run.name,
            "turn": turn.number,
            "tools": " ".join(turn.tools),
            "barren": turn.why,
            "prompt_tokens": usage.prompt_tokens if usage else None,
            "completion_tokens": usage.completion_tokens if usage else None,
            "model_time": steps[turn.number].model_time,
        }
        for name in CAPABILITIES:
            row[name] = name in turn.attempted
            row[f"{name}_succeeded"] = name in turn.succeeded
        rows.append(row)
    return rows


def runs_frame(runs: Iterable[Loaded]) -> pandas.DataFrame:
    """Return a table with a row for each run."""
    return _pandas_frame([run_row(run) for run in runs], columns=RUN_COLUMNS)


def turns_frame(runs: Iterable[Loaded]) -> pandas.DataFrame:
    """Return a table with a row for each turn of all runs."""
    return _pandas_frame([row for run in runs for row in turn_rows(run)], columns=TURN_COLUMNS)


def tools_frame(runs: Iterable[Loaded]) -> pandas.DataFrame:
    """Return a table with a row for each tool in each group of runs.

    A row has the number of the tool's calls in the group, and the share of these calls in all calls of the group.
    """
    counts: dict[tuple[str, str], int] = {}
    for run in runs:
        for tool, number in behaviour_of(run.trajectory).tool_mix.items():
            counts[run.group, tool] = counts.get((run.group, tool), 0) + number
    totals: dict[str, int] = {}
    for (group, _), number in counts.items():
        totals[group] = totals.get(group, 0) + number
    rows = [(group, tool, number, number / totals[group]) for (group, tool), number in sorted(counts.items())]
    return _pandas_frame(rows, columns=TOOL_COLUMNS)


def groups_frame(runs_table: pandas.DataFrame) -> pandas.DataFrame:
    """Return a table with a row for each group of runs.

    The columns `*_rate` and `barren_share` are shares of all turns of the group. `environment_share` is a share of the
    tokens of all runs of the group. `tool_share` is a share of the seconds of the runs whose times are known.
    """
    rows = [_group_row(str(name), part) for name, part in runs_table.groupby("group", sort=True)]
    return _pandas_frame(rows)


def _group_row(name: str, part: pandas.DataFrame) -> dict[str, Any]:
    turns = float(part["turns"].sum())
    timed = part[part["wall_time"].notna() & part["tool_time"].notna()]
    done = throughput(
        Times(0.0, 0.0, float(wall), float(start))
        for wall, start in zip(timed["wall_time"].tolist(), timed["start"].tolist(), strict=True)
    )
    row: dict[str, Any] = {"group": name, "runs": len(part), "turns_mean": turns / len(part)}
    row |= {
        "foreign_runs": int((part["form"] != "journal").sum()),
        "ended": _endings(part["stop_reason"].tolist()),
    }
    for kind in ("", "_succeeded"):
        for capability in CAPABILITIES:
            column = f"{capability}{kind}_rate"
            row[column] = float((part[column] * part["turns"]).sum()) / turns if turns else 0.0
    row |= {
        "wandering_runs": int(part["wanders"].sum()),
        "barren_share": float((part["barren_share"] * part["turns"]).sum()) / turns if turns else 0.0,
        "prompt_tokens_mean": float(part["prompt_tokens"].mean()),
        "model_tokens_mean": float(part["model_tokens"].mean()),
        "environment_tokens_mean": float(part["environment_tokens"].mean()),
        "tokens_once_mean": float(part["tokens_once"].mean()),
        "tokens_billed_mean": float(part["tokens_billed"].mean()),
        "environment_share": _ratio(part["environment_tokens"].sum(), part["tokens_once"].sum()),
        "tool_share": _ratio(timed["tool_time"].sum(), timed["wall_time"].sum()),
        "runs_per_minute": done.per_minute if done else None,
        "concurrency": done.concurrency if done else None,
        "verification_mean": float(part["verification"].mean()),
        "structure_mean": float(part["structure"].mean()),
    }
    return row


def _endings(reasons: Iterable[object]) -> str:
    """Return the ends of runs with their counts, most frequent first: "Submitted 3, Step limit reached 1"."""
    words = (state_words(reason) if isinstance(reason, str) else "No end" for reason in reasons)
    return ", ".join(f"{state} {number}" for state, number in Counter(words).most_common())


def _ratio(part: float, whole: float) -> float | None:
    return float(part) / float(whole) if whole else None


def _pandas_frame(rows: Any, columns: list[str] | None = None) -> pandas.DataFrame:
    try:
        import pandas
    except ImportError as error:
        raise ImportError(
            "The analysis needs pandas: run `pip install 'llm-sandbox-nb[benchmark]'`."
        ) from error
    return pandas.DataFrame(rows, columns=columns)
