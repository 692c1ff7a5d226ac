"""`python tests/no_route.py PROGRAM...` executes a program that reaches nothing but its own loopback.

It gets a network namespace of its own, in a user namespace where that takes no rights.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import sys
from pathlib import Path

_NEWUSER, _NEWNET = 0x10000000, 0x40000000
_SET_FLAGS, _UP = 0x8914, 0x1


def main() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if libc.unshare(_NEWNET) != 0:
        if libc.unshare(_NEWUSER | _NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "no network namespace can be made here")
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, _SET_FLAGS, struct.pack("16sh14x", b"lo", _UP))
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
