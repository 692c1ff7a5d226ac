"""JupyterLite, as docs/how-to/jupyterlite.md says: it shows saved runs with the whole view."""

from __future__ import annotations

import functools
import http.server
import os
import subprocess
import sys
import threading
import venv
from collections.abc import Iterator
from pathlib import Path

import course
import nbformat
import pytest
from nbclient import NotebookClient
from playwright.sync_api import Page, expect
from servers import BUILT
from warm_kernels import kernel_environment

pytestmark = pytest.mark.campaign
CACHE = Path(__file__).parents[2] / ".cache" / "jupyterlite"
PACKAGES = ("jupyterlite-core==0.8.*", "jupyterlab-server>=2.27")


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    """The address of a JupyterLite with the first notebook, saved after a run, and our view."""
    content, shown = tmp_path / "content", tmp_path / "site"
    content.mkdir()
    notebook = course.shipped("01-first-task")
    environment = {**kernel_environment(tmp_path), "LLM_SANDBOX_ISOLATION": "process"}
    (tmp_path / "data").symlink_to(course.FOLDER / "data")
    NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute(
        env=environment
    )
    nbformat.write(notebook, content / "01-first-task.ipynb")
    if not (CACHE / "ready").exists():
        venv.create(CACHE, with_pip=True, clear=True)
        subprocess.run([CACHE / "bin" / "python", "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
        (CACHE / "ready").touch()
    extension = CACHE / "share" / "jupyter" / "labextensions" / "llm-sandbox-nb"
    extension.parent.mkdir(parents=True, exist_ok=True)
    if not extension.is_symlink():
        extension.symlink_to(BUILT)
    words = [CACHE / "bin" / "jupyter", "lite", "build", "--contents", content, "--output-dir", shown]
    subprocess.run(words, cwd=tmp_path, env=os.environ, check=True, stdout=sys.stderr)
    handler = functools.partial(_Quiet, directory=str(shown))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_a_saved_notebook_shows_its_runs(site: str, page: Page) -> None:
    page.goto(f"{site}/lab/index.html?path=01-first-task.ipynb")
    page.locator(".jp-Dialog").get_by_role("button", name="No Kernel").click()
    view = page.locator(".lsn-view").first
    view.scroll_into_view_if_needed()
    expect(view.locator(".lsn-header .lsn-badge")).to_have_text("Submitted, not checked")
    expect(view.locator(".lsn-step")).to_have_count(3)
    expect(view.get_by_role("button", name="Rewind")).to_have_count(0)
