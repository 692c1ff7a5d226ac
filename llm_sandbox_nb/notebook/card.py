"""The card of a run: the MIME bundle that a notebook shows, updates in place, and keeps.

While the run is under way a bundle costs about the same at any step: each step is rendered once, the last
ones whole, some before in one line each. The last bundle is whole, within `Caps`, and says what was left out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llm_sandbox_nb.notebook import card_page as page
from llm_sandbox_nb.notebook.artifacts import Artifact, artifact_html, decode
from llm_sandbox_nb.notebook.caps import Caps
from llm_sandbox_nb.notebook.card_bundle import MIME, trajectory_json
from llm_sandbox_nb.notebook.card_decisions import decisions
from llm_sandbox_nb.notebook.card_files import load_artifacts, relative_path
from llm_sandbox_nb.notebook.card_packing import held_by, packed
from llm_sandbox_nb.notebook.card_plain import card_text
from llm_sandbox_nb.notebook.card_steps import is_closed, step_html, step_line
from llm_sandbox_nb.notebook.card_text import clip, escape
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.trajectory import Step, Trajectory

LIVE_WHOLE = 3
"""Steps shown whole while the run is under way."""
LIVE_LINES = 12
"""Steps before those that have a line of their own."""
UNFOLDED = 12
"""Steps of a finished run that are not folded."""

Bundle = dict[str, Any]


class Card:
    """Takes a run's events and renders them. Knows nothing of how a notebook is reached."""

    def __init__(self, caps: Caps | None = None, folder: Path | None = None) -> None:
        self.caps = caps or Caps()
        self.folder = folder
        """The run's folder, once it is known: where the files are."""
        self.trajectory = Trajectory()
        self._whole: dict[int, str] = {}
        self._lines: dict[int, str] = {}
        self._files: dict[tuple[str, str], str] = {}

    def add(self, event: ev.Event) -> None:
        """Take one more event into account."""
        steps = self.trajectory.steps
        self.trajectory.add(event)
        if self.trajectory.steps is not steps:  # another branch: its steps have the same numbers
            self._whole.clear()
            self._lines.clear()
        number = getattr(event, "step", None)
        if number is not None:
            self._whole.pop(number, None)
            self._lines.pop(number, None)

    @property
    def metadata(self) -> dict[str, Any]:
        """To be sent with every bundle, for an update without it erases what was there."""
        start = self.trajectory.start
        return {
            "llm_sandbox": {"run_id": start.run_id if start else None, "schema_version": ev.SCHEMA_VERSION}
        }

    def live(self) -> Bundle:
        """The run as it stands: bounded, without the durable part."""
        steps = self.trajectory.steps
        shown = steps[-LIVE_WHOLE:]
        lined = steps[-LIVE_WHOLE - LIVE_LINES : -LIVE_WHOLE]
        parts = [self._head(live=True, limit=self.caps.live_text)]
        if hidden := len(steps) - len(shown) - len(lined):
            parts.append(f"<div class='lsn-line'>… {hidden} earlier steps …</div>")
        parts += [self._line(step) for step in lined]
        parts += [self._live_step(step) for step in shown]
        parts += self._live_files()
        parts.append(self._notes(self.trajectory.notes[-2:]))
        parts.append(self._notes(decisions(self.trajectory.controls[-2:])))
        return {
            "text/html": page.card_html("".join(parts)),
            "text/plain": card_text(self.trajectory, live=True),
        }

    def final(self) -> Bundle:
        """The whole run, within the caps."""
        trajectory, caps = self.trajectory, self.caps
        saved = trajectory.artifacts.values()
        artifacts = load_artifacts(saved, self.folder, each=caps.artifact, together=caps.run)
        parts = [self._head(live=False, limit=caps.text), *self._all_steps()]
        parts += [self._notes(decisions(trajectory.controls)), self._notes(trajectory.notes)]
        parts += [self._notes(trajectory.skipped, "Left out: ")]
        figures = {one.path: artifact_html(one) for one in artifacts if not self._is_answer(one)}
        parts += figures.values()
        parts.append(page.answer_html(trajectory.answer, caps.text))
        places = {path: place for place, path in enumerate(figures)}
        data = {one.path: one.data for one in artifacts}
        held = {path: place for path, place in places.items() if held_by(figures[path]) == data[path]}
        bundle = trajectory_json(trajectory, artifacts, caps, held)
        parts.append(self._caps_note(artifacts, bundle["text_limit"]))
        return {
            MIME: packed(bundle),
            "text/html": page.card_html("".join(parts)),
            "text/plain": card_text(trajectory, live=False),
        }

    def _head(self, *, live: bool, limit: int) -> str:
        start, sandbox = self.trajectory.start, self.trajectory.sandbox
        parts = [page.header_html(self.trajectory, live=live)]
        parts.append(page.protection_html(sandbox.protection) if sandbox else "")
        parts.append(page.task_html(start.task, limit) if start else "")
        return "".join(parts)

    def _line(self, step: Step) -> str:
        if step.number not in self._lines:
            self._lines[step.number] = step_line(step)
        return self._lines[step.number]

    def _live_step(self, step: Step) -> str:
        if step.number in self._whole:
            return self._whole[step.number]
        rendered = step_html(step, limit=self.caps.live_text)
        if is_closed(step):
            self._whole[step.number] = rendered
        return rendered

    def _live_files(self) -> list[str]:
        newest = list(self.trajectory.artifacts.values())[-8:]
        missing = [one for one in newest if (one.path, one.sha256) not in self._files]
        for artifact, saved in zip(self._load_live(missing), missing, strict=True):
            self._files[saved.path, saved.sha256] = artifact_html(artifact)
        return [self._files[one.path, one.sha256] for one in newest]

    def _load_live(self, saved: list[ev.ArtifactSaved]) -> list[Artifact]:
        bound = self.caps.live_files // 4
        folder = self.folder
        return load_artifacts(saved, folder, each=bound, together=self.caps.live_files)

    def _all_steps(self) -> list[str]:
        steps, room = self.trajectory.steps, self.caps.page
        rendered: list[str] = []
        for place, step in enumerate(reversed(steps)):
            whole = step_html(step, limit=self.caps.text, unfolded=place < UNFOLDED) if room > 0 else ""
            room -= len(whole)
            rendered.append(whole if room > 0 else step_line(step))
        return rendered[::-1]

    def _is_answer(self, artifact: Artifact) -> bool:
        """Whether the file holds nothing but the answer, which has a place of its own."""
        answer = self.trajectory.answer
        if artifact.path != "answer.txt" or artifact.data is None or answer is None:
            return False
        return decode(artifact.data).strip() == answer.strip()

    def _notes(self, notes: list[str], prefix: str = "") -> str:
        lines = (f"<div class='lsn-quiet'>{escape(prefix + clip(note, 500))}</div>" for note in notes[:50])
        return "".join(lines)

    def _caps_note(self, artifacts: list[Artifact], text_limit: int | None) -> str:
        said = []
        if any(artifact.data is None for artifact in artifacts):
            said.append("some files are only in the run's folder")
        if text_limit is not None:
            said.append(f"texts in the saved record are clipped to {text_limit:,} characters")
        where = f"Run folder: {relative_path(self.folder) or self.folder}" if self.folder else ""
        note = ". ".join(filter(None, ["; ".join(said).capitalize(), where]))
        return f"<div class='lsn-quiet'>{escape(note)}</div>" if note else ""
