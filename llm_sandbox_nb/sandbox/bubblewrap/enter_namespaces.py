"""Program that starts a second executor in a running sandbox. This program needs root on the host.

    python -I -S -c SOURCE ORDER

ORDER is a JSON object. Its fields are `pid` (of a process in the sandbox), `groups` (files `cgroup.procs` of control
groups), `rights` (a Python program that gives up rights), `argv` and `environment` (of the executor). `launch.join`
passes the text of this file to `python -c`. Inside of the sandbox, the second executor is root.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys

KINDS = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
"""Namespaces in the order in which they are entered. The user namespace gives the right to enter the others."""


def main() -> None:
    order = json.loads(sys.argv[1])
    for path in order["groups"]:
        with open(path, "w") as file:
            file.write(str(os.getpid()))
    libc = ctypes.CDLL(None, use_errno=True)
    # All files are opened first, because after entering the mount namespace, /proc is the sandbox's own.
    for namespace in [os.open(f"/proc/{order['pid']}/ns/{kind}", os.O_RDONLY) for kind in KINDS]:
        if libc.setns(namespace, 0) != 0:
            sys.exit(f"setns: {os.strerror(ctypes.get_errno())}")
        os.close(namespace)
    child = os.fork()  # only children are in the new process namespace
    if child:
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    os.setsid()
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    # `{}` becomes the global variables of the program, so that its functions can use its imports.
    exec(order["rights"], {})
    os.chdir("/")
    os.execve(order["argv"][0], order["argv"], order["environment"])


if __name__ == "__main__":
    main()
