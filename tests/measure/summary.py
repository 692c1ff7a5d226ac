"""The measured rows: docs/data/measured, and the data, tables and plot of docs/explanation/measured.md made from them.

Intervals and tests are those of the package's own benchmark: Wilson's interval, McNemar's exact test, the paired
bootstrap.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from llm_sandbox_nb.benchmark.results import read_lines
from llm_sandbox_nb.benchmark.statistics import paired, wilson
from measure import measures
from measure.columns import COLUMNS, VARIANTS, Column
from measure.rows import DEVELOPMENT, NUMBERS, REPEATED, SEED

PAGE = "explanation/measured.md"
DATA, ROWS = "data/measured.json", "data/measured"
TUNED, TUNED_ROWS = "data/tuned.json", "data/tuned"
MACHINE = "machine"
PLOT = "images/measured.svg"
NOTHING = "not measured yet"
MAX_ENDING = 40
"""Characters of a wrong answer in the table of repeated tasks."""
CAPABILITIES = ("computation", "files", "external")
Line = Mapping[str, Any]


def write(out: Path, docs: Path, *, tuning: bool = False) -> Path:
    """Publish the rows in `out`; write data, tables and plot from all published rows. Return the path of the page."""
    names, sets = (VARIANTS, DEVELOPMENT) if tuning else (COLUMNS, NUMBERS)
    rows = docs / (TUNED_ROWS if tuning else ROWS)
    publish(out, rows, names)
    found = json.dumps(summarise(rows, names, sets), indent=1, sort_keys=True)
    (docs / (TUNED if tuning else DATA)).write_text(f"{found}\n", "utf-8")
    rewrite(docs)
    return docs / PAGE


def rewrite(docs: Path) -> None:
    found, tuned = (_kept(docs / name) for name in (DATA, TUNED))
    (docs / PLOT).write_text(plot(found), "utf-8")
    page = docs / PAGE
    text = page.read_text("utf-8")
    for name, content in (
        ("measured", tables(found)),
        ("files", files_table(found)),
        ("repeated", repeated_tables(found)),
        ("tuned", tuning_table(tuned)),
    ):
        text = between(text, name, content)
    page.write_text(text, "utf-8")


def _kept(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text("utf-8")) if file.is_file() else {"models": {}, "seed": SEED}


def between(text: str, name: str, content: str) -> str:
    begin, end = f"<!-- table-{name}: begin -->", f"<!-- table-{name}: end -->"
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n\n{content}\n\n{end}{after}"


def publish(out: Path, rows: Path, columns: Iterable[str]) -> None:
    """Add the lines of `out` to those in `rows`: a file for each model and column, a line for each row.

    The published lines are enough to continue a measurement on another machine, and to count again.
    """
    for folder in sorted(out.iterdir()) if out.is_dir() else ():
        if not (folder / "machine.json").is_file():
            continue
        kept = rows / folder.name
        kept.mkdir(parents=True, exist_ok=True)
        facts = {
            json.dumps(one): one
            for one in [*published(rows, folder.name, MACHINE), *read_lines(folder / "machine.json")]
        }
        _write_lines(kept / f"{MACHINE}.jsonl", facts.values())
        for name in columns:
            measured = read_lines(folder / name / measures.FILE)
            if lines := newest([*published(rows, folder.name, name), *measured]):
                _write_lines(kept / f"{name}.jsonl", sorted(lines, key=lambda line: line["key"]))


def _write_lines(file: Path, lines: Iterable[Line]) -> None:
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines), "utf-8")


def published(rows: Path, model: str, name: str) -> list[dict[str, Any]]:
    """Return the published lines of a column, or those about the machines."""
    return read_lines(rows / model / f"{name}.jsonl")


def summarise(
    rows: Path, columns: Mapping[str, Column] = COLUMNS, sets: Iterable[str] = tuple(NUMBERS)
) -> dict[str, Any]:
    models = {}
    for folder in sorted(rows.iterdir()) if rows.is_dir() else ():
        facts = published(rows, folder.name, MACHINE)
        lines = {name: published(rows, folder.name, name) for name in columns}
        models[folder.name] = {
            "machine": facts[-1] | {"threads": sorted({one["threads"] for one in facts if one["threads"]})},
            "columns": {
                name: {
                    task: _cell(task, mine, lines["vanilla"])
                    for task in sets
                    if (mine := _of(all_lines, task))
                }
                for name, all_lines in lines.items()
                if all_lines
            },
            "places": places(lines),
            "repeated": {name: cell for name in REPEATED if (cell := repeated(lines.get("text", ()), name))},
        }
    return {"seed": SEED, "models": models}


def newest(lines: Iterable[Line]) -> list[Line]:
    """The last line of each item; failures that are no result are left out."""
    return [one for one in {one["key"]: one for one in lines}.values() if one["right"] is not None]


def _of(lines: Iterable[Line], task: str, mode: str | None = None) -> list[Line]:
    """The lines of a set: of one mode, else of the main one."""
    return [
        one
        for one in lines
        if one["task"] == task and one["mode"] == (mode or one["mode"].removesuffix("-prompt"))
    ]


def _cell(task: str, mine: Sequence[Line], vanilla: Sequence[Line]) -> dict[str, Any]:
    number, right = len(mine), sum(one["right"] for one in mine)
    cell: dict[str, Any] = {"n": number, "right": right, "interval": _interval(right, number)}
    base = _of(vanilla, task)
    if base and base[0]["mode"] != mine[0]["mode"]:
        cell["against_vanilla"] = against(mine, base)
    cell["together"] = max(one.get("together", 1) for one in mine)
    cell["answered"] = sum(one["answered"] for one in mine)
    cell["no_answer"] = number - cell["answered"]
    cell["stops"] = dict(sorted(Counter(str(one["stop"]) for one in mine).items()))
    for name in (
        "steps",
        "tokens_in",
        "tokens_out",
        "calls",
        "without_call",
        "refused",
        "repaired",
        "wall",
        "agent_cpu",
        "model_cpu",
    ):
        values = [one[name] for one in mine if one.get(name) is not None]
        cell[name] = round(statistics.fmean(values), 3) if values else None
    cell["uses"] = {name: sum(name in (one.get("uses") or ()) for one in mine) for name in CAPABILITIES}
    known = [one for one in mine if one.get("doubts") is not None]
    cell["doubts"] = None  # other packages have no doubts
    if known:
        cell["doubts"] = {
            word: [
                sum(bool(one["doubts"]) for one in known if one["right"] == value),
                sum(one["right"] == value for one in known),
            ]
            for word, value in (("right", 1), ("wrong", 0))
        }
    return cell


def against(mine: Sequence[Line], base: Sequence[Line]) -> dict[str, Any] | None:
    found = paired(
        {one["item"]: float(one["right"]) for one in mine}, {one["item"]: float(one["right"]) for one in base}
    )
    if found is None:
        return None
    return {
        "n": found.items,
        "difference": round(found.delta.mean, 4),
        "interval": None
        if found.delta.low is None
        else [round(found.delta.low, 4), round(found.delta.high or 0.0, 4)],
        "better": found.better,
        "worse": found.worse,
        "p": found.p,
    }


def places(lines: Mapping[str, Sequence[Line]]) -> dict[str, Any]:
    """Documents in files against documents in the prompt, for the columns that did both."""
    found = {}
    for name in ("native", "text"):
        files, prompt = (_of(lines.get(name, ()), "files", mode) for mode in ("sandbox", "sandbox-prompt"))
        if files and prompt:
            found[name] = {word: _place(one) for word, one in (("files", files), ("prompt", prompt))}
            found[name]["paired"] = against(files, prompt)
    return found


def repeated(lines: Iterable[Line], name: str) -> dict[str, Any]:
    """Every task of a repeated set: how often it was right, its tokens, and how its other runs ended."""
    tasks: dict[str, list[Line]] = {}
    for line in _of(lines, name):
        tasks.setdefault(line["item"], []).append(line)
    return {
        item: {
            "n": len(mine),
            "right": sum(one["right"] for one in mine),
            "answered": sum(one["answered"] for one in mine),
            "tokens": [one["tokens_in"] + one["tokens_out"] for one in mine],
            "wrong": dict(Counter(_ending(one) for one in mine if not one["right"]).most_common()),
        }
        for item, mine in tasks.items()
    }


def _ending(line: Line) -> str:
    """How a run ended: its stop reason, and the end of its answer."""
    answer = " ".join(line["answer"].split())
    if len(answer) > MAX_ENDING:
        answer = f"… {answer[-MAX_ENDING:].partition(' ')[2]}"
    return f"{line['stop']}: {answer or 'no answer'}"


def _place(lines: Sequence[Line]) -> dict[str, Any]:
    right = sum(line["right"] for line in lines)
    tokens = round(statistics.fmean(line["tokens_in"] for line in lines), 1)
    return {"n": len(lines), "right": right, "interval": _interval(right, len(lines)), "tokens_in": tokens}


def _interval(right: int, number: int) -> list[float]:
    return [round(bound, 4) for bound in wilson(right / number, number)]


# --- tables ---


def tables(found: Mapping[str, Any]) -> str:
    """Return a table for each model and measured set, and the names of the sets that nobody has measured."""
    if not found["models"]:
        return f"All rows: {NOTHING}."
    parts = []
    for model, one in found["models"].items():
        facts = one["machine"]
        parts.append(
            f"### {model}\n\n{facts['cores']} cores, {facts['machine']}, threads of the model: "
            f"{' or '.join(map(str, facts['threads']))}, "
            f"sandboxes in {facts['isolation']}, seed {found['seed']}."
        )
        measured = [task for task in NUMBERS if any(task in cells for cells in one["columns"].values())]
        for task in measured:
            number = NUMBERS[task]
            together = {cells[task].get("together", 1) for cells in one["columns"].values() if task in cells}
            pace = " and ".join(map(str, sorted(together)))
            parts.append(
                f"#### {task}: {number} rows, {pace} at a time\n\n{_table(one['columns'], task, number)}"
            )
        if missing := [f"`{task}`" for task in NUMBERS if task not in measured]:
            parts.append(f"These sets are {NOTHING} with this model: {', '.join(missing)}.")
    return "\n\n".join(parts)


def _table(columns: Mapping[str, Any], task: str, number: int) -> str:
    head = (
        "| | rows | right (95 %) | against no sandbox: better, worse, p | answered | steps | tokens in | tokens out "
        "| wall s | CPU s, model + agent | no call / refused / repaired | computation, files, external "
        "| doubts when right, wrong |"
    )
    lines = [head, "|" + "---|" * 13]
    for name, column in COLUMNS.items():
        cell = columns.get(name, {}).get(task)
        lines.append(f"| {column.title} | {_row(cell, number) if cell else f'{NOTHING} |' + ' |' * 11}")
    return "\n".join(lines)


def _row(cell: Mapping[str, Any], number: int) -> str:
    low, high = cell["interval"]
    rows = str(cell["n"]) if cell["n"] == number else f"measured on {cell['n']} of {number}"
    share = f"{cell['right'] / cell['n']:.0%} ({low:.0%} to {high:.0%})"
    pair = cell.get("against_vanilla")
    versus = f"{pair['better']}, {pair['worse']}, p {pair['p']:.2g} (n {pair['n']})" if pair else "-"
    values = [
        rows, share, versus, f"{cell['answered']} of {cell['n']}", _number(cell["steps"]), _number(cell["tokens_in"]),
        _number(cell["tokens_out"]), _number(cell["wall"]),
        f"{_number(cell['model_cpu'])} + {_number(cell['agent_cpu'])}",
        " / ".join(_number(cell[name]) for name in ("without_call", "refused", "repaired")),
        ", ".join(str(cell["uses"][name]) for name in CAPABILITIES),
        ", ".join(f"{some} of {all_of}" for some, all_of in cell["doubts"].values()) if cell["doubts"] else "-",
    ]  # fmt: skip
    return " | ".join(values) + " |"


def tuning_table(found: Mapping[str, Any]) -> str:
    """Text mode without one of its parts each, over all rows for tuning."""
    if not found["models"]:
        return f"What each part brings: {NOTHING}."
    lines: list[str] = []
    for model, one in found["models"].items():
        lines += [
            *([""] if lines else []),
            f"### {model}, tuning",
            "",
            "| | rows | right (95 %) | tokens in and out, a row | steps | by set |",
            "|---|---|---|---|---|---|",
        ]
        for name, column in VARIANTS.items():
            cells = one["columns"].get(name)
            if not cells:
                lines.append(f"| {column.title} | {NOTHING} | | | | |")
                continue
            number, right = (sum(cell[word] for cell in cells.values()) for word in ("n", "right"))
            low, high = _interval(right, number)
            tokens, steps = (
                sum(cell["n"] * sum(cell[word] or 0 for word in words) for cell in cells.values()) / number
                for words in (("tokens_in", "tokens_out"), ("steps",))
            )
            sets = ", ".join(f"{task} {cell['right']} of {cell['n']}" for task, cell in cells.items())
            title = "text mode as it is" if name == "text" else column.title
            lines.append(
                f"| {title} | {number} | {right / number:.0%} ({low:.0%} to {high:.0%}) | {_number(tokens)} "
                f"| {_number(steps)} | {sets} |"
            )
    return "\n".join(lines)


def files_table(found: Mapping[str, Any]) -> str:
    lines = [
        "| | in files | in the prompt | better, worse, p | tokens in: files, prompt |",
        "|---|---|---|---|---|",
    ]
    for model, one in found["models"].items():
        for name, pair in one["places"].items():
            shares = [_share(pair[word]) for word in ("files", "prompt")]
            versus = pair["paired"]
            said = f"{versus['better']}, {versus['worse']}, p {versus['p']:.2g}" if versus else "-"
            tokens = ", ".join(_number(pair[word]["tokens_in"]) for word in ("files", "prompt"))
            lines.append(f"| {model}, {COLUMNS[name].title} | {' | '.join(shares)} | {said} | {tokens} |")
    return "\n".join(lines) if len(lines) > 2 else f"Documents in files against in the prompt: {NOTHING}."


def repeated_tables(found: Mapping[str, Any]) -> str:
    """A table for each repeated set: a line for each task, and one for all."""
    parts = []
    for model, one in found["models"].items():
        for name, tasks in one.get("repeated", {}).items():
            lines = [
                f"### {model}, {name}: {REPEATED[name]} times each\n",
                "| task | right | answered | tokens in and out: mean, most | how the others ended, and how often |",
                "|---|---|---|---|---|",
            ]
            whole = {word: sum(task[word] for task in tasks.values()) for word in ("n", "right", "answered")}
            tokens = [some for task in tasks.values() for some in task["tokens"]]
            if len(tasks) > 1:
                tasks = {**tasks, "all": {**whole, "tokens": tokens, "wrong": {}}}
            for item, task in tasks.items():
                ends = "; ".join(
                    f"{_cell_text(ending)}{f' ({often})' if often > 1 else ''}"
                    for ending, often in task["wrong"].items()
                )
                spent = f"{_number(statistics.fmean(task['tokens']))}, {_number(max(task['tokens']))}"
                lines.append(
                    f"| {item} | {_share(task | {'interval': _interval(task['right'], task['n'])})} "
                    f"| {task['answered']} of {task['n']} | {spent} | {ends} |"
                )
            parts.append("\n".join(lines))
    return "\n\n".join(parts) or f"Repeated tasks: {NOTHING}."


def _cell_text(text: str) -> str:
    """Return text of a model as code in a cell of a table."""
    return "`" + text.replace("`", "'").replace("|", "/") + "`"


def _share(cell: Mapping[str, Any]) -> str:
    low, high = cell["interval"]
    return f"{cell['right']} of {cell['n']} ({low:.0%} to {high:.0%})"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return (
        f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2g}" if math.fabs(value) < 10 else f"{value:.0f}"
    )


# --- plot ---

_WIDTH, _LEFT, _BAR, _GAP = 720, 190, 16, 12
_COLOURS = ("#8a8f98", "#3b6fb6", "#2a9d6f", "#c77d2e", "#a05195")


def plot(found: Mapping[str, Any]) -> str:
    parts, y = [], 24
    for model, one in found["models"].items():
        parts.append(f'<text x="0" y="{y}" font-weight="bold">{_escaped(model)}</text>')
        y += 22
        for task in NUMBERS:
            cells = [(name, cell) for name in COLUMNS if (cell := one["columns"].get(name, {}).get(task))]
            if not cells:
                continue
            parts.append(f'<text x="0" y="{y + 12}">{task}</text>')
            for name, cell in cells:
                parts.append(_bar(name, cell, y))
                y += _BAR + 3
            y += _GAP
    if not parts:
        parts, y = [f'<text x="0" y="24">{NOTHING}</text>'], 40
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y}" width="{_WIDTH}" height="{y}" '
        'font-family="sans-serif" font-size="12" fill="currentColor" role="img" '
        f'aria-label="Share of right answers">{"".join(parts)}</svg>\n'
    )


def _bar(name: str, cell: Mapping[str, Any], y: int) -> str:
    scale = _WIDTH - _LEFT - 190
    share, (low, high) = cell["right"] / cell["n"], cell["interval"]
    colour = _COLOURS[list(COLUMNS).index(name)]
    middle, end = y + _BAR / 2, _LEFT + scale
    return (
        f'<rect x="{_LEFT}" y="{y}" width="{max(1, scale * share):.1f}" height="{_BAR}" fill="{colour}"/>'
        f'<path d="M{_LEFT + scale * low:.1f} {middle}H{_LEFT + scale * high:.1f}" stroke="currentColor" '
        'stroke-width="2"/>'
        f'<text x="{end + 8}" y="{y + 12}">{share:.0%}, n {cell["n"]}, {_escaped(COLUMNS[name].name)}</text>'
    )


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")
