"""How a notebook shows a run and its files when they are the last value of a cell.

Everything comes from the model, so it is shown by the code of the card: nothing runs, nothing loads.
"""

from __future__ import annotations

import base64
from pathlib import PurePath
from typing import Any

from llm_sandbox_nb.agent.run_record import RunRecord
from llm_sandbox_nb.card.artifacts import artifact_html, load_artifacts
from llm_sandbox_nb.card.card import Card
from llm_sandbox_nb.card.page import card_html
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.run_folder import RunFile

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
