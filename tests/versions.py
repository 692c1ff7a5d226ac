"""Other versions of Jupyter's parts, beside those that are installed: fetched once, and kept in `.cache`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from importlib.metadata import version
from pathlib import Path

CACHE = Path(__file__).parents[1] / ".cache"
IPYKERNELS = ("6.31.0", "7.3.0", "7.4.0")
OLDEST = ("jupyterlab==4.4.*", "notebook==7.4.*")
COLLABORATION = (
    "jupyter-collaboration==5.0.4", "jupyter-collaboration-ui==3.0.4", "jupyter-docprovider==3.0.4",
    "jupyter-server-ydoc==3.0.4", "jupyter-ydoc==4.2.1", "jupyter-server-fileid==0.10.0", "pycrdt==0.14.13",
    "pycrdt-store==0.1.5", "pycrdt-websocket==0.16.5", "sqlite-anyio==0.2.10",
)  # fmt: skip
"""What shares notebooks between pages, and all that it needs besides JupyterLab."""
NBCLASSIC = ("nbclassic==1.3.3", "nest-asyncio==1.6.0", "ipython-genutils==0.2.0")
CONSOLE = ("jupyter-console==6.6.3",)


def ipykernel(version: str) -> Path:
    """A folder with this ipykernel alone, to be put before what is installed."""
    folder = CACHE / f"ipykernel-{version}"
    if not (folder / "ipykernel").exists():
        partial = CACHE / f"ipykernel-{version}.{os.getpid()}"
        _pip("install", "--target", str(partial), f"ipykernel=={version}")
        _keep(partial, folder)
    return folder


def oldest_front_ends() -> Path:
    """The Python of an environment with the oldest JupyterLab and Notebook, and all else from this one."""
    return _environment(f"front-ends-{'-'.join(OLDEST).replace('==', '').replace('.*', '')}", OLDEST)


def shared_notebooks() -> Path:
    """The Python of an environment whose JupyterLab shares notebooks between pages, and all else from this one."""
    lab = version("jupyterlab")  # it finds its page below its own environment
    packages = (*COLLABORATION, f"jupyterlab=={lab}")
    return _environment(f"collaboration-{COLLABORATION[0].partition('==')[2]}-lab-{lab}", packages)


def nbclassic() -> Path:
    """The Python of an environment with the notebook of before 2023, and all else from this one."""
    return _environment("nbclassic-1.3.3", NBCLASSIC)


def console() -> Path:
    """The Python of an environment with jupyter console, and all else from this one."""
    return _environment("console-6.6.3", CONSOLE)


def _environment(name: str, packages: tuple[str, ...]) -> Path:
    folder = CACHE / name
    if not folder.exists():
        partial = CACHE / f"{folder.name}.{os.getpid()}"
        venv.create(partial, symlinks=True)
        _pip("--python", str(partial / "bin" / "python"), "install", *packages)
        (site,) = partial.glob("lib/python*/site-packages")
        (site / "installed.pth").write_text(sysconfig.get_path("purelib") + "\n")
        _keep(partial, folder)
    return folder / "bin" / "python"


def _keep(partial: Path, folder: Path) -> None:
    """Give what was fetched its name, unless another process was quicker."""
    try:
        partial.rename(folder)
    except OSError:
        if not folder.exists():
            raise
        shutil.rmtree(partial)


def _pip(*words: str) -> None:
    before = words[: words.index("install")]
    rest = words[words.index("install") + 1 :]
    pip = [sys.executable, "-m", "pip", *before, "install", "--quiet", "--no-deps", *rest]
    subprocess.run(pip, check=True, timeout=300)
