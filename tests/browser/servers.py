"""A real JupyterLab and a real Notebook 7 on loopback, and a page that opens notebooks in them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import support
from jupyter_process import JupyterProcess
from playwright.sync_api import Page

ROOT = Path(__file__).parents[2]
BUILT = ROOT / "llm_sandbox_nb" / "labextension"
App = Literal["lab", "notebook"]
APPS: tuple[App, ...] = ("lab", "notebook")
ALIKE: tuple[App, ...] = support.size(APPS[:1], APPS)
"""For what is the same code in the same surroundings in both: as a rule one of them."""
PATIENCE = 150_000
"""Milliseconds that a page may take for anything that is not measured: a busy machine takes a minute to start a run."""
_CLASSES = {"lab": "LabApp", "notebook": "JupyterNotebookApp"}
_MODULES = {"lab": "jupyterlab", "notebook": "notebook"}
_NO_NEWS = {"fetchNews": "false", "checkForUpdates": False, "doNotDisturbMode": True}
_KERNEL = """async () => {
  await jupyterapp.restored;
  const widget = jupyterapp.shell.currentWidget;
  await widget.context.ready;
  const session = widget.context.sessionContext;
  await session.ready;
  while (!session.session?.kernel) await new Promise(done => setTimeout(done, 50));
  await session.session.kernel.info;
}"""


class FrontEnd(JupyterProcess):
    """JupyterLab or Notebook with our built extension."""

    def __init__(
        self,
        folder: Path,
        app: App,
        *,
        extension: bool = True,
        dark: bool = False,
        isolation: str = "process",
        python: Path | None = None,
        options: tuple[str, ...] = (),
    ) -> None:
        """`extension` says whether the page gets ours; the server has its half in any case.

        `python` is that of another environment, with another version of Lab or Notebook.
        """
        self.app = app
        self.without = ("jupyter_lsp",)
        self.python = str(python or sys.executable)
        self.is_oldest = python is not None
        self.module = _MODULES[app]
        name = _CLASSES[app]
        settings, extensions = folder / "settings", folder / "labextensions"
        write_setting(settings, "@jupyterlab/apputils-extension/notification", _NO_NEWS)
        if dark:
            write_setting(settings, "@jupyterlab/apputils-extension/themes", {"theme": "JupyterLab Dark"})
        extensions.mkdir(parents=True, exist_ok=True)
        if extension:
            (extensions / "llm-sandbox-nb").symlink_to(BUILT)
        else:
            without = folder / "config" / "labconfig" / "page_config.json"
            without.parent.mkdir(parents=True)
            without.write_text(json.dumps({"disabledExtensions": {"llm-sandbox-nb": True}}))
        super().__init__(
            folder,
            f"--{name}.workspaces_dir={folder / 'workspaces'}",
            # Notebook's pages get extensions from where JupyterLab, which its server has too, says.
            *(f"--{one}.extra_labextensions_path={extensions}" for one in {name, "LabApp"}),
            f"--{name}.expose_app_in_browser=True",
            "--LabApp.extension_manager=readonly",
            *options,
            env={"LLM_SANDBOX_ISOLATION": isolation, "JUPYTERLAB_SETTINGS_DIR": str(settings)},
        )

    def address(self, path: str) -> str:
        """Where a notebook, or in Lab any file, is opened."""
        place = f"lab/tree/{path}?reset&" if self.app == "lab" else f"notebooks/{path}?"
        return f"{self.url}{place}token={self.token}"

    def first_notebook(self) -> str:
        """A fresh copy of the first notebook with its data."""
        shutil.copytree(ROOT / "notebooks" / "data", self.root / "data", dirs_exist_ok=True)
        shutil.copy(ROOT / "notebooks" / "01-first-task.ipynb", self.root)
        return "01-first-task.ipynb"

    def add_kernel(self, name: str, *overlay: Path, before: tuple[str, ...] = ()) -> None:
        """A kernel of this name: with the packages of a folder before those installed, and started by `before`."""
        spec = self.folder / "data" / "kernels" / name
        spec.mkdir(parents=True, exist_ok=True)
        argv = [*before, sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        env = {"PYTHONPATH": os.pathsep.join(map(str, [*overlay, ROOT]))}
        described = {"argv": argv, "env": env, "display_name": name, "language": "python"}
        (spec / "kernel.json").write_text(json.dumps(described))

    def notebook(self, name: str, *cells: str, kernel: str = "python3") -> str:
        """A notebook of these code cells."""
        code = [
            {"cell_type": "code", "id": f"c{place}", "metadata": {}, "outputs": [], "source": source}
            | {"execution_count": None}
            for place, source in enumerate(cells)
        ]
        spec = {"kernelspec": {"name": kernel, "display_name": kernel, "language": "python"}}
        content = {"cells": code, "metadata": spec, "nbformat": 4, "nbformat_minor": 5}
        (self.root / name).write_text(json.dumps(content))
        return name


def write_setting(folder: Path, name: str, values: dict[str, Any]) -> None:
    """What a person would have set in the settings editor."""
    path = folder / f"{name}.jupyterlab-settings"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values))


@contextlib.contextmanager
def front_end(folder: Path, app: App, **options: Any) -> Iterator[FrontEnd]:
    """A running one; it may outlive single tests."""
    if not (BUILT / "package.json").is_file():
        pytest.fail("the extension is not built: run `make labextension`", pytrace=False)
    server = FrontEnd(folder, app, **options)
    before = support.child_pids()
    try:
        server.start(PATIENCE / 1000)
        mine = support.child_pids() - before
        support.KEPT_PIDS.update(mine)
        yield server
        support.KEPT_PIDS.difference_update(mine)
    finally:
        server.stop()


def open_notebook(page: Page, server: FrontEnd, path: str, *, kernel: bool = True) -> None:
    """Open it and wait until its kernel answers."""
    page.goto(server.address(path))
    page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=PATIENCE)
    page.wait_for_function("() => !!window.jupyterapp")
    if kernel:
        page.evaluate(_KERNEL)


def command(page: Page, name: str) -> None:
    """Run a command of the application; its result stays in the page."""
    page.evaluate(f"() => jupyterapp.commands.execute({json.dumps(name)}).then(() => null)")


def run_all(page: Page) -> None:
    """Run all cells and wait for the end of the last."""
    command(page, "notebook:run-all-cells")


def bundles(page: Page) -> list[dict[str, Any]]:
    """The records that the notebook's outputs hold."""
    found: list[dict[str, Any]] = page.evaluate(
        """mime => jupyterapp.shell.currentWidget.context.model.toJSON().cells
             .flatMap(cell => cell.outputs ?? []).map(output => output.data ?? {}).filter(data => data[mime])""",
        support.MIME,
    )
    return [support.record_of(data) for data in found]


def show_panel(page: Page) -> None:
    """Bring our side panel to the front."""
    command(page, "llm-sandbox:show-panel")
    page.wait_for_selector(".lsn-panel", state="visible")
