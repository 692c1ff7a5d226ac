"""Ending everything that runs in a sandbox while its files, and the sandbox itself, stay."""

from __future__ import annotations

from llm_sandbox_nb.sandbox.channel_sandbox import ChannelSandbox
from llm_sandbox_nb.sandbox.errors import SandboxError

# All processes of a sandbox descend from its executor, which is PID 1 or a subreaper. Killing by ancestry
# and not by `kill -1` makes this safe under isolation `process` too. All is stopped before anything is
# killed, so nothing escapes by forking, and the shell that the executor starts anew is left alone. Helpers
# of the executor, forks with its command line, stay: one is our parent, one knows what has changed.
_KILL_ALL = """
import os, signal, sys
root, me = int(sys.argv[1]), os.getpid()
def read(pid, name):
    try:
        with open("/proc/%d/%s" % (pid, name), "rb") as file:
            return file.read()
    except OSError:
        return b""
def below():
    children = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        fields = read(pid, "stat").rpartition(b")")[2].split()
        if len(fields) > 1 and fields[0] not in b"ZX":
            children.setdefault(int(fields[1]), []).append(pid)
    own = read(root, "cmdline")
    helpers = {pid for pid in children.get(root, ()) if read(pid, "cmdline") == own}
    found, todo = set(), [root]
    while todo:
        for pid in children.get(todo.pop(), ()):
            todo.append(pid)
            found.add(pid)
    return found - helpers - {me}
def send(pids, number):
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            pass
stopped = set()
for _ in range(200):
    new = below() - stopped
    if not new:
        break
    send(new, signal.SIGSTOP)
    stopped |= new
send(stopped, signal.SIGKILL)
"""
_TIMEOUT = 30.0


async def restart_processes(sandbox: ChannelSandbox) -> None:
    """End every process of the sandbox but its executor; a new shell is there when this returns.

    Raises:
        SandboxLostError: the sandbox is lost.
        SandboxError: its processes could not be ended.
    """
    argv = ["python3", "-I", "-S", "-c", _KILL_ALL, str(sandbox.executor["pid"])]
    result = await sandbox.exec(argv, cwd="/", timeout=_TIMEOUT)
    if result.exit_code != 0:
        raise SandboxError(
            f"The sandbox could not be restarted: {result.text.strip()[-300:] or 'it timed out'}."
        )
    await sandbox.run(":", timeout=_TIMEOUT)
