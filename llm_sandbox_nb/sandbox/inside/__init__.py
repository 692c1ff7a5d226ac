"""The program inside a sandbox: it runs commands and moves bytes for the one host that holds its pipe.

Standard library only, Python 3.8 or later, one thread, nothing installed: the modules of this package are
sent over the pipe at the start and compiled as they are imported (see `bootstrap.py`), so they import each
other by relative names only. The program is PID 1 of its sandbox where there is one, so nothing inside can
kill it and every orphan becomes its child.

Frames come in on fd 0 and go out on fd 1 (see `frames.py`, of which `wire.py` has its own copy of the
constants). The loop never blocks: commands are read only as fast as the host takes their output, request
bodies are acknowledged as they are used, and everything that touches files runs in a forked child that can be
killed.
"""
