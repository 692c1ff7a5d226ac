"""A real JupyterLab and Notebook 7 on loopback, and pages that open notebooks in them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import support
from jupyter_process import JupyterProcess
from playwright.sync_api import Error, Page

ROOT = Path(__file__).parents[2]
BUILT = ROOT / "llm_sandbox_nb" / "labextension"
App = Literal["lab", "notebook"]
APPS: tuple[App, ...] = ("lab", "notebook")
IN_FULL = ["lab", pytest.param("notebook", marks=pytest.mark.campaign)]
"""For what is the same code in the same surroundings in both: as a rule Lab."""
PATIENCE = 150_000
"""Milliseconds that a page may take for anything that is not measured: a busy machine takes a minute to start a run."""
NO_NEWS = {"fetchNews": "false", "checkForUpdates": False, "doNotDisturbMode": True}
_STARTED = """() => window.jupyterapp && Promise.race([
  jupyterapp.restored.then(() => true), new Promise(done => setTimeout(done, 1_000, false))
])"""
_EMPTY_LAB = """() => {
  const { shell } = jupyterapp;
  for (const widget of [...shell.widgets('main')]) {
    widget.context?.dispose();
    widget.dispose();
  }
  shell.activateById('filebrowser');
  shell.collapseRight();
  localStorage.clear();
  sessionStorage.clear();
  window.isEmptyLab = true;
}"""
_USE_EMPTY_LAB = """() => {
  const empty = window.isEmptyLab === true;
  window.isEmptyLab = false;
  return empty;
}"""
_OPEN = """options => jupyterapp.commands.execute('docmanager:open', options).then(() => null)"""
_CURRENT = "() => jupyterapp.shell.currentWidget?.context?.isReady"
# Chromium drops a socket when a container comes or goes, and with it the kernel's answer: reconnect, as a person does.
_KERNEL = """async () => {
  const { session, isReady } = jupyterapp.shell.currentWidget.context.sessionContext;
  if (!isReady || !session?.kernel) return false;
  const late = new Promise(done => setTimeout(done, 10_000, false));
  if (await Promise.race([session.kernel.info.then(() => true), late])) return true;
  void session.kernel.reconnect();
  return false;
}"""


class Jupyter(JupyterProcess):
    """One server that shows both JupyterLab and Notebook 7, with our built extension."""

    module = "jupyterlab"
    without = ("jupyter_lsp",)

    def __init__(
        self,
        folder: Path,
        *,
        extension: bool = True,
        dark: bool = False,
        isolation: str = "process",
        python: Path | None = None,
        options: tuple[str, ...] = (),
    ) -> None:
        """`extension` says whether the page gets ours; the server has its half in any case.

        `python` is that of another environment, with another version of Lab and Notebook.
        """
        self.python = str(python or sys.executable)
        self.is_oldest = python is not None
        self.settings = folder / "settings"
        extensions = folder / "labextensions"
        extensions.mkdir(parents=True, exist_ok=True)
        (extensions / "llm-sandbox-nb").symlink_to(BUILT)
        super().__init__(
            folder,
            f"--LabApp.workspaces_dir={folder / 'workspaces'}",
            f"--JupyterNotebookApp.workspaces_dir={folder / 'workspaces'}",
            f"--LabApp.extra_labextensions_path={extensions}",
            f"--JupyterNotebookApp.extra_labextensions_path={extensions}",
            "--LabApp.expose_app_in_browser=True",
            "--JupyterNotebookApp.expose_app_in_browser=True",
            "--LabApp.extension_manager=readonly",
            *options,
            env={"LLM_SANDBOX_ISOLATION": isolation, "JUPYTERLAB_SETTINGS_DIR": str(self.settings)},
        )
        self.set("@jupyterlab/apputils-extension/notification", NO_NEWS)
        self.set("@jupyterlab/docmanager-extension/plugin", {"autosave": False})
        if dark:
            self.set("@jupyterlab/apputils-extension/themes", {"theme": "JupyterLab Dark"})
        if not extension:
            self.show_extension(False)

    def set(self, name: str, values: dict[str, Any] | None) -> None:
        """Set what a person sets in the settings editor, for pages that are opened from now on; None resets it."""
        path = self.settings / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        if values is None:
            path.unlink(missing_ok=True)
        else:
            path.write_text(json.dumps(values))

    def show_extension(self, shown: bool) -> None:
        path = self.folder / "config" / "labconfig" / "page_config.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"disabledExtensions": {"llm-sandbox-nb": not shown}}))

    def add_kernel(self, name: str, *overlay: Path, before: tuple[str, ...] = ()) -> None:
        """A kernel of this name: with the packages of a folder before those installed, and started by `before`."""
        spec = self.folder / "data" / "kernels" / name
        spec.mkdir(parents=True, exist_ok=True)
        argv = [*before, sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        env = {"PYTHONPATH": os.pathsep.join(map(str, [*overlay, ROOT]))}
        described = {"argv": argv, "env": env, "display_name": name, "language": "python"}
        (spec / "kernel.json").write_text(json.dumps(described))

    def start(self, timeout: float = PATIENCE / 1000) -> Jupyter:
        """Start it; it outlives the test that does so."""
        before = support.child_pids()
        super().start(timeout)
        support.KEPT_PIDS.update(support.child_pids() - before)
        return self

    def clear(self) -> None:
        if self.process and self.process.poll() is None:
            for session in self.get("api/sessions"):
                self.ask(f"api/sessions/{session['id']}", "DELETE")


class FrontEnd:
    """JupyterLab or Notebook of a running server, for one test: with a folder of notebooks that no other test has."""

    def __init__(self, jupyter: Jupyter, app: App = "lab", folder: str = "") -> None:
        self.jupyter = jupyter
        self.app = app
        self.folder = folder
        self.root = jupyter.root / folder
        self.root.mkdir(parents=True, exist_ok=True)

    def address(self, path: str) -> str:
        viewer = "lab/tree" if self.app == "lab" else "notebooks" if path.endswith(".ipynb") else "edit"
        return f"{self.jupyter.url}{viewer}/{self.path(path)}?reset&token={self.jupyter.token}"

    def path(self, name: str) -> str:
        return f"{self.folder}/{name}" if self.folder else name

    def first_notebook(self) -> str:
        shutil.copytree(ROOT / "notebooks" / "data", self.root / "data", dirs_exist_ok=True)
        shutil.copy(ROOT / "notebooks" / "01-first-task.ipynb", self.root)
        return "01-first-task.ipynb"

    def notebook(self, name: str, *cells: str, kernel: str = "python3") -> str:
        code = [
            {"cell_type": "code", "id": f"c{number}", "metadata": {}, "outputs": [], "source": source}
            | {"execution_count": None}
            for number, source in enumerate(cells)
        ]
        spec = {"kernelspec": {"name": kernel, "display_name": kernel, "language": "python"}}
        content = {"cells": code, "metadata": spec, "nbformat": 4, "nbformat_minor": 5}
        (self.root / name).write_text(json.dumps(content))
        return name


@contextlib.contextmanager
def jupyter(folder: Path, **options: Any) -> Iterator[Jupyter]:
    """A running server; it may outlive single tests."""
    if not (BUILT / "package.json").is_file():
        pytest.fail("the extension is not built: run `make labextension`", pytrace=False)
    server = Jupyter(folder, **options)
    before = set(support.KEPT_PIDS)
    try:
        yield server.start()
    finally:
        server.stop()
        support.KEPT_PIDS.intersection_update(before)


def empty_lab(page: Page) -> None:
    """Close what is open in a Lab page, so that the next notebook or run opens there: a load takes seconds of CPU."""
    page.evaluate(_EMPTY_LAB)


def _is_empty_lab(page: Page, server: FrontEnd) -> bool:
    """True once after `empty_lab`; a navigation makes it false."""
    if server.app != "lab" or not page.url.startswith(f"{server.jupyter.url}lab"):
        return False
    return bool(page.evaluate(_USE_EMPTY_LAB))


def open_notebook(page: Page, server: FrontEnd, path: str, *, kernel: bool = True) -> None:
    """Open a notebook in an empty Lab if the page shows one, else by loading the page."""
    if _is_empty_lab(page, server):
        page.evaluate(_OPEN, {"path": server.path(path)})
    else:
        page.goto(server.address(path))
    page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=PATIENCE)
    wait_in_page(page, _STARTED)
    wait_in_page(page, _CURRENT)
    if kernel:
        wait_for_kernel(page)


def open_as_run(page: Page, server: FrontEnd, path: str) -> None:
    """Open a file as *Open With*, *Trajectory* does. Notebook opens it in another page, whose address says so."""
    if server.app == "notebook":
        page.goto(f"{server.address(path)}&factory=Trajectory")
        return
    if not _is_empty_lab(page, server):
        page.goto(f"{server.jupyter.url}lab?reset&token={server.jupyter.token}")
    wait_in_page(page, _STARTED)
    page.evaluate(_OPEN, {"path": server.path(path), "factory": "Trajectory"})


def wait_for_kernel(page: Page) -> None:
    wait_in_page(page, _KERNEL)


def wait_in_page(page: Page, expression: str) -> None:
    """Until a function, which may be asynchronous, says true in the page; `wait_for_function` does not await it.

    Lab loads a page anew, under another name, when its workspace is open elsewhere: then it is asked again.
    """
    deadline = time.monotonic() + PATIENCE / 1000
    while True:
        with contextlib.suppress(Error):
            if page.evaluate(expression):
                return
        assert time.monotonic() < deadline, expression
        page.wait_for_timeout(50)


def command(page: Page, name: str) -> None:
    """Run a command of the application; its result stays in the page."""
    page.evaluate(f"() => jupyterapp.commands.execute({json.dumps(name)}).then(() => null)")


def run_all(page: Page) -> None:
    command(page, "notebook:run-all-cells")


def bundles(page: Page) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = page.evaluate(
        """mime => jupyterapp.shell.currentWidget.context.model.toJSON().cells
             .flatMap(cell => cell.outputs ?? []).map(output => output.data ?? {}).filter(data => data[mime])""",
        support.MIME,
    )
    return [support.record_of(data) for data in found]


def show_panel(page: Page) -> None:
    command(page, "llm-sandbox:show-panel")
    page.wait_for_selector(".lsn-panel", state="visible")
