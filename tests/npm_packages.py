"""npm packages that tests run, in the versions of a lock file, installed below `.cache`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from support import PATIENCE

_CACHE = Path(__file__).parents[1] / ".cache" / "npm"


def installed(source: Path) -> Path:
    """The `node_modules` for the package.json and package-lock.json in the folder `source`."""
    lock = (source / "package-lock.json").read_text()
    folder = _CACHE / source.name
    ready = folder / "ready"
    if not ready.exists() or ready.read_text() != lock:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(source, folder)
        install = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel", "error"]
        subprocess.run(install, cwd=folder, check=True, timeout=5 * PATIENCE)
        ready.write_text(lock)
    return folder / "node_modules"
