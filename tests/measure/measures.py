"""What is measured of a row besides its score, as one JSON line: steps, tokens, calls, capabilities, doubts, time."""

from __future__ import annotations

import json
import resource
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from llm_sandbox_nb.analysis.capability_rules import call_uses
from llm_sandbox_nb.benchmark.results import Result
from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.trajectory.doubts.rules import doubts_of
from measure.peers_backend import RECORD

FILE = "measures.jsonl"
_REFUSED = ("malformed_json", "bad_arguments", "unknown_tool", "cut_off")
"""The kinds of failures of a call that could not be executed as it was written."""
MAX_ANSWER = 200
"""Characters of an answer that are published: its end, where the result is."""


@dataclass
class Clock:
    """CPU seconds of the agent (this process and those it waited for) and of the model server, for each item.

    Items that are measured at the same time share what is used in equal parts.
    """

    server: int | None = None
    """Process id of the server; None if the server was started by another program."""
    _used: dict[Any, tuple[float, float | None]] = field(default_factory=dict)
    _last: tuple[float, float | None] = (0.0, None)

    def start(self, key: Any) -> None:
        self._share()
        self._used[key] = (0.0, None if self._last[1] is None else 0.0)

    def stop(self, key: Any) -> tuple[float, float | None]:
        """Return the seconds used for an item since `start`."""
        self._share()
        return self._used.pop(key, (0.0, None))

    def _share(self) -> None:
        """Add the seconds used since the last call to the items that are being measured."""
        (agent, server), self._last = self._last, self._now()
        number = len(self._used)
        for key, (of_agent, of_server) in self._used.items():
            known = None not in (of_server, server, self._last[1])
            self._used[key] = (
                of_agent + (self._last[0] - agent) / number,
                (of_server or 0.0) + ((self._last[1] or 0.0) - (server or 0.0)) / number if known else None,
            )

    def _now(self) -> tuple[float, float | None]:
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        agent = sum(one.ru_utime + one.ru_stime for one in used)
        if self.server is None:
            return agent, None
        try:
            times = psutil.Process(self.server).cpu_times()
        except psutil.Error:
            return agent, None
        return agent, times.user + times.system


def measures_of(
    out: Path, result: Result, cpu: tuple[float, float | None], together: int = 1
) -> dict[str, Any]:
    """Return the line of one result, measured with `together` rows at a time."""
    folder = out / result.run
    found = (
        _of_peer(folder / RECORD) if (folder / RECORD).is_file() else _of_run(folder) if result.run else {}
    )
    return {
        "task": result.task,
        "mode": result.mode,
        "item": result.item,
        "repeat": result.repeat,
        "right": None if result.score is None else int(result.score == 1.0),
        "answer": (result.answer or "").strip()[-MAX_ANSWER:],
        "answered": int(bool((result.answer or "").strip())),
        "stop": result.stop_reason,
        "error": result.error_kind,
        "together": together,
        "wall": round(result.wall_time, 3),
        "agent_cpu": round(cpu[0], 3),
        "model_cpu": None if cpu[1] is None else round(cpu[1], 3),
        **found,
    }


def _of_run(folder: Path) -> dict[str, Any]:
    run = Run.load(folder)
    steps = run.trajectory.steps
    calls = [call for step in steps for call in step.calls]
    usage = run.trajectory.total_usage
    return {
        "steps": sum(step.replied for step in steps),
        "tokens_in": usage.prompt_tokens,
        "tokens_out": usage.completion_tokens,
        "calls": len(calls),
        "without_call": sum(step.replied and not step.calls for step in steps),
        "refused": sum(call.result is not None and call.result.error in _REFUSED for call in calls),
        "repaired": sum(call.arguments is not None and not _is_object(call.raw_arguments) for call in calls),
        "uses": sorted(set().union(*(call_uses(call.tool, call.arguments) for call in calls))),
        "doubts": sorted({doubt.rule for doubt in doubts_of(run.trajectory)}),
    }


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _of_peer(file: Path) -> dict[str, Any]:
    said: Mapping[str, Any] = json.loads(file.read_text("utf-8").splitlines()[0])
    calls = said["calls"]
    return {
        "steps": said["requests"],
        "tokens_in": said["prompt_tokens"],
        "tokens_out": said["completion_tokens"],
        "calls": len(calls),
        "without_call": said["without_call"],
        "refused": None,
        "repaired": None,
        "uses": sorted(set().union(*(call_uses(call["tool"], call["arguments"]) for call in calls))),
        "doubts": None,
    }
