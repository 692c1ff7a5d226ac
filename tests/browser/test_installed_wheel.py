"""The wheel that a release publishes, in an empty environment: the demo runs, and its JupyterLab shows the card."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from installed_wheel import Installed, has_view, install
from jupyter_process import JupyterProcess
from live_cells import BADGE
from playwright.sync_api import Page, expect

from llm_sandbox_nb.version import __version__

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.campaign, pytest.mark.timeout(1800)]


class InstalledLab(JupyterProcess):
    """JupyterLab of an environment, which sees no file of the checkout."""

    module = "jupyterlab"
    without = ("jupyter_lsp",)

    def __init__(self, installed: Installed, folder: Path) -> None:
        super().__init__(folder, "--LabApp.extension_manager=readonly")
        self.python = str(installed.python)

    def _environment(self) -> dict[str, str]:
        return {"IPYTHONDIR": str(self.folder / "ipython"), "PYTHONPATH": ""}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """An environment with what `make build`, the command of the release, makes of a copy of this checkout."""
    copy = tmp_path_factory.mktemp("checkout")
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in filter(None, subprocess.check_output(words, cwd=ROOT, text=True).split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    (copy / "labextension" / "node_modules").symlink_to(ROOT / "labextension" / "node_modules")
    subprocess.run(["make", "build", f"VENV={sys.prefix}"], cwd=copy, check=True, timeout=900)
    (wheel,) = (copy / "dist").glob("*.whl")
    return install(wheel, tmp_path_factory.mktemp("installed"))


def test_jupyterlab_lists_the_extension_only_with_the_wheel(installed: Installed) -> None:
    assert has_view(installed, __version__)
    assert not has_view(installed, "0.0.0")


def test_the_demo_runs_and_jupyterlab_shows_its_cards(
    installed: Installed, page: Page, tmp_path: Path
) -> None:
    notebook = installed.demo()
    server = InstalledLab(installed, tmp_path)
    try:
        server.start()
        shutil.copy(notebook, server.root)
        page.goto(f"{server.url}lab/tree/{notebook.name}?reset&token={server.token}")
        expect(page.locator(BADGE).first).to_have_text("Submitted, not checked")
    finally:
        server.stop()
