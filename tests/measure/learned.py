"""Figures of a small pretrained model that was trained: python -m measure.learned TRAINING...

Writes docs/data/learned.json from folders of `train run` with their evaluations, and from that file the tables and the
picture of docs/explanation/learned.md. Without a folder only the tables are written.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from llm_sandbox_nb.analysis.load import load_runs
from llm_sandbox_nb.benchmark.report import item_scores
from llm_sandbox_nb.benchmark.results_folder import counted_results
from llm_sandbox_nb.benchmark.statistics import paired, wilson
from llm_sandbox_nb.training import ledger
from llm_sandbox_nb.training.evaluation import AFTER, BASE, BEFORE, EVALUATION
from llm_sandbox_nb.training.record import COMPLETE, CONFIG, START, TrainingRecord
from llm_sandbox_nb.training.watch import plots
from llm_sandbox_nb.version import __version__
from measure.summary import between

DOCS = Path(__file__).parents[2] / "docs"
PAGE, DATA, PICTURE = "explanation/learned.md", "data/learned.json", "images/learned.svg"
POLICIES = {BASE: "as published", BEFORE: "after the warm-up", AFTER: "after GRPO"}
MODES = {"sandbox": "in a sandbox", "llm": "documents in the prompt"}
NOT_MEASURED = "not measured"
_STEP_KEYS = ("step", "reward", "reward_std", "groups", "groups_alike", "turns", "stops", "seconds")
_VALIDATION_KEYS = ("step", "task", "score", "score_low", "score_high", "scored", "seconds")
_MEAN_STEPS = 5
"""Maximum steps at the beginning and at the end of a training whose mean rewards are compared."""


def collected(folder: Path) -> dict[str, Any]:
    record = TrainingRecord.load(folder)
    config, start = record.config, folder / START / COMPLETE
    return {
        "model": config.model.path,
        "dtype": config.model.dtype,
        "scripted_runs": config.warm_up.count,
        "warm_up_steps": config.warm_up.steps,
        "warm_up_seconds": round(start.stat().st_mtime - _begun(folder)),
        "rollouts_per_step": config.batch,
        "first_groups": _groups(record),
        "steps": [{key: step.get(key) for key in _STEP_KEYS} for step in record.steps()],
        "validations": [{key: one.get(key) for key in _VALIDATION_KEYS} for one in record.validations()],
        "evaluations": {
            path.name.partition("-checkpoint-")[0]: _evaluation(path)
            for path in sorted((folder / EVALUATION).glob("*"))
            if path.is_dir()
        },
    }


def _groups(record: TrainingRecord) -> list[list[float]]:
    """Return the rewards of each row's rollouts in step 1: those of the policy before GRPO; empty if no longer kept."""
    groups: dict[str, list[float]] = {}
    for row in record.rollouts(1):
        if row.reward is not None:
            groups.setdefault(row.group, []).append(row.reward)
    return list(groups.values())


def _begun(folder: Path) -> float:
    """Return the time of the first scripted run, before which nothing is computed."""
    return min(
        (path.stat().st_mtime for path in (folder / "warm-up").glob("*-*/*")),
        default=(folder / CONFIG).stat().st_mtime,
    )


def _evaluation(folder: Path) -> dict[str, Any]:
    results = {name: counted_results(folder / name) for name in POLICIES if (folder / name).is_dir()}
    cells: dict[str, Any] = {}
    scores: dict[tuple[str, str], Mapping[Any, float]] = {}
    for policy, found in results.items():
        for mode in MODES:
            of_mode = [one for one in found if one.mode == mode and one.score is not None]
            if not of_mode:
                continue
            scores[policy, mode] = item_scores(of_mode)
            kinds: dict[str, list[int]] = {}
            for one in of_mode:
                kind = kinds.setdefault(one.item.partition("-")[0], [0, 0])
                kind[0] += one.score == 1.0
                kind[1] += 1
            right = sum(one.score == 1.0 for one in of_mode)
            cells.setdefault(policy, {})[mode] = {
                "right": right,
                "n": len(of_mode),
                "interval": [round(bound, 4) for bound in wilson(right / len(of_mode), len(of_mode))],
                "turns": round(sum(one.turns for one in of_mode) / len(of_mode), 2),
                "tokens": round(sum(one.model_tokens for one in of_mode) / len(of_mode), 1),
                "kinds": kinds,
            }
            if mode == "sandbox":
                cells[policy][mode] |= _commands([folder / policy / one.run for one in of_mode if one.run])
    return {"cells": cells, "pairs": list(_pairs(scores))}


def _commands(runs: Sequence[Path]) -> dict[str, int]:
    """Count first replies that name the town or goods of the question, and those that are a scripted command."""
    named = scripted = 0
    for run in load_runs(runs).runs if runs else ():
        question = run.trajectory.start.task if run.trajectory.start else ""
        replies = [one["content"] for one in run.trajectory.messages() if one["role"] == "assistant"]
        key = ledger.asked_about(question)
        named += bool(replies) and key in replies[0]
        scripted += bool(replies) and replies[0] in {
            f"```bash\n{ledger.command(key, kind)}\n```" for kind in ledger.KINDS.values()
        }
    return {"named": named, "scripted": scripted}


def _pairs(scores: Mapping[tuple[str, str], Mapping[Any, float]]) -> Iterator[dict[str, Any]]:
    for (first, last), mode in (
        (pair, mode) for pair in ((BASE, BEFORE), (BEFORE, AFTER), (BASE, AFTER)) for mode in MODES
    ):
        if (first, mode) not in scores or (last, mode) not in scores:
            continue
        found = paired(scores[last, mode], scores[first, mode])
        if found is not None:
            yield {
                "first": first, "last": last, "mode": mode, "n": found.items,
                "difference": round(found.delta.mean, 4), "interval": [found.delta.low, found.delta.high],
                "better": found.better, "worse": found.worse, "p": found.p,
            }  # fmt: skip


def machine() -> dict[str, object]:
    import torch

    text = Path("/proc/cpuinfo").read_text("utf-8") if Path("/proc/cpuinfo").is_file() else ""
    return {
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "amx": "amx_bf16" in text,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "version": __version__,
    }


# --- the page ---


def tables(found: Mapping[str, Any]) -> str:
    if not found.get("seeds"):
        return f"The training is {NOT_MEASURED} yet."
    at = found["machine"]
    amx = "with AMX" if at["amx"] else "without AMX"
    parts = [f"{at['cores']} cores, {at['machine']}, {amx}, Python {at['python']}, torch {at['torch']}."]
    if picture(found):
        parts.append(f"![Mean reward of each step of GRPO, with its spread](../{PICTURE})")
    for seed, run in sorted(found["seeds"].items()):
        parts += [f"### Seed {seed}", _course(run)]
        for task, evaluation in run["evaluations"].items():
            parts += [f"#### Held-out rows: `{task}`", _cells(evaluation)]
            parts += [_tests(evaluation)] if evaluation["pairs"] else []
    return "\n\n".join(parts)


def _course(run: Mapping[str, Any]) -> str:
    steps = run["steps"]
    number = max(1, min(_MEAN_STEPS, len(steps) // 2))  # no step is in both means
    first, last = ([step["reward"] for step in part] for part in (steps[:number], steps[-number:]))
    seconds = sum(step["seconds"] for step in steps)
    rows = [
        ("scripted runs, steps of the warm-up", f"{run['scripted_runs']}, {run['warm_up_steps']}"),
        ("minutes of the scripted runs and the warm-up", f"{run['warm_up_seconds'] / 60:.0f}"),
        ("steps of GRPO, rollouts in each", f"{len(steps)}, {run['rollouts_per_step']}"),
        ("minutes of these steps, without validations", f"{seconds / 60:.0f}"),
        ("steps without a gradient", f"{sum(step['groups'] == step['groups_alike'] for step in steps)}"),
        (f"mean reward of the first {len(first)} steps", _mean(first)),
        (f"mean reward of the last {len(last)} steps", _mean(last)),
    ]
    if not steps:
        rows = [*rows[:2], ("steps of GRPO", "none was completed")]
    if groups := run["first_groups"]:
        rewards = [reward for group in groups for reward in group]
        apart = sum(len(set(group)) > 1 for group in groups)
        rows += [
            ("rollouts of step 1 that are right", f"{sum(rewards):.0f} of {len(rewards)}"),
            ("rows of step 1 whose rollouts have different rewards", f"{apart} of {len(groups)}"),
        ]
    rows += [
        (
            f"validation after step {one['step']}",
            _interval(one["score"], (one["score_low"], one["score_high"])),
        )
        for one in run["validations"]
    ]
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])


def _cells(evaluation: Mapping[str, Any]) -> str:
    kinds = list(dict.fromkeys(
        kind for modes in evaluation["cells"].values() for cell in modes.values() for kind in cell["kinds"]
    ))  # fmt: skip
    lines = [
        f"| policy | | right (95 %) | {' | '.join(kinds)} "
        "| first reply: names the word asked about, is a scripted command | turns | tokens of replies |",
        "|---|---|---|" + "---|" * (len(kinds) + 3),
    ]
    for policy, name in POLICIES.items():
        for mode, words in MODES.items():
            cell = evaluation["cells"].get(policy, {}).get(mode)
            if cell is None:
                lines.append(f"| {name} | {words} | {NOT_MEASURED} |" + " |" * (len(kinds) + 3))
                continue
            first = f"{cell['named']}, {cell['scripted']}" if "named" in cell else "-"
            of_kinds = [f"{cell['kinds'][kind][0]} of {cell['kinds'][kind][1]}" for kind in kinds]
            right = (
                f"{cell['right']} of {cell['n']}: {_interval(cell['right'] / cell['n'], cell['interval'])}"
            )
            lines.append(
                f"| {name} | {words} | {right} | {' | '.join(of_kinds)} | {first} | {cell['turns']:.1f} "
                f"| {cell['tokens']:.0f} |"
            )
    return "\n".join(lines)


def _tests(evaluation: Mapping[str, Any]) -> str:
    lines = ["| change | | difference (95 %) | better, worse | p (McNemar) |", "|---|---|---|---|---|"]
    for pair in evaluation["pairs"]:
        p = "-" if pair["p"] is None else f"{pair['p']:.2g}"
        lines.append(
            f"| {POLICIES[pair['first']]} to {POLICIES[pair['last']]} | {MODES[pair['mode']]} | "
            f"{_interval(pair['difference'], pair['interval'])} | {pair['better']}, {pair['worse']} | {p} |"
        )
    return "\n".join(lines)


def _interval(value: float | None, bounds: Sequence[float | None]) -> str:
    if value is None:
        return "none"
    low, high = bounds
    around = "" if low is None or high is None else f" ({100 * low:.0f} to {100 * high:.0f})"
    return f"{100 * value:.0f}%{around}"


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{sum(known) / len(known):.2f}" if known else "none"


def picture(found: Mapping[str, Any]) -> str:
    """Draw the reward of the first seed, as `train watch` does in a notebook; empty before a second step."""
    steps = [run["steps"] for _, run in sorted(found["seeds"].items())]
    drawn = plots(steps[0], len(steps[0]))[0] if steps and len(steps[0]) > 1 else ""
    svg = re.search("<svg.*</svg>", drawn, re.DOTALL)
    return svg[0].replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1) + "\n" if svg else ""


def rewrite(docs: Path) -> None:
    file = docs / DATA
    found = json.loads(file.read_text("utf-8")) if file.is_file() else {"seeds": {}}
    page = docs / PAGE
    page.write_text(between(page.read_text("utf-8"), "learned", tables(found)), "utf-8")
    if drawn := picture(found):
        (docs / PICTURE).write_text(drawn, "utf-8")


def main(words: Sequence[str] | None = None, docs: Path = DOCS) -> int:
    """Write data, tables and picture; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="measure.learned", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    parser.add_argument("trainings", metavar="TRAINING", nargs="*", type=Path, help="folder of a training")
    folders = parser.parse_args(words).trainings
    if folders:
        seeds = {str(TrainingRecord.load(folder).config.seed): collected(folder) for folder in folders}
        text = json.dumps({"machine": machine(), "seeds": seeds}, indent=1, sort_keys=True)
        (docs / DATA).write_text(f"{text}\n", "utf-8")
    rewrite(docs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
