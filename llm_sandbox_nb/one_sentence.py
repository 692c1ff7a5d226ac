"""Errors whose message says all: a notebook's cell shows the sentence in place of a traceback.

It imports nothing of the package, so that every room can use it.
"""

from __future__ import annotations


class OneSentence:
    """Mixed into an exception class, before the builtin that it extends."""

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows."""
        return [f"{type(self).__name__}: {self}"]
