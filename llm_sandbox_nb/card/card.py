"""The card of a run: the MIME bundle that a notebook shows, updates in place, and keeps.

During the run a bundle costs about the same at any step: each step is rendered once, the last ones whole and some
before them in one line each. The last bundle is complete within `Caps` and says what was left out. The text is for
terminals and front ends without HTML. A run or a file that is the last value of a cell is shown in the same way:
nothing runs, nothing loads.
"""

from __future__ import annotations

import base64
from pathlib import Path, PurePath
from typing import Any

from llm_sandbox_nb.agent.run_record import RunRecord
from llm_sandbox_nb.card import page
from llm_sandbox_nb.card.artifacts import Artifact, artifact_html, decode, load_artifacts, relative_path
from llm_sandbox_nb.card.bundle import MIME, Caps, held_by, packed, trajectory_json
from llm_sandbox_nb.card.outcome import Tally, figures
from llm_sandbox_nb.card.page import card_html, first_error
from llm_sandbox_nb.card.steps import control_lines, is_closed, matters, step_html, step_row
from llm_sandbox_nb.card.text import escape
from llm_sandbox_nb.formatting import clip, format_size, plural
from llm_sandbox_nb.plain_text import plain
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.protection import protection_chip
from llm_sandbox_nb.trajectory.run_folder import RunFile
from llm_sandbox_nb.trajectory.step_line import one_line, step_line
from llm_sandbox_nb.trajectory.trajectory import Step, Trajectory

LIVE_WHOLE = 3
"""Steps shown whole during the run."""
LIVE_LINES = 12
"""Steps before those, each shown in one line."""
ALL_OPEN = 8
"""A finished run with more steps shows open only the last one and those that matter."""

Bundle = dict[str, Any]


class Card:
    """Collects a run's events and renders them as a bundle; sending it is the display's task."""

    def __init__(self, caps: Caps | None = None, folder: Path | None = None) -> None:
        self.caps = caps or Caps()
        self.folder = folder
        """The run's folder, once it is known: where the files are."""
        self.trajectory = Trajectory()
        self._tally = Tally()
        self._whole: dict[int, str] = {}
        self._lines: dict[int, str] = {}
        self._files: dict[tuple[str, str], str] = {}

    def add(self, event: ev.Event) -> None:
        """Add an event of the run."""
        steps = self.trajectory.steps
        self.trajectory.add(event)
        if self.trajectory.steps is not steps:  # another branch: its steps have the same numbers
            self._whole.clear()
            self._lines.clear()
            self._tally = Tally()
            for result in (call.result for step in self.trajectory.steps for call in step.calls):
                if result is not None:
                    self._tally.add(result)
        elif isinstance(event, ev.CallFinished) and self.trajectory.path[-1] is event:
            self._tally.add(event)
        number = getattr(event, "step", None)
        if number is not None:
            self._whole.pop(number, None)
            self._lines.pop(number, None)

    @property
    def metadata(self) -> dict[str, Any]:
        """Send it with every bundle: an update without metadata erases the earlier one."""
        start = self.trajectory.start
        return {
            "llm_sandbox": {"run_id": start.run_id if start else None, "schema_version": ev.SCHEMA_VERSION}
        }

    def live(self) -> Bundle:
        """The run so far: bounded, without the durable part."""
        steps = self.trajectory.steps
        shown = steps[-LIVE_WHOLE:]
        lined = steps[-LIVE_WHOLE - LIVE_LINES : -LIVE_WHOLE]
        parts = [self._head(live=True, limit=self.caps.live_text), page.files_html(self._live_files())]
        parts.append(page.facts_html(self.trajectory, self._tally, live=True))
        if hidden := len(steps) - len(shown) - len(lined):
            parts.append(f"<div class='lsn-row lsn-quiet'>{plural(hidden, 'step')} before</div>")
        parts += [self._line(step) for step in lined]
        parts += [self._live_step(step) for step in shown]
        parts.append(
            self._notes([*self.trajectory.notes[-2:], *control_lines(self.trajectory.controls[-2:])])
        )
        # This page has no buttons: it is shown where no page can reach a busy kernel.
        parts.append(self._notes(["Interrupt the cell to stop the run."] if self.trajectory.start else []))
        return {
            "text/html": page.card_html("".join(parts)),
            "text/plain": card_text(self.trajectory, self._tally, live=True),
        }

    def final(self) -> Bundle:
        """The whole run, within the caps."""
        trajectory, caps = self.trajectory, self.caps
        saved = trajectory.artifacts.values()
        artifacts = load_artifacts(saved, self.folder, each=caps.artifact, together=caps.run)
        figures = {one.path: artifact_html(one) for one in artifacts if not self._is_answer(one)}
        places = {path: place for place, path in enumerate(figures)}
        data = {one.path: one.data for one in artifacts}
        held = {path: place for path, place in places.items() if held_by(figures[path]) == data[path]}
        bundle = trajectory_json(trajectory, artifacts, caps, held)
        notes = [*control_lines(trajectory.controls), *trajectory.notes]
        notes += [f"Left out: {reason}" for reason in trajectory.skipped]
        parts = [self._head(live=False, limit=caps.text), page.files_html(list(figures.values()))]
        parts += [page.facts_html(trajectory, self._tally, live=False), *self._all_steps()]
        parts.append(self._notes([*notes[:50], *self._where(artifacts, bundle["text_limit"])]))
        return {
            MIME: packed(bundle),
            "text/html": page.card_html("".join(parts)),
            "text/plain": card_text(trajectory, self._tally, live=False),
        }

    def _head(self, *, live: bool, limit: int) -> str:
        return page.header_html(self.trajectory, limit, live=live) + page.result_html(self.trajectory, limit)

    def _line(self, step: Step) -> str:
        if step.number not in self._lines:
            self._lines[step.number] = step_row(step, self.trajectory.root)
        return self._lines[step.number]

    def _live_step(self, step: Step) -> str:
        if step.number in self._whole:
            return self._whole[step.number]
        rendered = step_html(step, self.trajectory.root, limit=self.caps.live_text)
        if is_closed(step):
            self._whole[step.number] = rendered
        return rendered

    def _live_files(self) -> list[str]:
        newest = list(self.trajectory.artifacts.values())[-8:]
        missing = [one for one in newest if (one.path, one.sha256) not in self._files]
        room = self.caps.live_files
        loaded = load_artifacts(missing, self.folder, each=room // 4, together=room)
        for artifact, saved in zip(loaded, missing, strict=True):
            self._files[saved.path, saved.sha256] = artifact_html(artifact)
        return [self._files[one.path, one.sha256] for one in newest]

    def _all_steps(self) -> list[str]:
        steps, room = self.trajectory.steps, self.caps.page
        rendered: list[str] = []
        for step in reversed(steps):
            anchor = page.step_anchor(self.trajectory, step.number)
            unfolded = len(steps) <= ALL_OPEN or step is steps[-1] or matters(step)
            options: dict[str, Any] = {"limit": self.caps.text, "anchor": anchor, "unfolded": unfolded}
            whole = step_html(step, self.trajectory.root, **options) if room > 0 else ""
            room -= len(whole)
            rendered.append(whole if room > 0 else step_row(step, self.trajectory.root, anchor))
        return rendered[::-1]

    def _is_answer(self, artifact: Artifact) -> bool:
        """Whether the file holds only the answer, which the card shows elsewhere."""
        answer = self.trajectory.answer
        if artifact.path != "answer.txt" or artifact.data is None or answer is None:
            return False
        return decode(artifact.data).strip() == answer.strip()

    def _notes(self, notes: list[str]) -> str:
        lines = "".join(f"<div class='lsn-quiet'>{escape(clip(note, 500))}</div>" for note in notes)
        return f"<div class='lsn-notes'>{lines}</div>" if notes else ""

    def _where(self, artifacts: list[Artifact], text_limit: int | None) -> list[str]:
        """What is only in the run's folder, and where that is."""
        said = []
        if any(artifact.data is None for artifact in artifacts):
            said.append("some files are only in the run's folder")
        if text_limit is not None:
            said.append(f"texts in the saved record are clipped to {plural(text_limit, 'character')}")
        where = f"Run folder: {relative_path(self.folder) or self.folder}" if self.folder else ""
        note = ". ".join(filter(None, ["; ".join(said).capitalize(), where]))
        return [note] if note else []


_STEPS = 100
"""Steps listed; the ones before are counted."""
_LIVE_STEPS = 8
_FILES = 20
_SIGNS = {"bash": "$ ", "edit": "edit "}


def card_text(trajectory: Trajectory, tally: Tally, *, live: bool) -> str:
    """State and task, reason of failure and answer, files, facts; then a line for each step."""
    words = trajectory.state(live=live).words
    task = one_line(trajectory.start.task) if trajectory.start else ""
    lines = [f"{plain(words)}  {task}".rstrip()]
    if trajectory.finish and trajectory.finish.error:
        lines += ["", plain(clip(trajectory.finish.error, 500)).strip()]
    if trajectory.answer:
        lines += ["", plain(clip(trajectory.answer, 4_000)).strip()]
    if files := list(trajectory.artifacts.values()):
        named = ", ".join(f"{one_line(one.path)} ({format_size(one.size)})" for one in files[:_FILES])
        more = f" and {len(files) - _FILES} more" if len(files) > _FILES else ""
        lines += ["", f"Files: {named}{more}"]
    lines += ["", _facts(trajectory, tally), ""]
    listed = trajectory.steps[-_LIVE_STEPS if live else -_STEPS :]
    if hidden := len(trajectory.steps) - len(listed):
        lines.append(f"... {plural(hidden, 'step')} before ...")
    running = live and trajectory.finish is None
    lines += [
        _step(step, trajectory.root, running=running and step is trajectory.steps[-1]) for step in listed
    ]
    return "\n".join(lines).rstrip()


def _facts(trajectory: Trajectory, tally: Tally) -> str:
    parts = figures(trajectory)
    if trajectory.sandbox:
        parts.append(protection_chip(trajectory.sandbox.protection))
    if (number := first_error(trajectory, tally)) is not None:
        parts.append(f"First error: step {number}")
    if changed := tally.changed_files:
        parts.append(f"{plural(changed, 'file')} changed")
    return " · ".join(parts)


def _step(step: Step, root: str, *, running: bool) -> str:
    line = step_line(step, root, running=running)
    what = f"{_SIGNS.get(line.tool, '')}{line.what}{_counts(line.added, line.removed)}" if line.what else ""
    shown = [f"{chip.text}{_counts(chip.added, chip.removed)}" for chip in line.chips]
    if running and any(not call.finished for call in step.calls):
        shown.append("running" if step.calls[0].started else "waiting")
    words = "   ".join(filter(None, [line.thought, what, *shown, line.figures]))
    return f"{step.number:>3}  {words}"


def _counts(added: int, removed: int) -> str:
    return (f" +{added}" if added else "") + (f" -{removed}" if removed else "")


Display = tuple[dict[str, Any], dict[str, Any]]
"""Data by media types, and metadata, as `_repr_mimebundle_` returns them."""
_LARGEST = 10_000_000
"""Bytes of a file that is shown."""
_BITMAPS = ("image/png", "image/jpeg", "image/gif")
"""What every front end shows as a picture and never as a page."""


def run_display(run: RunRecord) -> Display:
    """The card of a run, as its cell shows it."""
    card = Card(folder=run.folder)
    for event in run.trajectory.events:
        card.add(event)
    return (card.final() if run.context.session is None else card.live()), card.metadata


class ShownFile(RunFile):
    """One file the model left. A cell shows it by its kind: a picture, a page without its scripts, sound, text."""

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        files = self.path
        for _ in PurePath(self.name).parts:
            files = files.parent
        saved = ev.ArtifactSaved(path=self.name, mime=self.mime, size=self.size, sha256="")
        (artifact,) = load_artifacts([saved], files.parent, each=_LARGEST, together=_LARGEST)
        if artifact.data is not None and self.mime in _BITMAPS:
            shown = {self.mime: base64.b64encode(artifact.data).decode("ascii")}
        else:
            shown = {"text/html": card_html(artifact_html(artifact, unfolded=True))}
        return {**shown, "text/plain": repr(self)}
