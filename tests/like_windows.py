"""Runs a program as on Windows: `python like_windows.py FILE` or `python like_windows.py -m llm_sandbox_nb ...`.

What only other systems have is hidden: modules, flags, functions, signals. Programs of others that ask for the
platform when they are imported are imported before.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import http.client
import importlib.abc
import multiprocessing
import os
import platform
import runpy
import signal
import sys
import sysconfig
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

import nh3
import pydantic
import yaml

READ_BEFORE = (asyncio, concurrent.futures, http.client, multiprocessing, nh3, pydantic, yaml)
MODULES = ("fcntl", "termios", "resource", "pwd", "grp", "pty", "tty")
GONE = (
    (os, ("O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK", "fork", "fchmod")),
    (os, ("getuid", "geteuid", "getgid", "getpgid", "killpg", "setsid")),
    (signal, ("SIGKILL", "SIGHUP")),
)


class Missing(importlib.abc.MetaPathFinder):
    """Finds that these modules are not there."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in MODULES:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return None


def become_windows() -> None:
    platform.uname()
    sysconfig.get_config_vars()
    for name in MODULES:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, Missing())
    for module, names in GONE:
        for name in names:
            delattr(module, name)
    os.supports_dir_fd = set()
    sys.platform = "win32"


if __name__ == "__main__":
    become_windows()
    del sys.argv[0]
    if sys.argv[0] == "-m":
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")
