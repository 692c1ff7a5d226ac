"""Separate process that collects test outcomes. It forwards each outcome at once, as a line.

This file runs in sandboxes, so it needs only Python 3.7 and the standard library. Outcomes from `results_sender` arrive
at a socket, and this process writes them to its standard output. No other process can change the written outcomes, not
even a process of the same user, because this process cannot be traced. If this process is killed, no outcome counts.

Standard input has two lines: the path of the socket, and a secret word. When this word arrives at the socket, the
collection ends.
"""

from __future__ import annotations

import ctypes
import os
import selectors
import socket
import sys

MAX_BYTES = 64 * 1024**2
"""Maximum size of all outcomes together in bytes. If the outcomes are larger, the process exits."""
PR_SET_DUMPABLE = 4


def collect(path: str, last: bytes) -> None:
    """Forward lines until the line `last` arrives. Then forward the lines that wait in other connections."""
    waiting = selectors.DefaultSelector()
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(path)
    server.listen(64)
    server.setblocking(False)
    waiting.register(server, selectors.EVENT_READ, None)
    written = 0
    ended = False
    while True:
        events = waiting.select(0 if ended else None)
        if not events:
            return
        for key, _ in events:
            if key.data is None:
                connection, _ = server.accept()
                connection.setblocking(False)
                waiting.register(connection, selectors.EVENT_READ, [b""])
                continue
            piece = key.fileobj.recv(65536)  # type: ignore[union-attr]
            if not piece:
                waiting.unregister(key.fileobj)
                continue
            *lines, key.data[0] = (key.data[0] + piece).split(b"\n")
            written += len(piece)
            ended = ended or last in lines
            if written > MAX_BYTES:
                sys.exit("more results than any tests have")
            for line in lines:
                if line != last:
                    os.write(1, line + b"\n")


def main() -> None:
    """Make this process untraceable, and collect the outcomes."""
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    path, last = sys.stdin.read().split("\n")[:2]
    collect(path, last.encode("ascii"))


if __name__ == "__main__":
    main()
