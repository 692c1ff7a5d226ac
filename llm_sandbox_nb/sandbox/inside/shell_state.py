"""The state of the shell, as a script that brings it back: directory, umask, options, variables, functions.

It is asked of bash itself, in a subshell and with builtins only. A function or alias of the same name is not
called: special builtins come before functions in POSIX mode, and one of them removes the function `builtin`. In the
script they come last, so that they do not meddle with the rest.
"""

from __future__ import annotations

import os
import signal

from .processes import kill_all, own_tree, send_signal
from .wire import bytes_to_text, write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .loop import Executor
    from .shell import Shell

STATE_SIZE = 1024 * 1024
TALK_SECONDS = (
    3.0  # after these, what bash has started for our question is killed; after three times as many, bash
)
THE_END = b"#end\n"
TRACED = b"#traced\n"
SERIAL = b"SERIAL"
SAVE = (
    rb"""( _LLM_P=$SHELLOPTS; POSIXLY_CORRECT=1; _LLM_T=$(\trap -p); \trap - DEBUG ERR RETURN EXIT; """
    rb"""\unset -f builtin; \unset POSIXLY_CORRECT; \builtin ulimit -Sf 2048; \builtin shopt -p; """
    rb"""\builtin unset -v RANDOM SRANDOM SECONDS EPOCHSECONDS EPOCHREALTIME LINENO BASHPID PIPESTATUS HISTCMD """
    rb"""BASH_COMMAND BASH_SUBSHELL BASH_LINENO BASH_ARGC BASH_ARGV BASH_SOURCE FUNCNAME DIRSTACK GROUPS """
    rb"""BASH_ALIASES BASH_CMDS; """
    rb"""\builtin umask -p; \builtin declare -p; \builtin printf 'cd -- %q\n' "$PWD"; """
    rb"""\builtin printf '%s\n' "$_LLM_T"; \builtin set +o; \builtin declare -f; \builtin declare -F; """
    rb"""\builtin alias -p; [[ $_LLM_P != *posix* ]] || \builtin printf 'POSIXLY_CORRECT=y\n'; """
    rb"""\builtin printf '#end\n'; """
    rb"""\builtin printf '%s\n' 'SERIAL 0 -' >&199 ) >&197 2>/dev/null </dev/null || """
    rb"""builtin printf '%s\n' 'SERIAL 0 -' >&199"""
    b"\n"
)
RESTORE = (
    rb""". /dev/fd/196 0</dev/null 196<&197 194>&- 195>&- 197<&- 199>&- >/dev/null 2>&1; """
    rb"""\builtin unset _LLM_T _LLM_P; \builtin printf '%s\n' 'SERIAL 0 -' >&199"""
    b"\n"
)


class Talk:
    """A line of ours for the shell, between two commands."""

    def __init__(self, executor: Executor, line: bytes, script: bytes, done: Callable[[bool], None]) -> None:
        self.executor = executor
        self.line = line
        self.script = script
        self.done = done
        self.before: dict[int, tuple[int, int]] = {}
        self.tries = 0

    def start(self, shell: Shell) -> None:
        """Say it."""
        self.before = own_tree()
        os.ftruncate(shell.source, 0)
        os.lseek(shell.source, 0, os.SEEK_SET)
        if self.script:
            write_all(shell.source, b"exec 196<&-;" + self.script)
        self.executor.after(TALK_SECONDS, self.late)
        send_signal(shell.pid, signal.SIGCONT)  # somebody may have stopped it
        shell.tell(self.line.replace(SERIAL, b"%d" % shell.serial))

    def late(self) -> None:
        """Bash does not answer: it waits for something."""
        shell = self.executor.shell
        if shell.talk is not self:
            return
        self.tries += 1
        if self.tries < 3:
            kill_all(lambda: set(own_tree()) - set(self.before) - self.executor.helper_pids() - {shell.pid})
            self.executor.after(TALK_SECONDS, self.late)
        else:
            send_signal(shell.pid, signal.SIGKILL)


class ShellStates:
    """Asks for the state when it can have changed, and brings one back."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.key = (0, 0)
        self.state = b""
        self.cwd = ""
        self.told: tuple[str, bytes] | None = None

    def current_key(self) -> tuple[int, int]:
        """Another one when a command has run since."""
        shell = self.executor.shell
        return shell.pid, shell.commands

    def ask(self, done: Callable[[str], None]) -> None:
        """Have the present state in `state`; `done` is told why there is none."""
        shell = self.executor.shell
        if shell.current:
            done("a command was under way")
        elif self.state and self.key == self.current_key():
            done("")
        else:
            shell.say(Talk(self.executor, SAVE, b"", lambda well: self.saved(well, done)))

    def saved(self, well: bool, done: Callable[[str], None]) -> None:
        """Bash has written its state."""
        shell = self.executor.shell
        self.state, self.key = b"", self.current_key()
        if not well:
            done("the shell ended")
            return
        script = os.pread(shell.source, STATE_SIZE + 1, 0)
        if len(script) > STATE_SIZE or not script.endswith(THE_END):
            done("the shell's variables and functions take more than 1 MiB")
            return
        place = self.note_place()
        self.state = (TRACED if shell.trace else b"") + go_to(place) + script
        done("")

    def note_place(self) -> bytes:
        """Where the shell is."""
        try:
            place = os.readlink(b"/proc/%d/cwd" % self.executor.shell.pid)
        except OSError:
            place = b""
        self.cwd = bytes_to_text(place)
        return place

    def bring_back(self, state: bytes, done: Callable[[str], None]) -> None:
        """Give a new shell this state; `done` is told what could not be brought back."""
        shell = self.executor.shell
        shell.say(Talk(self.executor, RESTORE, state, lambda well: self.brought(state, well, done)))

    def brought(self, state: bytes, well: bool, done: Callable[[str], None]) -> None:
        """The new shell has it."""
        shell = self.executor.shell
        self.key = self.current_key()
        if not well:
            done("the shell's variables and functions could not be brought back")
            return
        self.state = state
        self.note_place()
        if state.startswith(TRACED):
            shell.trace = b"set -x;"
        done("")

    def tell(self, id: str, since: str | None, why: str) -> tuple[dict[str, str], bytes]:
        """What a checkpoint says of the shell, and the state if the host does not have it."""
        if why:
            return {"state": "none", "cwd": "", "why": why}, b""
        same = since is not None and self.told == (since, self.state)
        self.told = (id, self.state)
        return {"state": "same" if same else "new", "cwd": self.cwd, "why": ""}, b"" if same else self.state


def go_to(place: bytes) -> bytes:
    """A line that enters a folder, by its real name; the name that the shell had for it comes later."""
    return b"cd -- '" + place.replace(b"'", b"'\\''") + b"'\n" if place else b""
