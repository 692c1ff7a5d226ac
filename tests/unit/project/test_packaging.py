"""What is shipped: wheel and sdist build, hold what they should, and work in an empty environment."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager
from support import until
from versions import OLDEST

from llm_sandbox_nb.cli.setup_commands import OLDEST_FRONT_ENDS
from llm_sandbox_nb.version import __version__

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.timeout(1200)
KERNEL_OF_COLAB = (
    "ipython==7.34.0",
    "ipykernel==6.17.1",
    "jupyter-client<8",
    "tornado==6.3.3",
    "traitlets<5.10",
)
"""What Colab pinned in 2024, near enough."""


def call(
    *words: str | Path, cwd: Path | None = None, path: str | None = None
) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment |= {"PATH": path} if path else {}
    command = [str(word) for word in words]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{words}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Wheel and sdist of a copy of this checkout, so that nothing else builds at the same place."""
    return build_copy(tmp_path_factory.mktemp("checkout") / "copy", tmp_path_factory.mktemp("dist"))


def build_copy(checkout: Path, folder: Path) -> tuple[Path, Path]:
    """Wheel and sdist, put into `folder`, of a copy of this checkout with packages of npm of its own."""
    require_node()
    shutil.copytree(ROOT, checkout, ignore=copied_without, symlinks=True)
    packages = Path("labextension") / "node_modules"
    shutil.copytree(ROOT / packages, checkout / packages, symlinks=True, copy_function=link_or_copy)
    call(sys.executable, "-m", "build", "--outdir", folder, checkout)
    return next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))


def link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def copied_without(folder: str, names: list[str]) -> list[str]:
    generated = {
        ".git",
        ".venv",
        "node_modules",
        "lib",
        "__pycache__",
        "sandbox-runs",
        "out",
        "page",
        ".cache",
    }
    ours = {"labextension"} if Path(folder) == ROOT / "llm_sandbox_nb" else set()
    return [name for name in names if name in generated | ours]


def require_node() -> None:
    if shutil.which("npm") and (ROOT / "labextension" / "node_modules").is_dir():
        return
    if os.environ.get("LLM_SANDBOX_REQUIRE_ENGINES") == "1":
        pytest.fail("the packages of labextension/ are required: call `make labextension`", pytrace=False)
    pytest.skip("the packages of labextension/ are not installed: `make labextension` does it")


@pytest.fixture(scope="module")
def installed(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the programs of an environment that holds the wheel and what it needs, nothing else."""
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder, with_pip=True)
    call(folder / "bin" / "python", "-m", "pip", "install", "--quiet", built[0])
    return folder / "bin"


@pytest.mark.campaign
def test_the_wheel_holds_what_runs_and_nothing_else(built: tuple[Path, Path]) -> None:
    names = zipfile.ZipFile(built[0]).namelist()
    here = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "llm_sandbox_nb").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and "labextension" not in path.parts
    }
    assert here <= set(names)
    assert {
        f"llm_sandbox_nb/notebook/page/{name}"
        for name in ("page.js", "page.css", "widget.js", "widget.css", "LICENSES.txt")
    } <= set(names)
    assert any(name.endswith("etc/jupyter/jupyter_server_config.d/llm_sandbox_nb.json") for name in names)
    assert not [name for name in names if name.startswith(("tests/", "notebooks/", "docs/"))]
    assert any(name.endswith("licenses/LICENSE") for name in names)


@pytest.mark.campaign
def test_the_wheel_holds_the_part_for_jupyterlab_where_jupyter_looks(built: tuple[Path, Path]) -> None:
    wheel = zipfile.ZipFile(built[0])
    start = f"llm_sandbox_nb-{__version__}.data/data/share/jupyter/labextensions/llm-sandbox-nb/"
    names = {name.removeprefix(start) for name in wheel.namelist() if name.startswith(start)}
    package = json.loads(wheel.read(f"{start}package.json"))
    entries = package["jupyterlab"]["_build"]
    assert {"package.json", "install.json", entries["load"]} <= names
    assert {"extension", "mimeExtension", "style"} <= set(entries)
    assert not [name for name in wheel.namelist() if name.startswith("llm_sandbox_nb/labextension")]
    text = b"".join(wheel.read(start + name) for name in names if name.endswith(".js"))
    assert b"application/vnd.llm-sandbox.trajectory+json" in text


@pytest.mark.campaign
def test_two_folders_give_the_same_bytes(built: tuple[Path, Path], tmp_path: Path) -> None:
    """Also with another umask, and of files with other times."""
    before = os.umask(0o077)
    try:
        again = build_copy(tmp_path / "a longer name" / "of the checkout", tmp_path / "dist")
    finally:
        os.umask(before)
    for first, second in zip(built, again, strict=True):
        assert contents(first) == contents(second)
        assert first.name == second.name
        assert first.read_bytes() == second.read_bytes()


def contents(archive: Path) -> dict[str, str]:
    """A digest for each file, so that a failure names the file."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return {name: sha256(wheel.read(name)).hexdigest() for name in wheel.namelist()}
    with tarfile.open(archive) as sdist:
        files = {member.name: sdist.extractfile(member) for member in sdist.getmembers()}
        return {name: sha256(file.read()).hexdigest() for name, file in files.items() if file}


@pytest.mark.campaign
def test_the_licences_of_bundled_packages_are_shipped(built: tuple[Path, Path]) -> None:
    wheel = zipfile.ZipFile(built[0])
    (name,) = (name for name in wheel.namelist() if name.endswith("third-party-licenses.json"))
    listed = {one["name"]: one["extractedText"] for one in json.loads(wheel.read(name))["packages"]}
    bundled = {"@noble/hashes", "diff", "dompurify", "fflate", "highlight.js", "lowlight"}
    assert bundled <= {name for name, text in listed.items() if len(text) > 500}
    page = wheel.read("llm_sandbox_nb/notebook/page/LICENSES.txt").decode()
    assert {"ansi_up", "marked", *bundled} <= set(re.findall(r"^(\S+) [\d.]+ \(.+\)$", page, re.MULTILINE))
    assert len(page) <= 64 * 1024


def test_the_extension_is_built_for_the_oldest_lab() -> None:
    """The lock file has Lab's packages of that release, and of no newer one."""
    package = json.loads((ROOT / "labextension" / "package.json").read_text("utf-8"))
    lock = json.loads((ROOT / "labextension" / "package-lock.json").read_text("utf-8"))["packages"]
    oldest = OLDEST[0].removeprefix("jupyterlab==").removesuffix(".*")
    ours = {name: range for name, range in package["dependencies"].items() if name.startswith("@jupyterlab/")}
    assert ours["@jupyterlab/application"] == f"^{oldest}.0"
    assert OLDEST_FRONT_ENDS["jupyterlab"][1] == oldest
    for name, range in ours.items():
        found = lock[f"node_modules/{name}"]["version"]
        assert found.rpartition(".")[0] == range.strip("^").rpartition(".")[0], name
    places = [place.split("node_modules/") for place in lock if "/@jupyterlab/" in place]
    copies = [place for place in places if len(place) > 2 and place[-1].startswith("@jupyterlab/")]
    assert copies == [], "a package of another release of Lab brings its own"


def required_ranges(wheel: zipfile.ZipFile) -> dict[str, str]:
    (entry,) = (name for name in wheel.namelist() if "/static/remoteEntry." in name)
    text = wheel.read(entry).decode()
    return dict(re.findall(r'shareKey:"([^"]+)",import:null,requiredVersion:"([^"]+)"', text))


def test_no_address_of_a_registry_is_in_the_lock_file() -> None:
    lock = json.loads((ROOT / "labextension" / "package-lock.json").read_text("utf-8"))
    assert not [name for name, entry in lock["packages"].items() if "resolved" in entry]
    assert [name for name, entry in lock["packages"].items() if name and "integrity" not in entry] == []


@pytest.mark.campaign
def test_programs_of_the_image_stay_programs(built: tuple[Path, Path]) -> None:
    wheel = zipfile.ZipFile(built[0])
    for path in (ROOT / "llm_sandbox_nb").rglob("*"):
        if path.is_file() and os.access(path, os.X_OK):
            info = wheel.getinfo(path.relative_to(ROOT).as_posix())
            assert info.external_attr >> 16 & 0o111, path


@pytest.mark.campaign
def test_the_sdist_builds_the_same_wheel(built: tuple[Path, Path], tmp_path: Path) -> None:
    with tarfile.open(built[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        archive.extractall(tmp_path, filter="data")
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "Makefile"} <= names
    assert not [name for name in names if name.startswith((".git/", "out/", "sandbox-runs/", ".venv"))]
    (source,) = tmp_path.iterdir()
    call(
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--outdir",
        tmp_path / "again",
        source,
        path=without_node(tmp_path),
    )
    again = zipfile.ZipFile(next((tmp_path / "again").glob("*.whl")))
    assert sorted(again.namelist()) == sorted(zipfile.ZipFile(built[0]).namelist())


def without_node(folder: Path) -> str:
    programs = folder / "programs"
    programs.mkdir()
    for name in ("sh", "env", "uname"):
        (programs / name).symlink_to(shutil.which(name) or "")
    return str(programs)


@pytest.mark.campaign
@pytest.mark.engine
def test_a_checkout_without_node_gives_a_wheel_that_says_what_it_lacks(tmp_path: Path) -> None:
    checkout = tmp_path / "copy"
    shutil.copytree(ROOT, checkout, ignore=copied_without, symlinks=True)
    done = call(
        sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path, checkout, path=without_node(tmp_path)
    )
    assert "is left out: it needs Node 20.19 or later" in done.stdout + done.stderr
    names = zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist()
    assert not [name for name in names if "labextensions" in name]
    assert "llm_sandbox_nb/card/export.py" in names


@pytest.mark.campaign
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "versions", [("jupyterlab", "notebook"), ("jupyterlab==4.4.*", "notebook==7.4.*")], ids=str
)
def test_jupyter_takes_the_extension(
    built: tuple[Path, Path], tmp_path: Path, versions: tuple[str, str]
) -> None:
    """In the newest JupyterLab and Notebook and in the oldest of ours, installed without Node."""
    folder = tmp_path / "clean"
    venv.create(folder, with_pip=True)
    programs = without_node(tmp_path)
    pip = ("-m", "pip", "install", "--quiet", "--no-deps")
    call(folder / "bin" / "python", *pip, built[0], path=programs)
    call(folder / "bin" / "python", "-m", "pip", "install", "--quiet", *versions, path=programs)
    done = call(folder / "bin" / "python", folder / "bin" / "jupyter-labextension", "list", path=programs)
    listed = re.sub(r"\x1b\[\d+m", "", done.stdout + done.stderr)
    (core,) = folder.glob("lib/python*/site-packages/jupyterlab/staging/package.json")
    offered = json.loads(core.read_text("utf-8"))["resolutions"]
    asked = required_ranges(zipfile.ZipFile(built[0]))
    assert len(asked) > 10
    assert {
        name: (asked[name], offered.get(name)) for name in asked if not meets(offered, name, asked[name])
    } == {}
    assert re.search(
        rf"llm-sandbox-nb v{re.escape(__version__)} enabled OK \(python, llm-sandbox-nb\)", listed
    ), listed


def meets(offered: dict[str, str], name: str, asked: str) -> bool:
    """Whether every version that Lab may have is one that the bundle asks for: both are ranges from a version on."""
    lowest, wanted = ([int(part) for part in re.findall(r"\d+", one)[:3]] for one in (offered[name], asked))
    return lowest[0] == wanted[0] and lowest >= wanted


@pytest.mark.campaign
def test_the_colab_page_works_in_a_kernel_of_its_time(built: tuple[Path, Path], tmp_path: Path) -> None:
    """The page's cells, one after the other; without the cell that restarts the kernel, the extension does not load."""
    environment = tmp_path / "colab"
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    call(python, "-m", "pip", "install", "--quiet", *KERNEL_OF_COLAB)
    shutil.copy(built[0], tmp_path)
    blocks = re.findall(
        r"```(?:python)?\n(.*?)```", (ROOT / "docs/how-to/colab.md").read_text("utf-8"), re.DOTALL
    )
    install, restart, load, task = (
        block.replace("llm_sandbox_nb-0.1.0-py3-none-any.whl", built[0].name) for block in blocks
    )
    kernel = KernelManager()
    kernel._kernel_spec = KernelSpec(
        argv=[str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    )
    kernel.start_kernel(cwd=str(tmp_path))
    client = kernel.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=120)
        assert said(client, "import IPython; print(IPython.__version__)") == "7.34.0\n"
        said(client, install)
        with pytest.raises(AssertionError, match="Error"):
            said(client, load)
        client.execute(restart)
        until(lambda: not kernel.is_alive())
        kernel.restart_kernel(now=True)
        client.wait_for_ready(timeout=120)
        assert said(client, load) == ""
        assert "There are 3 r's in strawberry." in said(client, task)
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)


def said(client: BlockingKernelClient, cell: str) -> str:
    texts: list[str] = []

    def hear(message: dict[str, Any]) -> None:
        content = message["content"]
        texts.append(content.get("text", "") or content.get("data", {}).get("text/plain", ""))

    reply = client.execute_interactive(cell, output_hook=hear, timeout=900)["content"]
    assert reply["status"] == "ok", f"{reply['ename']}Error: {reply['evalue']}"
    return "".join(texts)


@pytest.mark.campaign
def test_the_command_works_after_installation(installed: Path, tmp_path: Path) -> None:
    for words in ((), ("run",), ("image",), ("doctor",), ("show",), ("export",)):
        assert "usage: llm-sandbox-nb" in call(installed / "llm-sandbox-nb", *words, "--help").stdout
    done = call(
        installed / "llm-sandbox-nb", "run", "--query", "How many r's are in strawberry?",
        "--llm_name", "scripted/strawberry", "--isolation", "process", cwd=tmp_path,
    )  # fmt: skip
    folder = tmp_path / done.stdout.splitlines()[-1]
    assert (folder / "journal.jsonl").is_file()
    assert "There are 3 r's in strawberry." in done.stdout
    done = call(installed / "llm-sandbox-nb", "export", folder, "--out", tmp_path / "run.html")
    assert (tmp_path / "run.html").stat().st_size > 100_000


@pytest.mark.campaign
def test_the_server_extension_is_enabled_by_installation(installed: Path) -> None:
    done = call(installed / "jupyter", "server", "extension", "list")
    listed = done.stdout + done.stderr
    assert "llm_sandbox_nb enabled" in " ".join(listed.replace("\x1b[32m", "").replace("\x1b[0m", "").split())
    program = (
        "import json; from jupyter_server.extension.manager import ExtensionPackage as P;"
        "p = P(name='llm_sandbox_nb', enabled=True); print(json.dumps([p.validate(), p.version]))"
    )
    assert json.loads(call(installed / "python", "-c", program).stdout.splitlines()[-1]) == [
        True,
        __version__,
    ]
