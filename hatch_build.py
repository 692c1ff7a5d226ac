"""Build hook: the part for JupyterLab and the exported page are built with npm and go into wheel and sdist.

A checkout builds them anew each time, so that no old ones are shipped. What comes from an sdist has them already and
needs no Node. Without Node, or for an editable install, the package is made without them, and says so.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

EXTENSION = "llm_sandbox_nb/labextension"
PAGE = "llm_sandbox_nb/notebook/page"
SHARED = "share/jupyter/labextensions/llm-sandbox-nb"
NODE = (20, 19)
"""The oldest Node that the bundler runs on."""


class AssetsHook(BuildHookInterface):  # type: ignore[type-arg]
    """Builds what is not Python before files are collected."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling; `version` is `editable` for an editable install."""
        root = Path(self.root)
        if version == "editable":
            return
        if not (root / "PKG-INFO").exists():
            self._build(root / "labextension")
        if not (root / EXTENSION / "package.json").exists():
            missing = (
                "The view for JupyterLab and for exported pages is left out: it needs Node "
                f"{NODE[0]}.{NODE[1]} or later with npm. Notebooks and pages show a plain card; all else works."
            )
            self.app.display_warning(missing)
            tell_terminal(f"llm-sandbox-nb: {missing}")
        elif self.target_name == "wheel":
            build_data["shared_data"][str(root / EXTENSION)] = SHARED

    def _build(self, folder: Path) -> None:
        npm = shutil.which("npm")
        if npm is None or node_version() < NODE:
            return
        if not installed(folder):
            subprocess.run([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=folder, check=True)
        subprocess.run([npm, "run", "--silent", "build"], cwd=folder, check=True)


def tell_terminal(text: str) -> None:
    """Print where a person reads it, if anywhere: pip keeps all that a build prints to itself."""
    try:
        with open("/dev/tty", "w", encoding="utf-8") as terminal:
            terminal.write(f"\n{text}\n")
    except OSError:
        return


def node_version() -> tuple[int, ...]:
    """Major and minor of the Node on the PATH; nothing when there is none."""
    try:
        said = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ()
    return tuple(int(part) for part in said.strip().removeprefix("v").split(".")[:2])


def installed(folder: Path) -> bool:
    """Whether `node_modules` is there and no older than the lock file."""
    mark = folder / "node_modules" / ".package-lock.json"
    return mark.exists() and mark.stat().st_mtime >= (folder / "package-lock.json").stat().st_mtime
