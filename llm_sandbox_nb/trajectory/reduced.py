"""A conversation in the shorter form that a small context needs: the messages that are sent after a reduction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llm_sandbox_nb.trajectory.events import ContextReduced


def reduced_messages(messages: Sequence[dict[str, Any]], event: ContextReduced) -> list[dict[str, Any]]:
    """The messages as they are sent after `event`; places that do not exist are ignored."""
    sent = list(messages)
    for one in event.shown:
        if 0 <= one.at < len(sent):
            sent[one.at] = {**sent[one.at], "content": one.content}
    if 0 <= event.removed_from <= event.removed_to:
        del sent[event.removed_from : event.removed_to]
    return sent
