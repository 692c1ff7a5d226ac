"""A training in a cell: its plots, and the rollouts of a step with a link to each record."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from llm_sandbox_nb.card.artifacts import relative_path
from llm_sandbox_nb.card.page import card_html
from llm_sandbox_nb.card.text import escape, first_line, plain
from llm_sandbox_nb.formatting import plural
from llm_sandbox_nb.training.plots import plots
from llm_sandbox_nb.training.record import RecordError, RolloutRow, TrainingRecord
from llm_sandbox_nb.training.watch import overview, rollout_lines
from llm_sandbox_nb.trajectory.run_folder import JOURNAL

_HEADS = ("rollout", "row", "reward", "advantage", "turns", "tokens", "seconds", "stop", "answer")
_ANSWER = 60


def training_bundle(
    record: TrainingRecord, state: str, note: str = "", step: int | None = None
) -> dict[str, str]:
    """What a cell shows of a training. `step` chooses the rollouts that are listed; without it, the newest kept ones.

    Raises:
        RecordError: the rollouts of `step` are not kept.
    """
    config, steps = record.config, record.steps()
    done = steps[-1]["step"] if steps else 0
    shown = step
    if shown is None:
        shown = next((number for number in range(done, 0, -1) if record.rollouts(number)), done)
    rows = record.rollouts(shown)
    if step is not None and not rows:
        raise RecordError(
            f"The rollouts of step {step} are not kept: choose a newer step, or raise record.keep."
        )
    said = f"{done} of {plural(config.steps, 'step')}, {plural(config.batch, 'rollout')} each"
    parts = [
        f"<div class='lsn-head'><b>Training {escape(config.name)}</b> <span class='lsn-badge'>{escape(state)}</span> "
        f"<span>{said}</span> <span class='lsn-quiet'>{escape(str(record.folder))}</span></div>"
    ]
    if steps:
        drawn = "".join(plots(steps, config.steps))
        parts.append(f"<div style='display:flex;flex-wrap:wrap;gap:8px 20px;padding:8px 14px'>{drawn}</div>")
    if rows:
        parts.append(_table(record, shown, rows))
    if note:
        parts.append(f"<div class='lsn-notes'>{escape(note)}</div>")
    lines = [*overview(record), "", *(rollout_lines(rows) if rows else ()), *((note,) if note else ())]
    return {"text/html": card_html("".join(parts)), "text/plain": plain("\n".join(lines))}


def _table(record: TrainingRecord, step: int, rows: Sequence[RolloutRow]) -> str:
    ordered = sorted(rows, key=lambda row: (row.group, row.place))
    head = "".join(f"<th scope='col'>{name}</th>" for name in _HEADS)
    body = "".join(f"<tr>{''.join(_cells(record, row))}</tr>" for row in ordered)
    return (
        f"<details open style='padding:0 14px 8px'><summary>Rollouts of step {step}; a click opens the record</summary>"
        "<div role='region' tabindex='0' aria-label='Rollouts' style='overflow:auto;max-height:24em'>"
        f"<table class='lsn-table'><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div></details>"
    )


def _cells(record: TrainingRecord, row: RolloutRow) -> list[str]:
    name = str(row.place)
    if row.run:
        target = relative_path(record.folder / row.run / JOURNAL)
        name = f"<a href='{escape(quote(target))}'>{row.place}</a>" if target else name
    texts = (
        row.group,
        _number(row.reward, ".3f"),
        _number(row.advantage, "+.3f"),
        str(row.turns),
        str(row.model_tokens),
        f"{row.seconds:.1f}",
        row.stop_reason,
        first_line(row.answer, _ANSWER),
    )
    return [f"<td>{name}</td>", *(f"<td>{escape(text)}</td>" for text in texts)]


def _number(value: float | None, form: str) -> str:
    return "none" if value is None else format(value, form)
