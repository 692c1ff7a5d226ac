"""Which cell of which page a run belongs to, so that a page that is loaded again finds the cell."""

from __future__ import annotations

from typing import Any, TypedDict


class PageCell(TypedDict):
    """The cell that is being executed."""

    id: str
    """The id of the cell in its notebook; empty where the front end does not say it."""
    request: str
    """The id of the message that asked for the execution; all output of the cell names it."""
    client: str
    """The page that asked."""
    count: int
    """The number in the cell's prompt."""


def page_cell(shell: Any) -> PageCell | None:
    """The cell that `shell` executes; None outside of a kernel. To be called in the thread of the cell."""
    get_parent = getattr(shell, "get_parent", None)
    if getattr(shell, "kernel", None) is None or get_parent is None:
        return None
    parent: dict[str, Any] = get_parent() or {}
    header, metadata = parent.get("header") or {}, parent.get("metadata") or {}
    return {
        "id": str(metadata.get("cellId") or ""),
        "request": str(header.get("msg_id") or ""),
        "client": str(header.get("session") or ""),
        "count": len(shell.user_ns.get("In", ())) - 1,  # the shell has counted on already, in some versions
    }
