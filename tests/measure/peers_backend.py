"""Peers as a backend of the benchmark's runner: each row in a process of the peer's own interpreter."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from llm_sandbox_nb.benchmark.item_pipeline import FatalError, Item, failed_result
from llm_sandbox_nb.benchmark.results import SCORER as UNSCORED
from llm_sandbox_nb.benchmark.results import Result, append_line, cell_folder
from llm_sandbox_nb.benchmark.scoring_pool import Scoring
from llm_sandbox_nb.encoded_text import text_of
from llm_sandbox_nb.examples.checks import MAX_FILE_BYTES, read_files
from llm_sandbox_nb.trajectory.run_folder import FILES
from measure.columns import LIMITS, SAMPLING, Column
from measure.local_server import Server

PEERS = Path(__file__).with_name("peers")
PACKAGES = {"llm_in_sandbox": "llm-in-sandbox==0.2.0", "mini_swe_agent": "mini-swe-agent==2.4.6"}
RECORD = "peer.json"
"""What a peer said of a row, in the row's folder."""
LONGEST = 3 * 3_600.0
"""Seconds for a row."""
_ENDING = 60.0
WHERE = (
    "\n\nInput files are in input/. Write the result alone to output/answer.txt, and other files to output/."
)
"""For a peer whose prompts do not say where files are."""


async def interpreter_of(column: Column, folder: Path) -> Path:
    """The peer's interpreter, in an environment of its own, which is made when it is not there.

    Raises:
        FatalError: it cannot be installed.
    """
    home = folder / column.peer
    python = home / "bin" / "python"
    if not (home / "installed").exists():
        for words in (
            [sys.executable, "-m", "venv", "--clear", str(home)],
            [str(python), "-m", "pip", "install", "--quiet", PACKAGES[column.peer]],
        ):
            made = await asyncio.create_subprocess_exec(*words, stderr=asyncio.subprocess.PIPE)
            _, said = await made.communicate()
            if made.returncode:
                raise FatalError(
                    f"{PACKAGES[column.peer]} cannot be installed: {said.decode(errors='replace')[-300:]}"
                )
        (home / "installed").touch()
    return python


@dataclass
class PeerBackend:
    """Runs rows with a peer. `program` is run by `python`; tests put others there."""

    python: Path
    program: Path
    out: Path
    server: Server
    image: str

    async def __aenter__(self) -> Self:
        self._scoring = Scoring(1)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._scoring.close()

    async def attempt(self, item: Item) -> tuple[Result, str | None]:
        """See `Backend.attempt`."""
        folder = cell_folder(self.out, item.task.name, item.mode) / "runs" / f"{item.row.id}-{item.repeat}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        started = time.time()
        try:
            said = await self._run(item, folder)
        except (OSError, ValueError, TimeoutError) as error:
            return failed_result(item, "error", f"{item.row.id}: {error}"[:500], started), None
        append_line(folder / RECORD, said)
        files = dict(read_files(folder / "copied"))
        (folder / FILES).mkdir()
        for name, data in files.items():
            (folder / FILES / name).write_bytes(data[:MAX_FILE_BYTES])
        written = text_of(files["answer.txt"]).strip() if "answer.txt" in files else ""
        answer = written or str(said.get("text") or "").strip() or None
        score = await self._scoring.score(item.task.scorer, answer, item.row, folder)
        return Result(
            *item.key,
            score=score.value,
            detail=score.detail,
            answer=answer,
            stop_reason="submitted" if said["submitted"] else "answered" if answer else "no_answer",
            error_kind=UNSCORED if score.value is None else "",
            error=score.detail if score.value is None else "",
            turns=said["requests"],
            prompt_tokens=said["prompt_tokens"],
            model_tokens=said["completion_tokens"],
            billed_tokens=said["prompt_tokens"] + said["completion_tokens"],
            started=started,
            wall_time=said["wall"],
            run=folder.relative_to(self.out).as_posix(),
        ), answer

    async def _run(self, item: Item, folder: Path) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as inputs:
            for name, text in item.row.input_files.items():
                (Path(inputs) / name).write_text(text, "utf-8")
            sampling = {
                name: value
                for name, value in asdict(SAMPLING).items()
                if name in ("temperature", "top_p", "top_k", "timeout")
            }
            given = {
                **sampling,
                "reply_tokens": SAMPLING.max_tokens,
                "problem": item.row.problem_statement,
                "where": WHERE,
                "inputs": inputs,
                "folder": str(folder),
                "steps": LIMITS.steps,
                "tokens": LIMITS.tokens,
                "model": f"openai/{self.server.model}",
                "api_base": self.server.url,
                "api_key": self.server.key,
                "image": self.image,
            }
            process = await asyncio.create_subprocess_exec(
                self.python, self.program,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
            try:
                async with asyncio.timeout(LONGEST):
                    output, errors = await process.communicate(json.dumps(given).encode())
            except BaseException:
                if process.returncode is None:
                    process.terminate()  # it removes its container
                    try:
                        async with asyncio.timeout(_ENDING):
                            await process.wait()
                    except TimeoutError:
                        process.kill()
                raise
        (folder / "errors.txt").write_bytes(errors)
        lines = output.decode("utf-8", "replace").strip().splitlines()
        try:
            said = json.loads(lines[-1])
        except (IndexError, ValueError):
            reason = " ".join(errors.decode("utf-8", "replace").split())[-300:]
            raise ValueError(
                f"the peer said nothing of the row (exit code {process.returncode}): {reason}"
            ) from None
        return dict(said)
