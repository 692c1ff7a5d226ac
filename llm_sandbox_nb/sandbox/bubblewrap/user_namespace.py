"""Program that makes a sandbox's user namespace as root, and then gives up root, between the two runs of bubblewrap.

    python -I -S -c SOURCE USER COUNT BWRAP ARGUMENT...

The namespace belongs to the host's user id USER. It has COUNT ids: 0, 1, ... inside are USER, USER + 1, ... on the
host. No further user namespace can be made inside. After making the namespace, this process becomes USER, and then
executes BWRAP with the ARGUMENTs.

`launch.py` passes the text of this file to `python -c` inside the outer bubblewrap, where the file itself is not
visible. So this file imports only the standard library. Its syntax is that of the oldest Python of a host (3.8).

The parent-death signal ends this process when its owner dies. Changing the user id clears this signal, and only the
inner bubblewrap sets it again. If the owner dies in between, the inner bubblewrap starts, finds its pipes closed, and
ends. If the inner bubblewrap is killed later, but before it releases its child, the child waits for ever (see
`launch.kill_waiting`).
"""

from __future__ import annotations

import ctypes
import os
import sys

CLONE_NEWUSER = 0x10000000


def main() -> None:
    user, count, bwrap = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    owner = os.getppid()
    made, mapped = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(mapped[1])
        hold_namespace(user, made[1], mapped[0])
    os.close(made[1])
    wait_for_byte(made[0])
    # The child cannot map the ids itself: only a process outside of the namespace with rights over the ids can do that.
    for name in ("uid_map", "gid_map"):
        with open(f"/proc/{child}/{name}", "w") as file:
            file.write(f"0 {user} {count}")
    namespace = os.open(f"/proc/{child}/ns/user", os.O_RDONLY)
    os.set_inheritable(namespace, True)
    os.write(mapped[1], b"1")
    if os.waitpid(child, 0)[1]:
        sys.exit("the user namespace could not be set up")
    become(user)
    if os.getppid() != owner:
        sys.exit("the owner is gone")
    os.execv(bwrap, [bwrap, "--userns", str(namespace), *sys.argv[4:]])


def hold_namespace(user: int, made: int, mapped: int) -> None:
    """Make the namespace in this child process, wait until its ids are mapped, and forbid further namespaces inside."""
    become(user)
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUSER) != 0:
        sys.exit(os.strerror(ctypes.get_errno()))
    os.write(made, b"1")
    wait_for_byte(mapped)
    with open("/proc/sys/user/max_user_namespaces", "w") as file:
        file.write("0")
    os._exit(0)


def become(user: int) -> None:
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def wait_for_byte(pipe: int) -> None:
    if not os.read(pipe, 1):
        sys.exit("the user namespace could not be made")


if __name__ == "__main__":
    main()
