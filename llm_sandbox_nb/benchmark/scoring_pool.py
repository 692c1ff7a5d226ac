"""Asynchronous pool of worker processes that score answers and run the Python files of tasks, each with a deadline."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from llm_sandbox_nb.benchmark.rows import DataError, Row
from llm_sandbox_nb.benchmark.text_scorers import NO_ANSWER, Score
from llm_sandbox_nb.trajectory.run_folder import FILES

DEADLINE_SECONDS = 60.0
"""Maximum seconds for one request."""
_MAX_REPLY_BYTES = 64 * 1024**2
"""Maximum size of a reply in bytes. The limit is high because a prompt contains whole documents."""
_PIPE_SECONDS = 5.0
"""Seconds in which the pipes of a killed worker must close."""


def row_columns(row: Row) -> dict[str, Any]:
    """Return the columns of a row for a task's Python files, by their names in the data, without the gold answer."""
    columns: dict[str, Any] = json.loads(json.dumps(dict(row.extra), default=str))
    return columns | {
        "id": row.id,
        "domain": row.domain,
        "problem_statement": row.problem_statement,
        "qa_type": row.qa_type,
        "input_files": dict(row.input_files),
    }


class Scoring:
    """Pool of a few worker processes, which start on demand and end with the block `async with Scoring() as scoring:`.

    A request after the block starts a worker again.
    """

    def __init__(self, workers: int = 1, deadline: float = DEADLINE_SECONDS) -> None:
        self.deadline = deadline
        # The worker that was used last is used next. Thus a second worker starts only for a concurrent request.
        self._free: asyncio.LifoQueue[_Worker] = asyncio.LifoQueue()
        self._all = [_Worker() for _ in range(workers)]
        for worker in self._all:
            self._free.put_nowait(worker)

    async def score(self, scorer: str, answer: str | None, row: Row, run: Path | None = None) -> Score:
        """Score an answer. If the scorer hangs, dies or returns nothing, the score is marked as failed.

        `run` is the folder of the run. A task's own scorer may read the output files in this folder.
        """
        if not scorer.endswith(".py") and (answer is None or not answer.strip()):
            return NO_ANSWER
        request = {"scorer": scorer, "answer": answer, "gold": row.ground_truth, "row": row_columns(row)}
        request["files"] = str(run / FILES) if run is not None else None
        reply = await self._ask(request)
        if reply["value"] is None:
            return Score(None, str(reply["detail"]) or "the scorer gave no score", failed=True)
        return Score(reply["value"], str(reply["detail"]))

    async def check(self, scorer: str) -> str:
        """Return the reason why a scorer's Python file cannot be used, or an empty text for a usable file."""
        return str((await self._ask({"check": scorer}))["detail"])

    async def prompt(self, asker: str, row: Row) -> str:
        """Call a task's `create_prompt` for a row, and return the prompt. Raise DataError if the call fails."""
        columns = row_columns(row) | {"ground_truth": row.ground_truth}
        reply = await self._ask({"asker": asker, "row": columns})
        if "prompt" not in reply:
            raise DataError(f"{asker} gave no prompt for row {row.id}: {reply['detail']}.")
        return str(reply["prompt"])

    async def _ask(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        worker = await self._free.get()
        try:
            async with asyncio.timeout(self.deadline):
                return await worker.ask(request)
        except TimeoutError:
            await worker.kill()
            return _unanswered(f"the scorer did not end within {self.deadline:g} s")
        except asyncio.LimitOverrunError:
            await worker.kill()
            return _unanswered("the scorer's reply is too long")
        except (ConnectionError, asyncio.IncompleteReadError, ValueError):
            await worker.kill()
            return _unanswered("the scorer's process died")
        except BaseException:
            await worker.kill()
            raise
        finally:
            self._free.put_nowait(worker)

    async def close(self) -> None:
        for worker in self._all:
            await worker.kill()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


def _unanswered(detail: str) -> Mapping[str, Any]:
    return {"value": None, "detail": detail}


class _Worker:
    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    async def ask(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        process = self._process or await self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request).encode() + b"\n")
        await process.stdin.drain()
        line = await process.stdout.readuntil(b"\n")
        reply: Mapping[str, Any] = json.loads(line)
        return reply

    async def _start(self) -> asyncio.subprocess.Process:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "llm_sandbox_nb.benchmark.scoring_worker",
            str(os.getpid()),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=_MAX_REPLY_BYTES,
            start_new_session=True,  # Ctrl-C must not reach the scorer
        )
        return self._process

    async def kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:  # after its end, another process may have the same number
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with all processes that the scorer has started
        with suppress(TimeoutError, ConnectionError):
            # a process that left the group may keep the pipes open
            async with asyncio.timeout(_PIPE_SECONDS):
                await process.communicate()
