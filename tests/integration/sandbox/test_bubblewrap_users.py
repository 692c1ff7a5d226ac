"""Bubblewrap as an ordinary user and as root: who one is inside, and what that is on the host."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import support

import llm_sandbox_nb
from llm_sandbox_nb import open_sandbox

pytestmark = [pytest.mark.bubblewrap, pytest.mark.usefixtures("bubblewrap_engine")]
as_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become somebody else")
ORDINARY = 65534

REPORT = """
import asyncio, dataclasses, json, sys
sys.path.insert(0, sys.argv[1])
from llm_sandbox_nb.sandbox.bubblewrap.sandbox import start as start_bubblewrap_sandbox
from llm_sandbox_nb.sandbox.limits import Limits
from llm_sandbox_nb.sandbox.options import SandboxOptions

async def report(profile):
    limits = Limits(memory_bytes=300 * 1024**2, pids=60, cpus=1.0)
    async with await start_bubblewrap_sandbox(SandboxOptions("bubblewrap", profile, limits=limits)) as box:
        identity = await box.run("whoami; id -u; echo $HOME; touch ~/x /testbed/x /tmp/x && echo written")
        forks = await box.exec(["python3", "-c", sys.argv[2]])
        hog = await box.exec(["python3", "-c", "bytearray(500 * 1024**2)"])
        protection = dataclasses.asdict(box.protection)
        return {"identity": identity.text.split(), "forks": forks.text, "hog": hog.text, **protection}

print(json.dumps([asyncio.run(report(profile)) for profile in ("standard", "strict")]))
"""
FORKS = """
import os, signal
made = []
try:
    while len(made) < 200:
        made.append(os.fork())
        if made[-1] == 0:
            signal.pause()
except OSError as error:
    print(len(made), error)
for pid in made:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)  # a killed process counts until then
"""


def python_for_others() -> str:
    """A Python of at least 3.11 that every user may run."""
    for candidate in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        check = [candidate, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
        try:
            if (
                subprocess.run(check, user=ORDINARY, group=ORDINARY, extra_groups=[], check=False).returncode
                == 0
            ):
                return candidate
        except OSError:
            continue
    pytest.skip("there is no Python 3.11 or later here that other users may run")


@pytest.fixture
def package() -> Iterator[Path]:
    """A copy of the package that every user may read."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(llm_sandbox_nb.__file__).parent
        shutil.copytree(source, Path(folder, source.name), ignore=shutil.ignore_patterns("__pycache__"))
        for path in (Path(folder), *Path(folder).rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        yield Path(folder)


@as_root
def test_an_ordinary_user_needs_no_rights(package: Path) -> None:
    done = subprocess.run(
        [python_for_others(), "-I", "-c", REPORT, str(package), FORKS],
        user=ORDINARY,
        group=ORDINARY,
        extra_groups=[],
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    standard, strict = json.loads(done.stdout)
    assert standard["identity"] == ["root", "0", "/root", "written"]
    assert strict["identity"] == ["sandbox", "1000", "/home/sandbox", "written"]
    for report in (standard, strict):
        assert report["details"]["host user"] == str(ORDINARY)
        assert report["capabilities"] == []
        assert report["no_new_privileges"]
        assert report["seccomp"] == "filter"
        assert report["network"] == "none"
        assert report["read_only_system"]
        check_limits(report)


def check_limits(report: dict[str, Any]) -> None:
    """No control groups are to be had, so rlimits hold what they can, and it is said what they do not."""
    assert report["memory_bytes"] is None
    assert report["cpus"] is None
    assert "memory is not limited as a whole" in report["does_not_protect"]
    assert "memory for each process by rlimit" in report["details"]["limits"]
    assert "MemoryError" in report["hog"]
    if report["pids"] is not None:
        assert report["pids"] == 60
        assert "Resource temporarily unavailable" in report["forks"]


@as_root
@pytest.mark.parametrize(("profile", "uid"), [("standard", 0), ("strict", 1000)])
def test_root_inside_is_nobody_on_the_host(profile: str, uid: int) -> None:
    async def look() -> tuple[int, str]:
        async with open_sandbox("bubblewrap", profile=profile) as box:
            numbers = [
                int(word) for word in (await box.run("id -u; cut -c1-40 /proc/self/uid_map")).text.split()
            ]
            return int(box.protection.details["host user"]), str(numbers)

    host_user, inside = support.run(look())
    assert host_user >= 1_900_000_000
    assert inside == str([uid, 0, host_user - uid, 65536])


@as_root
def test_the_strict_profile_has_no_rights_and_the_standard_one_few() -> None:
    async def rights(profile: str) -> tuple[tuple[str, ...], str]:
        async with open_sandbox("bubblewrap", profile=profile) as box:
            return box.protection.capabilities, (
                await box.run("grep -h Cap /proc/self/status /proc/1/status")
            ).text

    named, _ = support.run(rights("standard"))
    assert set(named) == {
        f"CAP_{name}" for name in ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID")
    }
    named, status = support.run(rights("strict"))
    assert named == ()
    assert {line.split()[1] for line in status.splitlines()} == {"0" * 16}


@as_root
def test_hosts_root_files_that_are_shown_stay_unreadable_for_root_inside(tmp_path: Path) -> None:
    """What of the Python environment only root may read is not readable for root inside, who is nobody."""
    folder = Path(sys.prefix, f"llm-sandbox-canary-{os.getpid()}")
    folder.mkdir()
    (folder / "file").write_text("secret")
    (folder / "file").chmod(0o600)

    async def read() -> str:
        async with open_sandbox("bubblewrap") as box:
            return (await box.run(f"ls {folder}; cat {folder}/file")).text

    try:
        text = support.run(read())
    finally:
        shutil.rmtree(folder)
    assert text.startswith("file\n")
    assert "Permission denied" in text
    assert "secret" not in text


@pytest.mark.parametrize("profile", ["standard", "strict"])
def test_the_users_own_python_and_packages_are_there(profile: str) -> None:
    program = "import sys, numpy, matplotlib; print(sys.version_info[:3], numpy.__version__, sys.prefix)"

    async def look() -> tuple[str, str]:
        async with open_sandbox("bubblewrap", profile=profile) as box:
            result = await box.run(f'python3 -c "{program}"; python -m pip --version; command -v python3 pip')
            return result.text, (await box.run("echo $HOME")).text.strip()

    import numpy

    text, home = support.run(look())
    first, pip, *found = text.splitlines()
    assert first == f"{tuple(sys.version_info[:3])} {numpy.__version__} {home}/.venv"
    assert pip.startswith("pip ")
    assert found == [f"{home}/.venv/bin/python3", f"{home}/.venv/bin/pip"]


@pytest.mark.parametrize("profile", ["standard", "strict"])
def test_packages_can_be_installed(profile: str) -> None:
    """From a folder, for lack of a network: pip puts them over the read-only environment."""
    project = (
        '[project]\nname = "one-more"\nversion = "1.0"\n[build-system]\nrequires = []\nbuild-backend = "b"\n'
    )
    project += 'backend-path = ["."]\n'
    backend = (
        "import zipfile\n"
        "def build_wheel(folder, *_):\n"
        "    name = 'one_more-1.0-py3-none-any.whl'\n"
        "    with zipfile.ZipFile(f'{folder}/{name}', 'w') as file:\n"
        "        file.writestr('one_more.py', 'value = 42')\n"
        "        info = 'one_more-1.0.dist-info/'\n"
        "        file.writestr(info + 'METADATA', 'Metadata-Version: 2.1\\nName: one-more\\nVersion: 1.0')\n"
        "        file.writestr(info + 'WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true')\n"
        "        file.writestr(info + 'RECORD', '')\n"
        "    return name\n"
    )

    async def install() -> str:
        async with open_sandbox("bubblewrap", profile=profile) as box:
            await box.write_file("more/pyproject.toml", project.encode())
            await box.write_file("more/b.py", backend.encode())
            result = await box.run("pip install --quiet --no-index ./more", timeout=120)
            result = await box.run("python3 -c 'import one_more, numpy; print(one_more.value)'")
            return result.text

    assert support.run(install(), timeout=150) == "42\n"
