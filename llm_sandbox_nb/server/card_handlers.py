"""The route by which a notebook gets the final card of a run that it shows as it was when it was saved.

See `rest-api.yml`. The card is made by another process, `llm_sandbox_nb.card.saved`: this one knows no cards.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from jupyter_server.auth.decorator import authorized
from tornado import web

from llm_sandbox_nb.server.handlers import API, SandboxAPIHandler, report_errors
from llm_sandbox_nb.server.run_handlers import RUN_ID, contents_path, record_folder
from llm_sandbox_nb.server.runs import RunControlError, UnknownRunError

_LIMIT = 64 * 1024 * 1024
"""Bytes of a card."""
_PATIENCE = 60.0
"""Seconds that making one may take."""
_RUNNING = 4
"""The exit code of `llm_sandbox_nb.card.saved` when a process still executes the run."""
_one_at_a_time = asyncio.Semaphore(1)
NO_RECORD = "The record of this run is not beside the notebook, or cannot be read."


class RunCardHandler(SandboxAPIHandler):
    """The final card of a run."""

    @web.authenticated
    @authorized
    @report_errors
    async def get(self, run_id: str) -> None:
        """The output that the notebook `path` keeps of a run that is over, from the run's record."""
        path = self.get_query_argument("path")
        notebook = contents_path(self, path)
        known = next((run for run in self.runs.all() if run.id == run_id), None)
        if known is not None and known.state in ("live", "away"):
            raise RunControlError("The run is not over.")
        folder = known.folder if known is not None else None
        if folder is None and notebook is not None:
            folder = record_folder(notebook, run_id)
        if folder is None:
            raise UnknownRunError(NO_RECORD)
        async with _one_at_a_time:
            card = await _card(folder, notebook.parent if notebook is not None else folder)
        self.set_header("Content-Type", "application/json")
        self.finish(card)


async def _card(folder: Path, below: Path) -> bytes:
    """The card as JSON. Raises RunControlError while a process executes the run, UnknownRunError when there is none."""
    # Isolated from the notebook's folder: nothing that lies there is imported.
    command = [sys.executable, "-P", "-m", "llm_sandbox_nb.card.saved", str(folder)]
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=below,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    card = bytearray()
    try:
        async with asyncio.timeout(_PATIENCE):
            while len(card) <= _LIMIT and (part := await process.stdout.read(1024 * 1024)):
                card += part
            code = await process.wait() if len(card) <= _LIMIT else None
    except TimeoutError:
        code = None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if code == _RUNNING:
        raise RunControlError("A process still executes the run.")
    if code != 0:
        raise UnknownRunError(NO_RECORD)
    return bytes(card)


card_routes: list[tuple[str, type[Any]]] = [(rf"{API}/runs/{RUN_ID}/card", RunCardHandler)]
"""The route below the server's base URL."""
