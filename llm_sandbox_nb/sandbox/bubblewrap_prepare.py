"""What the first program inside a bubblewrap sandbox does before it becomes the executor."""

from __future__ import annotations

from collections.abc import Sequence

from llm_sandbox_nb.sandbox.bubblewrap_view import PROFILE_USERS
from llm_sandbox_nb.sandbox.capabilities import TO_BECOME, become_user

PREPARING_CAPABILITIES = ("CAP_CHOWN", *TO_BECOME)
"""What the steps need, and have given up at their end."""

_CLOSE = """
import os
os.closerange(3, 1024)
"""
_HAND_OVER = """
def hand_over(user, home):
    for folder, names, files in os.walk(home + '/.venv'):
        for name in names + files:
            os.lchown(os.path.join(folder, name), user, user)
    for folder in (os.getcwd(), home, home + '/.venv'):
        os.lchown(folder, user, user)
"""
"""bubblewrap made the folders as root inside."""
_END_WITH_PARENT = """
import ctypes
ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
"""
"""To change the user takes away that the kernel ends this process with its parent."""


def prepared(argv: Sequence[str], *, profile: str, many_users: bool) -> list[str]:
    """The executor's command (`python ... -c PROGRAM`) with the steps before it."""
    *command, program = argv
    steps = [_CLOSE]
    user = PROFILE_USERS[profile]
    if many_users and user.uid != 0:
        steps += [
            _HAND_OVER,
            f"hand_over({user.uid}, {user.home!r})",
            become_user(user.uid),
            _END_WITH_PARENT,
        ]
    return [*command, "\n".join([*steps, program])]
