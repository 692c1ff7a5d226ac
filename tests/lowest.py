"""Install the oldest versions that pyproject.toml allows, and use the package with them: `tests/lowest.py FOLDER`.

What fails shows a floor to raise. `make lowest` calls this; it needs Python 3.11, the oldest that the package allows.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
UV = Path(sys.executable).with_name("uv")
# What the tests themselves need is of the newest versions: they are no part of what is checked.
FOR_TESTS = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "psutil")
EXTRA = "benchmark"
TESTED = (
    "tests/unit/trajectory",
    "tests/unit/options",
    "tests/unit/sandbox/test_network_policy.py",
    "tests/unit/sandbox/test_network_proxy.py",
    "tests/unit/benchmark/test_scored_answers.py",
    "tests/unit/benchmark/test_scorers.py",
)


def call(*words: str | Path, cwd: Path = ROOT) -> None:
    """Run a command and show what it says; an error ends the program."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))
    }
    print("+", *words, flush=True)
    subprocess.run([str(word) for word in words], cwd=cwd, env=environment, check=True)


def floors_that_nothing_reaches(versions: Path) -> list[str]:
    """The requirements whose lowest version does not fit the others, with the version that does."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    resolved = dict(line.split("==") for line in versions.read_text("utf-8").splitlines() if "==" in line)
    wrong = []
    for text in [*project["dependencies"], *project["optional-dependencies"][EXTRA]]:
        needed = Requirement(text)
        version = Version(resolved[canonicalize_name(needed.name)].split()[0])
        if not any(one.operator == ">=" and Version(one.version) == version for one in needed.specifier):
            wrong.append(f"{text}: {version} is the lowest that fits")
    return wrong


def main(folder: Path) -> None:
    """Resolve, install, run a task with a scripted model, and test what leans on its requirements."""
    folder.mkdir(parents=True, exist_ok=True)
    versions, python = folder / "lowest.txt", folder / "venv" / "bin" / "python"
    oldest = (
        "--resolution",
        "lowest-direct",
        "--python-version",
        "3.11",
        "--no-annotate",
        "--no-header",
        "--quiet",
    )
    call(UV, "pip", "compile", ROOT / "pyproject.toml", "--extra", EXTRA, *oldest, "-o", versions)
    if wrong := floors_that_nothing_reaches(versions):
        sys.exit("Raise these floors in pyproject.toml:\n" + "\n".join(wrong))
    call(UV, "venv", "--quiet", "--clear", "--python", "3.11", folder / "venv")
    call(UV, "pip", "install", "--quiet", "--python", python, "-r", versions, *FOR_TESTS)
    call(UV, "pip", "install", "--quiet", "--python", python, "--no-deps", "--editable", ROOT)
    call(python, "-c", "import llm_sandbox_nb.notebook.magics, llm_sandbox_nb.server.manager")
    task = (
        "--query",
        "How many r's are in strawberry?",
        "--llm_name",
        "scripted/strawberry",
        "--isolation",
        "process",
    )
    call(python, "-m", "llm_sandbox_nb", "run", *task, cwd=folder)
    call(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not engine and not campaign", *TESTED)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
