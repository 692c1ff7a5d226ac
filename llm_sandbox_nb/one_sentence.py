"""Errors with a complete message: a notebook's cell shows the sentence in place of a traceback.

This module imports nothing of the package, so that every package can use it.
"""

from __future__ import annotations


class OneSentence:
    """Mixin of an exception class, named before the builtin base class."""

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows."""
        return [f"{type(self).__name__}: {self}"]
