"""The state of the shell, as a script that restores the directory, umask, options, variables and functions.

Bash itself writes the script, in a subshell and with builtins only. A command may have defined functions and aliases
with the names of builtins. The subshell must not call them in place of the builtins. A backslash before a name
prevents an alias. In POSIX mode, special builtins such as `unset` have priority over functions, so `unset` can remove
a function `builtin`. After that, `builtin NAME` calls the real builtin.

POSIX mode turns the option inherit_errexit on for good. So the script turns the option off again if it was off before.
Functions and aliases are last in the script, so that they cannot change the effect of the other lines.
"""

from __future__ import annotations

import os

from .shell import Shell, ShellScript

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

MAX_STATE_BYTES = 1024 * 1024
THE_END = b"#end\n"
TRACED = b"#traced\n"
SAVE = (
    rb"""( _LLM_P=$SHELLOPTS:$BASHOPTS; POSIXLY_CORRECT=1; _LLM_T=$(\trap -p); \trap - DEBUG ERR RETURN EXIT; """
    rb"""\unset -f builtin; \unset POSIXLY_CORRECT; \builtin ulimit -Sf 2048; \builtin shopt -p; """
    rb"""[[ $_LLM_P == *inherit_errexit* ]] || \builtin printf 'shopt -u inherit_errexit\n'; """
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


class ShellState:
    """State of the shell, which is saved for a checkpoint if a command may have changed the state."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        self.key = (0, 0)
        self.state = b""
        self.sent: tuple[str, bytes] | None = None

    def current_key(self) -> tuple[int, int]:
        """Return a value that differs after every command."""
        return self.shell.pid, self.shell.commands

    def save(self, done: Callable[[bool], None]) -> None:
        """Update `state`. Then call `done` with True, or with False if that failed."""
        shell = self.shell
        if shell.current:
            done(False)
        elif self.state and self.key == self.current_key():
            done(True)
        else:
            shell.enqueue_script(ShellScript(shell, SAVE, b"", lambda ok: self.saved(ok, done)))

    def saved(self, ok: bool, done: Callable[[bool], None]) -> None:
        """Read the state that bash has written, unless it is too large."""
        shell = self.shell
        self.state, self.key = b"", self.current_key()
        script = os.pread(shell.source, MAX_STATE_BYTES + 1, 0) if ok else b""
        if len(script) > MAX_STATE_BYTES or not script.endswith(THE_END):
            done(False)
            return
        try:
            folder = os.readlink(b"/proc/%d/cwd" % shell.pid)
        except OSError:
            folder = b""
        self.state = (TRACED if shell.trace else b"") + enter(folder) + script
        done(True)

    def restore(self, state: bytes, done: Callable[[str], None]) -> None:
        """Set this state in a new shell. Then call `done` with the reason of a failure, or with an empty text."""
        script = ShellScript(self.shell, RESTORE, state, lambda ok: self.restored(state, ok, done))
        self.shell.enqueue_script(script)

    def restored(self, state: bytes, ok: bool, done: Callable[[str], None]) -> None:
        self.key = self.current_key()
        if not ok:
            done("the shell's variables and functions could not be restored")
            return
        self.state = state
        if state.startswith(TRACED):
            self.shell.trace = b"set -x;"
        done("")

    def report(self, id: str, since: str | None) -> tuple[str, bytes]:
        """Return "new" and the state, or "same" and b"" if the host has this state already.

        `id` is the checkpoint that is made, and `since` the earlier checkpoint that the host has, if any.
        """
        same = since is not None and self.sent == (since, self.state)
        self.sent = (id, self.state)
        return ("same", b"") if same else ("new", self.state)


def enter(folder: bytes) -> bytes:
    """Return a line that enters a folder by its real path, or b"" without a folder.

    A later line of the script enters the folder again by the path in PWD, which may contain links.
    """
    return b"cd -- '" + folder.replace(b"'", b"'\\''") + b"'\n" if folder else b""
