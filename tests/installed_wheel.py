"""The wheel of a folder, as a person gets it: installed into an empty environment, where the demo and JupyterLab work.

    python tests/installed_wheel.py dist

The release calls it on the files that it then publishes (`make wheel-check`).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
ISOLATION = "process"
"""The demo's commands come from a script of ours, and no other isolation works on every machine that releases."""


PATIENCE = 1800
"""Seconds for one program: on a busy machine, installing JupyterLab alone took more than ten minutes."""


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel, its extras `demo` and `lab`, and nothing of the checkout."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "environment" / "bin" / "python"

    def call(self, *words: str | Path) -> str:
        """What one of its programs prints; it sees no setting of this process for Python or Jupyter.

        Raises:
            AssertionError: the program failed.
        """
        environment = {
            name: text for name, text in os.environ.items() if not name.startswith(("PYTHON", "JUPYTER"))
        }
        environment["PATH"] = f"{self.python.parent}{os.pathsep}{os.environ['PATH']}"
        command = [str(self.python), *map(str, words)]
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        said = done.stdout + done.stderr
        assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{said[-4000:]}"
        return said

    def labextensions(self) -> str:
        """The lines of `jupyter labextension list`, without colours."""
        said = self.call(self.python.with_name("jupyter-labextension"), "list")
        return re.sub(r"\x1b\[[0-9;]*m", "", said)

    def demo(self) -> Path:
        """The first notebook of the course with its results: `make demo`, without the package of the checkout."""
        out = self.folder / "out"
        self.call(ROOT / "notebooks" / "demo.py", "--out", out, "--isolation", ISOLATION)
        return out / "01-first-task.ipynb"


def install(wheel: Path, folder: Path) -> Installed:
    """Install `wheel` into a new environment in `folder`."""
    venv.create(folder / "environment", with_pip=True)
    installed = Installed(folder)
    installed.call("-m", "pip", "install", "--quiet", f"{wheel.resolve()}[demo,lab]")
    place = installed.call("-c", "import llm_sandbox_nb; print(llm_sandbox_nb.__file__)")
    assert place.startswith(str(folder)), f"{place} is not what was installed"
    return installed


def has_view(installed: Installed, version: str) -> bool:
    line = rf"llm-sandbox-nb v{re.escape(version)} enabled OK \(python, llm-sandbox-nb\)"
    return re.search(line, installed.labextensions()) is not None


def main(dist: Path) -> None:
    """Try the only wheel in `dist`.

    Raises:
        AssertionError: something of it does not work.
    """
    wheels = list(dist.glob("llm_sandbox_nb-*.whl"))
    assert len(wheels) == 1, f"{dist} holds {len(wheels)} wheels: call `make build` first"
    version = wheels[0].name.split("-")[1]
    with tempfile.TemporaryDirectory() as temporary:
        installed = install(wheels[0], Path(temporary))
        assert has_view(installed, version), (
            f"JupyterLab does not list the extension:\n{installed.labextensions()}"
        )
        notebook = installed.demo()
        assert "vnd.llm-sandbox.trajectory+json" in notebook.read_text("utf-8"), "the demo left no card"
    print(f"{wheels[0].name}: the demo ran, JupyterLab lists the extension")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
