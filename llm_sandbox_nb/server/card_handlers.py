"""Routes that turn a record into the final card of a run, or into events if another project wrote the record.

See `rest-api.yml`. The records are read by other processes (`llm_sandbox_nb.card.saved` and `llm_sandbox_nb.formats`),
so that a damaged or very large record does not slow the server.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

from llm_sandbox_nb.sandbox.errors import OutputLimitExceededError
from llm_sandbox_nb.server.handlers import API, SandboxAPIHandler, rest_verb
from llm_sandbox_nb.server.run_handlers import RUN_ID, contents_path, record_folder
from llm_sandbox_nb.server.runs import RunControlError, UnknownRunError

_MAX_BYTES = 64 * 1024 * 1024
"""Maximum size in bytes of the output of these processes, and of an uploaded record."""
_READ_SECONDS = 60.0
"""Time limit in seconds for reading a record."""
_STILL_RUNNING_CODE = 4
"""Exit code of `llm_sandbox_nb.card.saved` if a process still executes the run."""
_one_at_a_time = asyncio.Semaphore(1)
NO_RECORD = "The record of this run is not next to the notebook, or cannot be read."
NO_TRAJECTORY = "This file is not a trajectory."
TOO_LARGE = "This file is too large to be shown: read it with llm-sandbox-nb show."


class RunCardHandler(SandboxAPIHandler):
    """Handler for the final card of a run."""

    @rest_verb
    async def get(self, run_id: str) -> None:
        """Return a cell output with the card of an ended run, to be saved in the notebook `path`."""
        path = self.path()
        notebook = contents_path(self, path)
        known = next((run for run in self.runs.all() if run.id == run_id), None)
        if known is not None and known.state in ("live", "away"):
            raise RunControlError("The run is not over.")
        folder = known.folder if known is not None else None
        if folder is None and notebook is not None:
            folder = record_folder(notebook, run_id)
        if folder is None:
            raise UnknownRunError(NO_RECORD)
        code, card = await _printed(
            "llm_sandbox_nb.card.saved", str(folder), cwd=notebook.parent if notebook is not None else folder
        )
        if code == _STILL_RUNNING_CODE:
            raise RunControlError("A process still executes the run.")
        if code != 0:
            raise UnknownRunError(NO_RECORD)
        self.set_header("Content-Type", "application/json")
        self.finish(card)


class ForeignRecordHandler(SandboxAPIHandler):
    """Handler for a record in another project's format, which a page sends."""

    @rest_verb
    async def post(self) -> None:
        """Return the events of a record, in the form of a journal."""
        if len(self.request.body) > _MAX_BYTES:
            raise OutputLimitExceededError(TOO_LARGE)
        with tempfile.TemporaryFile() as given:
            given.write(self.request.body)
            given.seek(0)
            code, record = await _printed("llm_sandbox_nb.formats.records", given=given)
        if code is None:
            raise OutputLimitExceededError(TOO_LARGE)
        if code != 0:
            raise ValueError(NO_TRAJECTORY)
        self.set_header("Content-Type", "application/json")
        self.finish(record)


async def _printed(
    module: str, *arguments: str, cwd: Path | None = None, given: IO[bytes] | None = None
) -> tuple[int | None, bytes]:
    """Run a module as a program. Return its exit code, or None after too much time or output, and its output."""
    async with _one_at_a_time:
        # -P: the program imports no modules of the notebook's folder, its working directory.
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", module, *arguments),
            cwd=cwd,
            stdin=given or subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdout is not None
        printed = bytearray()
        try:
            async with asyncio.timeout(_READ_SECONDS):
                while len(printed) <= _MAX_BYTES and (part := await process.stdout.read(1024 * 1024)):
                    printed += part
                code = await process.wait() if len(printed) <= _MAX_BYTES else None
        except TimeoutError:
            code = None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return code, bytes(printed)


card_routes: list[tuple[str, type[Any]]] = [
    (rf"{API}/runs/{RUN_ID}/card", RunCardHandler),
    (rf"{API}/foreign-record", ForeignRecordHandler),
]
"""Routes below the server's base URL."""
