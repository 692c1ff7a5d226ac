"""Checkpoints of the files after each call. They are made while the model writes. Only the next call waits for a
checkpoint that is not complete.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field

from llm_sandbox_nb.agent.recorder import Recorder
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.errors import HistoryNotWrittenError, SandboxError, SandboxLostError
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.run_folder import HISTORY

logger = logging.getLogger(__name__)


@dataclass
class Checkpoints:
    """Checkpoints of a sandbox for one run."""

    box: Sandbox
    recorder: Recorder
    waited: list[float] = field(default_factory=list)
    """Seconds that each call had to wait for a checkpoint."""
    _task: asyncio.Task[None] | None = None
    off: str = ""
    """Message that says why checkpoints are off. Empty while checkpoints are on."""
    _noted: str = ""
    _no_room: bool = False
    """True while this machine cannot store the files of a step. The problem is reported once."""

    async def begin(self) -> None:
        """Store checkpoints in the run's folder from now on, together with the sandbox's existing checkpoints."""
        try:
            await self.box.keep_history(self.recorder.folder / HISTORY)
        except SandboxLostError:
            raise
        except (SandboxError, OSError) as error:
            self.off = f"The files of this run's steps are not kept: {_sentence(error)}"
            self._note(self.off)

    def start(self, step: int) -> None:
        """Start a checkpoint of the files after `step`. `settle` waits for its completion."""
        if not self.off:
            self._task = asyncio.create_task(self._take(step))

    async def settle(self) -> None:
        """Wait until the started checkpoint is complete.

        Raises:
            SandboxLostError: if the sandbox died meanwhile.
        """
        started = time.monotonic()
        if self._task is not None:
            await asyncio.shield(self._task)
        self._task = None
        self.waited.append(time.monotonic() - started)

    async def complete(self) -> None:
        """Wait until the started checkpoint has ended. If it failed, the next `settle` raises the exception."""
        if self._task is not None:
            await asyncio.wait({self._task})

    async def abandon(self) -> None:
        """Stop the started checkpoint, and ignore its exceptions."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _take(self, step: int) -> None:
        try:
            checkpoint = await self.box.checkpoint()
            history = self.box.history
            found = next((entry for entry in reversed(history.checkpoints) if entry.id == checkpoint), None)
        except SandboxLostError:
            raise
        except HistoryNotWrittenError as error:
            if not self._no_room:
                self._note(
                    f"The files after step {step}, and after later steps while the problem lasts, are not kept: "
                    f"{_sentence(error)}"
                )
            self._no_room = True
            return
        except (SandboxError, OSError) as error:
            self._note(f"The files after step {step} are not kept: {_sentence(error)}")
            return
        self._no_room = False
        event = ev.Checkpointed(step=step, checkpoint=checkpoint)
        if found is not None and checkpoint != self.recorder.trajectory.files:
            event.files, event.size, event.duration = found.files, found.size, found.duration
            event.incomplete = str(ev.clean_text(found.incomplete))
        self.recorder.emit(event)
        self._note(history.notice)

    def _note(self, text: str) -> None:
        if text and text != self._noted:
            self._noted = text
            self.recorder.emit(ev.Noted(text=str(ev.clean_text(text))))


def _sentence(error: BaseException) -> str:
    text = str(error).strip().rstrip(".") or type(error).__name__
    return f"{text}."
