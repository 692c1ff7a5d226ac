"""A build without Node says so where a person reads it: pip keeps what a build prints to itself."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
PIP = """
import subprocess, sys
build = "import sys, types; sys.modules['hatchling.builders.hooks.plugin.interface'] = types.SimpleNamespace("
build += "BuildHookInterface=object); import hatch_build; hatch_build.tell_terminal('no Node here')"
subprocess.run([sys.executable, "-c", build], capture_output=True, check=True)
"""


def test_it_is_said_on_the_terminal_of_pip() -> None:
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(ROOT)
        os.execv(sys.executable, [sys.executable, "-c", PIP])
    said = b""
    try:
        while data := os.read(terminal, 65536):
            said += data
    except OSError:  # the other end is closed
        pass
    assert os.waitpid(child, 0)[1] == 0, said
    assert b"no Node here" in said


def test_without_a_terminal_it_is_silent() -> None:
    done = subprocess.run([sys.executable, "-c", PIP], cwd=ROOT, capture_output=True, start_new_session=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
