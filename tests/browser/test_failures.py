"""What is kept of a test in a browser that fails, and of one that passes: a run of pytest on planted tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from failures import KEPT
from PIL import Image

PLANTED = Path(__file__).with_name("planted_failure.py")
FAILED, PASSED = KEPT / f"{PLANTED.name}-test_that_fails", KEPT / f"{PLANTED.name}-test_that_passes"


@pytest.fixture(autouse=True)
def no_folder_left() -> Iterator[None]:
    yield
    shutil.rmtree(FAILED, ignore_errors=True)


@pytest.mark.campaign
@pytest.mark.parametrize("traced", [pytest.param(False, marks=pytest.mark.campaign), True])
def test_a_failed_test_keeps_its_pages_and_says_where(traced: bool) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(PLANTED)]
    environment = {**os.environ, "LLM_SANDBOX_TRACE": str(int(traced))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    names = {path.name for path in FAILED.iterdir()}
    assert names >= {"page-1.png", "page-1.html", "page-2.png", "page-2.html", "console-2.txt"}
    assert {str(path) for path in FAILED.iterdir()} <= set(done.stdout.splitlines())
    pages = [path.read_text("utf-8") for path in sorted(FAILED.glob("page-*.html"))]
    assert "<h1>planted</h1>" in pages[1]
    assert Image.open(FAILED / "page-2.png").width == 1200
    assert (FAILED / "console-2.txt").read_text("utf-8") == "log: said in the page"
    assert ("trace-2.zip" in names) is traced
    if traced:
        with zipfile.ZipFile(FAILED / "trace-2.zip") as trace:
            assert {"trace.trace", "trace.network"} <= set(trace.namelist())
            assert "planted" in trace.read("trace.trace").decode()
    assert not PASSED.exists(), "nothing is kept of a test that passed"
