"""The files after each call, kept while the model thinks: only the next call waits, and only if it must."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field
from pathlib import Path

from llm_sandbox_nb.agent.recorder import Recorder
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.errors import SandboxError, SandboxLostError
from llm_sandbox_nb.trajectory import events as ev

HISTORY_FOLDER = "history"
"""Where a run keeps the files of its sandbox, below its own folder."""

logger = logging.getLogger(__name__)


@dataclass
class Checkpoints:
    """Takes checkpoints of one sandbox for one run."""

    box: Sandbox
    recorder: Recorder
    waited: list[float] = field(default_factory=list)
    """Seconds that each call had to wait for a checkpoint."""
    _task: asyncio.Task[None] | None = None
    off: str = ""
    """Why no files are kept, in a sentence."""
    _told: str = ""

    async def begin(self) -> None:
        """Keep the history in the run's folder from now on; what the sandbox has of it comes along."""
        try:
            await self.box.keep_history(self.recorder.folder / HISTORY_FOLDER)
        except SandboxLostError:
            raise
        except (SandboxError, OSError) as error:
            self.off = f"The files of this run's steps are not kept: {_sentence(error)}"
            self._note(self.off)

    def start(self, step: int) -> None:
        """Begin to keep the files as they are after `step`; `settle` waits for it."""
        if not self.off:
            self._task = asyncio.create_task(self._take(step))

    async def settle(self) -> None:
        """Wait until the files are kept.

        Raises:
            SandboxLostError: the sandbox died meanwhile.
        """
        started = time.monotonic()
        if self._task is not None:
            await asyncio.shield(self._task)
        self._task = None
        self.waited.append(time.monotonic() - started)

    async def abandon(self) -> None:
        """Stop; whatever it raises no longer matters."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _take(self, step: int) -> None:
        try:
            checkpoint = await self.box.checkpoint()
            history = self.box.history
            found = next((one for one in reversed(history.checkpoints) if one.id == checkpoint), None)
        except SandboxLostError:
            raise
        except (SandboxError, OSError) as error:
            self._note(f"The files after step {step} are not kept: {_sentence(error)}")
            return
        event = ev.Checkpointed(step=step, checkpoint=checkpoint)
        if found is not None and checkpoint != self.recorder.trajectory.files:
            event.files, event.size, event.duration = found.files, found.size, found.duration
            event.incomplete = str(ev.clean_text(found.incomplete))
        self.recorder.emit(event)
        self._note(history.notice)

    def _note(self, text: str) -> None:
        if text and text != self._told:
            self._told = text
            self.recorder.emit(ev.Noted(text=str(ev.clean_text(text))))


def history_folder(run_folder: Path) -> Path:
    """Where the run in `run_folder` keeps the files of its steps."""
    return run_folder / HISTORY_FOLDER


def _sentence(error: BaseException) -> str:
    text = str(error).strip().rstrip(".") or type(error).__name__
    return f"{text}."
