"""The one exception that says that what was typed is wrong."""

from __future__ import annotations


class UsageError(Exception):
    """What was asked for cannot be understood. The message is one sentence that says what to do."""
