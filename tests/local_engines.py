"""Servers of local models, as the list of processes has them."""

from __future__ import annotations

import contextlib

import psutil

ENGINE = "llm_sandbox_nb.model.local.engine"


def engines_of(pid: int) -> list[psutil.Process]:
    found = []
    for one in psutil.Process(pid).children():
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            if ENGINE in one.cmdline():
                found.append(one)
    return found
