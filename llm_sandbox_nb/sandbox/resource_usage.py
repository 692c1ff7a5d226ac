"""What a sandbox has used of memory and disk: asked of kernel and engine, never of what runs inside."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ResourceUsage:
    """Bytes. None: not known, because the engine is on another machine, the kernel is old, or there is none."""

    memory_peak: int | None = None
    """The most at one time, all processes, the kernel's part and cached files included."""
    disk: int | None = None
    """What its files take beyond the image, at the time of asking."""
