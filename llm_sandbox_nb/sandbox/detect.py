"""Which isolations work on this machine, and why others do not."""

from __future__ import annotations

import asyncio

from llm_sandbox_nb.sandbox.bubblewrap import start_bubblewrap_sandbox, why_unsupported
from llm_sandbox_nb.sandbox.contract import Protection
from llm_sandbox_nb.sandbox.errors import SandboxError
from llm_sandbox_nb.sandbox.options import SandboxOptions

_bubblewrap_works: Protection | None = None


async def why_no_docker(image: str | None = None) -> str:
    """Why Docker cannot be used with `image` (None: our own), in words; empty when it can."""
    from llm_sandbox_nb.sandbox.docker_engine import engine_version
    from llm_sandbox_nb.sandbox.docker_image import DEFAULT_IMAGE, find_image

    try:
        await asyncio.to_thread(engine_version)
        await asyncio.to_thread(find_image, image or DEFAULT_IMAGE)
    except SandboxError as error:
        return str(error).rstrip(".")
    return ""


async def why_no_bubblewrap() -> str:
    """Why bubblewrap cannot be used, in words; empty when it can.

    The answer comes from a sandbox that is really started. That it worked is remembered.
    """
    global _bubblewrap_works
    reason = why_unsupported()
    if reason or _bubblewrap_works is not None:
        return reason
    try:
        async with await start_bubblewrap_sandbox(SandboxOptions("bubblewrap", "strict")) as sandbox:
            _bubblewrap_works = sandbox.protection
    except (SandboxError, OSError) as error:
        return str(error).rstrip(".")
    return ""
