"""`binder/` does what mybinder.org needs: repo2docker's steps, in a container that may do no more than a pod there."""

from __future__ import annotations

import re
import shutil
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import course
import nbformat
import pytest
from support import require

from llm_sandbox_nb.sandbox.docker.images import SLIM_IMAGE
from notebooks import records

ROOT = Path(__file__).parents[3]
BINDER = ROOT / "binder"
KNOWN_TO_REPO2DOCKER = {"requirements.txt", "runtime.txt", "postBuild", "start", "apt.txt"}
IMAGE = "llm-sandbox-nb-test:binder"
POD = {"BINDER_LAUNCH_HOST": "https://mybinder.org/"}
"""What every pod of mybinder.org has in its environment."""
MEMORY = 1024**3
MEMORY_BAR = 900 * 1000**2
STARTED_BAR = 10.0
ADDRESS = "http://127.0.0.1:8888/lab/tree/notebooks/01-first-task.ipynb"
UNTIL_IT_ANSWERS = ("bash", "-c", f"until curl -sf -o /dev/null {ADDRESS}; do sleep 0.1; done")
# The steps of repo2docker, as an ordinary user. The base has Python, and the certificates of this site.
DOCKERFILE = f"""
FROM {SLIM_IMAGE}
ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt NODE_EXTRA_CA_CERTS=/etc/ssl/certs/ca-certificates.crt
USER user
WORKDIR /home/user
ENV HOME=/home/user PATH=/home/user/environment/bin:/usr/local/bin:/usr/bin:/bin
RUN python3 -m venv environment
COPY --chown=user:user requirements.txt .
RUN python -m pip install --no-cache-dir --quiet -r requirements.txt
COPY --chown=user:user repository repository
WORKDIR /home/user/repository
RUN binder/postBuild
"""
# What the kernel may not give back at once, as Kubernetes counts it: all but files that were not used for long.
SAMPLER = """
cd /sys/fs/cgroup; [ -e memory.current ] || cd memory
while sleep 0.2; do
  used=$(cat memory.current 2>/dev/null || cat memory.usage_in_bytes)
  idle=$(awk '$1 == "total_inactive_file" || $1 == "inactive_file" {n = $2} END {print n}' memory.stat)
  echo $((used - idle))
done >/tmp/memory
"""
RUNNER = """
import sys, time
import nbformat
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

for name in sys.argv[1:]:
    manager = KernelManager(client_class="jupyter_client.asynchronous.AsyncKernelClient")
    manager.start_kernel(cwd="notebooks")
    for part in ("shipped", "solved"):
        notebook = nbformat.read(f"/tmp/course/{name}.{part}.ipynb", as_version=4)
        began = time.monotonic()
        client = NotebookClient(notebook, km=manager, timeout=240, allow_errors=True)
        client.execute()
        client.kc.stop_channels()
        nbformat.write(notebook, f"/tmp/course/{name}.{part}.ipynb")
        print(f"{name}, {part}: {time.monotonic() - began:.1f} s", flush=True)
    manager.shutdown_kernel()
"""


def test_there_is_nothing_that_repo2docker_would_not_read() -> None:
    assert {path.name for path in BINDER.iterdir()} <= KNOWN_TO_REPO2DOCKER
    assert not (ROOT / ".binder").exists()
    for name in ("postBuild", "start"):
        assert (BINDER / name).stat().st_mode & stat.S_IXUSR
        assert (BINDER / name).read_text().startswith("#!/usr/bin/env bash\n")
    assert "set -e" in (BINDER / "postBuild").read_text()
    assert (BINDER / "start").read_text().rstrip().endswith('exec "$@"')


def test_every_requirement_is_pinned() -> None:
    """`pip check` in postBuild says whether one is missing."""
    lines = (BINDER / "requirements.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert len(pins) > 100
    assert [line for line in pins if not re.fullmatch(r"[a-z0-9.-]+==[0-9][0-9a-z.]*( ; .+)?", line)] == []


def started(code: str, tmp_path: Path, **environment: str) -> str:
    """What a Python program prints that `binder/start` starts."""
    own = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "PYTHONPATH": str(ROOT),
    }
    words = [str(BINDER / "start"), "python", "-c", code]
    return subprocess.run(words, env=own | environment, capture_output=True, text=True, check=True).stdout


def test_a_pod_runs_plain_processes_and_says_why(tmp_path: Path) -> None:
    code = textwrap.dedent("""
        import asyncio, os
        from llm_sandbox_nb.sandbox.open import open_sandbox

        async def main():
            async with open_sandbox(os.environ["LLM_SANDBOX_ISOLATION"]) as box:
                print(box.protection.isolation, box.protection.protects)

        asyncio.run(main())
    """)
    said = started(code, tmp_path, **POD)
    assert said.startswith("process Nothing: commands run as you, on this machine. This is a Binder pod")


def test_elsewhere_the_isolation_stays_automatic(tmp_path: Path) -> None:
    code = "import os, sys; print([name for name in os.environ if name.startswith('LLM_')], sys.argv)"
    assert started(code, tmp_path) == "[] ['-c']\n"


# -------------------------------------------------------------------------------------------------- as on mybinder.org


def docker(*words: str, timeout: float = 900) -> str:
    """What a command of Docker prints; a failure is one here."""
    done = subprocess.run(["docker", *words], capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, f"docker {words[:3]}: {done.stdout[-3000:]} {done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The environment as mybinder.org builds it from the files of this checkout; layers are kept for the next time."""
    require("docker")
    context = tmp_path_factory.mktemp("context")
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    for name in filter(None, files):
        if (ROOT / name).is_file():  # one that was removed is still listed
            (context / "repository" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, context / "repository" / name)
    shutil.copy(BINDER / "requirements.txt", context)
    (context / "Dockerfile").write_text(DOCKERFILE)
    began = time.monotonic()
    docker("build", "--quiet", "--tag", IMAGE, str(context), timeout=1800)
    print(f"built in {time.monotonic() - began:.0f} s")
    return IMAGE


@contextmanager
def started_pod(image: str) -> Iterator[str]:
    """A container that may do what a pod may: a gigabyte, an ordinary user, no rights, and no network."""
    limits = ["--memory", str(MEMORY), "--memory-swap", str(MEMORY), "--cap-drop", "ALL", "--network", "none"]
    environment = [word for name, value in POD.items() for word in ("--env", f"{name}={value}")]
    lab = ["binder/start", "jupyter", "lab", "--no-browser", "--ServerApp.token=", "--ServerApp.port=8888"]
    name = docker("run", "--detach", *limits, *environment, image, *lab).strip()
    try:
        yield name
    finally:
        docker("rm", "--force", name)


@pytest.fixture
def pod(image: str) -> Iterator[str]:
    with started_pod(image) as name:
        inside(name, *UNTIL_IT_ANSWERS)
        yield name


def inside(pod: str, *words: str) -> str:
    """What a program in the pod prints, with the environment that a kernel there has."""
    return docker("exec", pod, "binder/start", *words)


@pytest.mark.campaign
@pytest.mark.alone
@pytest.mark.docker
@pytest.mark.timeout(2400)
def test_the_pod_has_the_view_and_neither_node_nor_rights(pod: str) -> None:
    assert "llm-sandbox-nb" in inside(pod, "bash", "-c", "jupyter labextension list 2>&1 | grep enabled")
    assert inside(pod, "bash", "-c", "command -v node npm || id -u").strip() == "1000"
    status = inside(pod, "cat", "/proc/self/status")
    assert re.search(r"^CapBnd:\s+0+$", status, re.MULTILINE)
    assert re.search(r"^Seccomp:\s+2$", status, re.MULTILINE)
    assert inside(pod, "bash", "-c", "ls labextension/node_modules 2>/dev/null || echo none") == "none\n"


@pytest.mark.campaign
@pytest.mark.alone
@pytest.mark.docker
@pytest.mark.timeout(2400)
def test_lab_opens_within_ten_seconds(image: str) -> None:
    began = time.monotonic()
    with started_pod(image) as pod:
        inside(pod, *UNTIL_IT_ANSWERS)
        taken = time.monotonic() - began
    print(f"JupyterLab answers {taken:.1f} s after its container was asked for")
    assert taken < STARTED_BAR


@pytest.mark.campaign
@pytest.mark.alone
@pytest.mark.docker
@pytest.mark.timeout(2400)
def test_the_course_runs_there_within_its_memory(pod: str, tmp_path: Path) -> None:
    lessons = tmp_path / "course"
    lessons.mkdir(mode=0o777)
    lessons.chmod(0o777)
    for name in course.EXECUTED:
        notebook = course.shipped(name)
        for part, content in ("shipped", notebook), ("solved", course.solved(notebook)):
            nbformat.write(content, lessons / f"{name}.{part}.ipynb")
            (lessons / f"{name}.{part}.ipynb").chmod(0o666)
    docker("cp", str(lessons), f"{pod}:/tmp/course")
    docker("exec", "--detach", pod, "sh", "-c", SAMPLER)
    print(inside(pod, "python", "-c", RUNNER, *course.EXECUTED))
    docker("cp", f"{pod}:/tmp/course", str(tmp_path / "done"))
    problems, protections = [], set()
    for name in course.EXECUTED:
        for part, verdict in ("shipped", "Not yet: "), ("solved", "Right: "):
            notebook = nbformat.read(tmp_path / "done" / f"{name}.{part}.ipynb", as_version=4)
            found = course.problems_as_executed(notebook, verdict)
            problems += [f"{name}, {part}: {problem}" for problem in found]
            events = [event for record in records(notebook) for event in record["events"]]
            ready = [event["protection"] for event in events if event["kind"] == "sandbox.ready"]
            protections |= {(one["isolation"], "This is a Binder pod" in one["protects"]) for one in ready}
    assert problems == []
    assert protections == {("process", True)}, "every card says it"
    samples = [int(line) for line in docker("exec", pod, "cat", "/tmp/memory").split()]
    events = "cat /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control 2>/dev/null || true"
    killed = docker("exec", pod, "sh", "-c", events)
    print(
        f"peak memory of JupyterLab and a kernel: {max(samples) / 1000**2:.0f} MB in {len(samples)} samples"
    )
    assert re.findall(r"^oom_kill ([1-9])", killed, re.MULTILINE) == []
    assert max(samples) < MEMORY_BAR


def test_the_notebook_on_training_says_what_it_needs() -> None:
    """It is the one that does not run there."""
    text = "\n".join(cell.source for cell in course.shipped(course.LEARNING).cells)
    assert ".[rl]" in text
