"""Collect the outcomes of tests in a process of its own, which hands on each line at once.

This runs inside of sandboxes: it needs Python 3.6 and the standard library only. What `results_sender` sent is in a
socket, or in this process's output, and there no other process can change it, also not of the same user: this one
cannot be traced. Another process can end this one. Then nothing counts as reported.

Standard input has two lines: where to listen, and the word that ends it, sent as a line over a connection.
"""

from __future__ import annotations

import ctypes
import os
import selectors
import socket
import sys

LARGEST = 64 * 1024**2
"""Bytes; who sends more is not listened to."""
PR_SET_DUMPABLE = 4


def collect(path: str, last: bytes) -> None:
    """Write the whole lines that arrive, until the line `last` does; then what has arrived before it."""
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
            if written > LARGEST:
                sys.exit("more results than any tests have")
            for line in lines:
                if line != last:
                    os.write(1, line + b"\n")


def main() -> None:
    """Become a process that no other can look into, and collect."""
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    path, last = sys.stdin.read().split("\n")[:2]
    collect(path, last.encode("ascii"))


if __name__ == "__main__":
    main()
