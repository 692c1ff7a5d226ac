"""The card of a run: the MIME bundle that a notebook shows, updates in place, and saves.

The bundle has three parts. The HTML page is for front ends without the extension: state, task, answer, files, facts,
and a line for each step. The extension shows the record instead of the page. The record is complete within `Caps`.
The plain text is for terminals and front ends without HTML. A run or file that is the last value of a cell is shown in
the same way. `card/facts.py` makes the line with steps, tokens, time and cost.
"""

from __future__ import annotations

import base64
from pathlib import Path, PurePath
from typing import Any

from llm_sandbox_nb.agent.run_record import RunRecord
from llm_sandbox_nb.card import page
from llm_sandbox_nb.card.artifact_html import artifact_html, decoding_warning, holds_all
from llm_sandbox_nb.card.artifacts import Artifact, load_artifacts, relative_path
from llm_sandbox_nb.card.bundle import MIME, Caps, packed, trajectory_json
from llm_sandbox_nb.card.facts import figures, findings
from llm_sandbox_nb.card.page import card_html, listed_rows
from llm_sandbox_nb.encoded_text import text_of
from llm_sandbox_nb.formatting import clip, format_size, plural
from llm_sandbox_nb.plain_text import plain
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.calm_steps import CalmSteps
from llm_sandbox_nb.trajectory.doubts.rules import doubts_line, doubts_of
from llm_sandbox_nb.trajectory.protection import protection_chip
from llm_sandbox_nb.trajectory.run_folder import RunFile
from llm_sandbox_nb.trajectory.step_line import one_line
from llm_sandbox_nb.trajectory.trajectory import Step, Trajectory

Bundle = dict[str, Any]


class Card:
    """Renderer of a run's events as a bundle, which the display sends."""

    def __init__(
        self, caps: Caps | None = None, folder: Path | None = None, trajectory: Trajectory | None = None
    ) -> None:
        self.caps = caps or Caps()
        self.folder = folder
        """The run's folder; None while the folder is unknown."""
        self.trajectory = trajectory or Trajectory()
        self._files: dict[tuple[str, str], str] = {}
        """Figures of the files that the live card showed last, by path and digest."""

    def add(self, event: ev.Event) -> None:
        self.trajectory.add(event)

    @property
    def metadata(self) -> dict[str, Any]:
        """Metadata to send with every bundle, because an update without metadata erases the earlier metadata."""
        start = self.trajectory.start
        return {
            "llm_sandbox": {"run_id": start.run_id if start else None, "schema_version": ev.SCHEMA_VERSION}
        }

    def live(self) -> Bundle:
        """Return the bundle of the run so far, with limited size and without the record."""
        # This page has no buttons, because front ends that show the page cannot reach a busy kernel.
        stop = ["Interrupt the cell to stop the run."] if self.trajectory.start else []
        notes = [*self.trajectory.notes[-2:], *stop]
        return {
            "text/html": page.run_html(
                self.trajectory, self._live_files(), notes, limit=self.caps.live_text, live=True
            ),
            "text/plain": card_text(self.trajectory, live=True),
        }

    def final(self) -> Bundle:
        """Return the bundle of the whole run, within the caps."""
        trajectory, caps = self.trajectory, self.caps
        saved = trajectory.artifacts.values()
        artifacts = load_artifacts(saved, self.folder, each=caps.artifact, together=caps.run)
        shown = [artifact for artifact in artifacts if not self._is_answer(artifact)]
        held = {artifact.path: place for place, artifact in enumerate(shown) if holds_all(artifact)}
        bundle = trajectory_json(trajectory, artifacts, caps, held)
        left_out = [f"Left out: {reason}" for reason in trajectory.skipped]
        notes = [
            *[*trajectory.notes, *_network(trajectory), *left_out][:50],
            *self._where(artifacts, bundle["text_limit"]),
        ]
        return {
            MIME: packed(bundle),
            "text/html": page.run_html(
                trajectory, [*map(artifact_html, shown)], notes, limit=caps.text, live=False
            ),
            "text/plain": card_text(trajectory, live=False),
        }

    def _live_files(self) -> list[str]:
        newest = list(self.trajectory.artifacts.values())[-8:]
        missing = [saved for saved in newest if (saved.path, saved.sha256) not in self._files]
        room = self.caps.live_files
        loaded = load_artifacts(missing, self.folder, each=room // 4, together=room)
        for artifact, saved in zip(loaded, missing, strict=True):
            self._files[saved.path, saved.sha256] = artifact_html(artifact)
        self._files = {key: self._files[key] for key in ((saved.path, saved.sha256) for saved in newest)}
        return [*self._files.values()]

    def _is_answer(self, artifact: Artifact) -> bool:
        """Return True if the file holds only the answer, which the card shows elsewhere."""
        answer = self.trajectory.answer
        if artifact.path != "answer.txt" or artifact.data is None or answer is None:
            return False
        return text_of(artifact.data).strip() == answer.strip()

    def _where(self, artifacts: list[Artifact], text_limit: int | None) -> list[str]:
        """Return a note that names the run's folder, and the data that is only in that folder."""
        missing = []
        if any(artifact.data is None for artifact in artifacts):
            missing.append("some files are only in the run's folder")
        if text_limit is not None:
            missing.append(f"texts in the saved record are clipped to {plural(text_limit, 'character')}")
        where = f"Run folder: {relative_path(self.folder) or self.folder}" if self.folder else ""
        return [note] if (note := ". ".join(filter(None, ["; ".join(missing).capitalize(), where]))) else []


_MAX_CONNECTIONS = 20
_MAX_FILES = 20
_SIGNS = {"bash": "$ ", "edit": "edit "}


def _network(trajectory: Trajectory) -> list[str]:
    """Return a note that lists the sandbox's allowed and refused connections without repetitions."""
    lines = list(dict.fromkeys(connection.line for connection in trajectory.connections if connection.line))
    more = f"; and {len(lines) - _MAX_CONNECTIONS} more" if len(lines) > _MAX_CONNECTIONS else ""
    return [f"Network: {plain('; '.join(lines[:_MAX_CONNECTIONS]))}{more}"] if lines else []


def card_text(trajectory: Trajectory, *, live: bool) -> str:
    """Return the card as text: state, task, error, answer, doubts, files and facts, and then a line for each step."""
    words = trajectory.state(live=live).words
    task = one_line(trajectory.start.task) if trajectory.start else ""
    lines = [f"{plain(words)}  {task}".rstrip()]
    if trajectory.finish and trajectory.finish.error:
        lines += ["", plain(clip(trajectory.finish.error, 500)).strip()]
    if trajectory.answer:
        lines += ["", plain(clip(trajectory.answer, 4_000)).strip()]
    if doubts := doubts_of(trajectory):
        lines += ["", plain(f"Doubts: {doubts_line(doubts)}")]
    if files := list(trajectory.artifacts.values()):
        named = ", ".join(f"{one_line(file.path)} ({format_size(file.size)})" for file in files[:_MAX_FILES])
        more = f" and {len(files) - _MAX_FILES} more" if len(files) > _MAX_FILES else ""
        lines += ["", f"Files: {named}{more}"]
    where = [protection_chip(trajectory.sandbox.protection)] if trajectory.sandbox else []
    lines += [
        "",
        *_network(trajectory),
        " · ".join([*figures(trajectory), *where, *(words for _, words in findings(trajectory))]),
        "",
    ]
    rows, hidden = listed_rows(trajectory, live=live)
    if hidden:
        lines.append(f"... {plural(hidden, 'step')} before ...")
    lines += [_row_text(trajectory, row, live=live) for row in rows]
    return "\n".join(lines).rstrip()


def _row_text(trajectory: Trajectory, row: Step | CalmSteps, *, live: bool) -> str:
    if isinstance(row, CalmSteps):
        return "   ".join(filter(None, [f"{row.numbers:>3}  {row.words}", row.figures]))
    line = page.shown_line(trajectory, row, live=live)
    what = f"{_SIGNS.get(line.tool, '')}{line.what}{_counts(line.added, line.removed)}" if line.what else ""
    chips = [f"{chip.text}{_counts(chip.added, chip.removed)}" for chip in line.chips]
    words = "   ".join(filter(None, [line.thought, what, *chips, line.figures]))
    return f"{row.number:>3}  {words}"


def _counts(added: int, removed: int) -> str:
    return (f" +{added}" if added else "") + (f" -{removed}" if removed else "")


Display = tuple[dict[str, Any], dict[str, Any]]
"""Data by media type, and metadata, as `_repr_mimebundle_` returns them."""
_MAX_SHOWN_BYTES = 10_000_000
_BITMAPS = (".png", ".jpg", ".jpeg", ".gif")
"""Suffixes of files that every front end shows as a picture and never as a page."""


def run_display(run: RunRecord) -> Display:
    """Return the bundle and the metadata of a run's card, as the run's cell shows it."""
    card = Card(folder=run.folder, trajectory=run.trajectory)
    return card.final() if run.context.session is None else card.live(), card.metadata


class ShownFile(RunFile):
    """A file that the model left. A cell shows it as a picture, sound, text, or a page without its scripts."""

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        files = self.path
        for _ in PurePath(self.name).parts:
            files = files.parent
        saved = ev.ArtifactSaved(path=self.name, mime=self.mime, size=self.size, sha256="")
        (artifact,) = load_artifacts([saved], files.parent, each=_MAX_SHOWN_BYTES, together=_MAX_SHOWN_BYTES)
        if artifact.data is not None and artifact.suffix in _BITMAPS and not decoding_warning(artifact):
            shown = {self.mime: base64.b64encode(artifact.data).decode("ascii")}
        else:
            shown = {"text/html": card_html(artifact_html(artifact, unfolded=True))}
        return {**shown, "text/plain": repr(self)}
