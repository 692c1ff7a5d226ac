"""How much of a run a notebook keeps within itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Caps:
    """Bounds of the saved card. What is left out stays in the run's folder, and the card says so.

    Bytes of files are counted raw; what cannot be compressed is a third larger in a notebook, as base64.
    """

    artifact: int = 1_000_000
    """Bytes of one file that is embedded."""
    run: int = 10_000_000
    """Bytes of all files of a run that are embedded."""
    events: int = 5_000_000
    """Characters of all events in the bundle; longer texts within them are clipped until they fit."""
    text: int = 20_000
    """Characters shown of one thought, command or output once the run is over."""
    page: int = 2_000_000
    """Characters of all steps shown; earlier ones become one line each."""
    live_text: int = 4_000
    """Characters shown of one text while the run is under way."""
    live_files: int = 300_000
    """Bytes of files shown while the run is under way."""
