"""The kernels of this Jupyter server: their owner, state and notebooks."""

from __future__ import annotations

from typing import Any

from jupyter_core.utils import ensure_async
from tornado.web import HTTPError


class ServerKernels:
    """Access to the server's kernel and session managers."""

    def __init__(self, kernel_manager: Any, session_manager: Any) -> None:
        self._kernels = kernel_manager
        self._sessions = session_manager

    def owns(self, kernel_id: str) -> bool:
        """Return True if this server started the kernel and has not shut it down."""
        return kernel_id in self._kernels

    async def alive(self, kernel_id: str) -> bool:
        """Return True if the server considers the kernel's process to be running."""
        if not self.owns(kernel_id):
            return False
        check = getattr(self._kernels.get_kernel(kernel_id), "is_alive", None)
        return check is None or bool(await ensure_async(check()))

    async def notebook(self, kernel_id: str) -> str | None:
        """Return the current path of the notebook that uses the kernel, relative to the server's root."""
        try:
            session = await ensure_async(self._sessions.get_session(kernel_id=kernel_id))
        except HTTPError:
            return None
        path: str = session["path"]
        return path
