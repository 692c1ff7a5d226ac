"""`.ci/run` ends the engine that it started, and nothing else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = (Path(__file__).parents[2] / ".ci" / "run").read_text("utf-8")


def function(name: str) -> str:
    [found] = re.findall(rf"^{name}\(\) {{\n.*?^}}$", SCRIPT, re.MULTILINE | re.DOTALL)
    return str(found)


@pytest.mark.parametrize(("containers", "ends"), [("", True), ("another's\n", False)])
def test_an_engine_with_containers_stays(tmp_path: Path, containers: str, ends: bool) -> None:
    docker = tmp_path / "docker"
    docker.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/called\nprintf "%s" "{containers}"\n')
    docker.chmod(0o755)
    program = shutil.copy(str(shutil.which("sleep")), tmp_path / "dockerd")
    with subprocess.Popen([program, "3600"]) as engine:
        try:
            script = (
                f"{function('stop_engine')}\nown_engine={engine.pid}\nsleep() {{ return 0; }}\nstop_engine"
            )
            done = subprocess.run(
                ["bash", "-euc", script],
                env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
                capture_output=True,
                text=True,
                check=True,
            )
            if ends:
                assert engine.wait(60) == -15
            else:
                assert engine.poll() is None
                assert "another's" in done.stderr
        finally:
            engine.kill()
    assert (tmp_path / "called").read_text().split()[0] == "ps"
    assert len((tmp_path / "called").read_text().splitlines()) == 1


def test_nothing_is_removed_from_an_engine() -> None:
    assert re.findall(r"docker \w*\s*(?:rm|prune|kill|stop)\b", SCRIPT) == []
