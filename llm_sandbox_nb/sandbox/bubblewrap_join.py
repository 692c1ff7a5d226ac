"""Starting a second program in a bubblewrap sandbox that runs, as root inside it."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from llm_sandbox_nb.sandbox.capabilities import ROOT_INSIDE, keep_only

_JOIN = """
import ctypes, json, os, sys
order = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)

def call(function, *arguments):
    if function(*arguments) != 0:
        sys.exit(f"{function.__name__}: {os.strerror(ctypes.get_errno())}")

class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]

for path in order["groups"]:
    with open(path, "w") as file:
        file.write(str(os.getpid()))
kinds = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
for namespace in [os.open(f"/proc/{order['pid']}/ns/{kind}", os.O_RDONLY) for kind in kinds]:
    call(libc.setns, namespace, 0)
    os.close(namespace)
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os.setsid()
os.setgroups([])
os.setresgid(0, 0, 0)
os.setresuid(0, 0, 0)
exec(order["rights"])
if order["filter"]:
    code = bytes.fromhex(order["filter"])
    call(libc.prctl, 22, 2, ctypes.byref(Program(len(code) // 8, code)), 0, 0)
os.chdir("/")
os.execve(order["argv"][0], order["argv"], order["environment"])
"""
"""prctl 22, 2: install a system-call filter."""


async def join(
    pid: int,
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    groups: Sequence[Path],
    seccomp: bytes | None,
) -> asyncio.subprocess.Process:
    """Start `argv` in all the namespaces and control groups of process `pid`, as root inside with few rights.

    Its rights are those of root in the profile `standard`. Needs root on the host.
    """
    order = {
        "pid": pid,
        "argv": list(argv),
        "environment": dict(environment),
        "groups": [str(path) for path in groups],
        "rights": keep_only(ROOT_INSIDE),
        "filter": seccomp.hex() if seccomp else "",
    }
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", "-c", _JOIN, json.dumps(order)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={},
        cwd="/",
    )
