"""Environments for packages that cannot share ours: created once, kept below `.cache`, renewed when the pins change."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support import PATIENCE

_CACHE = Path(__file__).parents[1] / ".cache"


def environment(name: str, *requirements: str, lock: Path | None = None) -> Path:
    """Return the folder of the programs of an environment with these requirements and all packages of a lock file."""
    folder = _CACHE / name
    ready = folder / "ready"
    wanted = " ".join(requirements) + (lock.read_text() if lock else "")
    if not ready.exists() or ready.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True, timeout=PATIENCE)
        install = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", *requirements]
        install += ["-r", str(lock)] if lock else []
        subprocess.run(install, check=True, timeout=20 * PATIENCE)
        ready.write_text(wanted)
    return folder / "bin"
