"""Run folders for the samples of Inspect AI, in addition to Inspect's log. Each call to the sandbox is a step.

Inspect's log has the conversation. A run folder has the files after each call. So a notebook can open a sample, rewind
it to a call, and fork a sandbox with the files after this call. `STORE_KEY` in the sample's store names the run folder.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shlex
import time
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from llm_sandbox_nb.agent.checkpoints import Checkpoints
from llm_sandbox_nb.agent.recorder import Recorder, new_run_folder, versions
from llm_sandbox_nb.agent.session import protection_json
from llm_sandbox_nb.agent.tools.text_file import file_diffs
from llm_sandbox_nb.errors import LLMSandboxError
from llm_sandbox_nb.sandbox.contract import CommandResult, Sandbox
from llm_sandbox_nb.trajectory import events as ev

logger = logging.getLogger(__name__)
STORE_KEY = "llm_sandbox_nb_run"
"""Key under which a sample's store holds the path of the run folder."""
_OBSERVATION_CHARACTERS = 20_000
MAX_RECORDED_BYTES = 20_000
"""Maximum number of bytes of a written file, or of a command's standard input, in the arguments of a step. A checkpoint
has the complete file."""


class SampleRecord:
    """Recorder of the calls of one sample's sandbox. A failure to record is logged and does not end the sample."""

    def __init__(self, sandbox: Sandbox, recorder: Recorder) -> None:
        self.folder = recorder.folder
        self._sandbox = sandbox
        self._recorder = recorder
        self._checkpoints = Checkpoints(sandbox, recorder)
        self._started = time.monotonic()
        self._lock = asyncio.Lock()
        self._step = 0
        self._broken = False

    @classmethod
    async def begin(cls, sandbox: Sandbox, parent: str, task_name: str) -> SampleRecord | None:
        """Begin the record of a sample in `parent`, and write the folder's path to the sample's store.

        Returns:
            The record, or None if the folder cannot be made. The failure is logged.
        """
        from inspect_ai.util import store

        state = _sample_state()
        name = f"{task_name}-{state.sample_id}-{state.epoch}" if state is not None else task_name
        try:
            recorder = Recorder(new_run_folder(Path(parent), name))
            record = cls(sandbox, recorder)
            await record._begin(task_name, state)
        except (LLMSandboxError, OSError) as error:
            logger.warning("the calls of a sample are not recorded: %s", error)
            return None
        store().set(STORE_KEY, str(record.folder))
        return record

    async def _begin(self, task_name: str, state: Any) -> None:
        task = state.input_text if state is not None else task_name
        settings: dict[str, Any] = {"inspect_task": task_name}
        if state is not None:
            settings |= {"inspect_sample": str(state.sample_id), "inspect_epoch": state.epoch}
        self._recorder.emit(
            ev.RunStarted(
                run_id=self.folder.name,
                task=str(ev.clean_text(task)),
                model=str(state.model) if state is not None else "",
                settings=settings,
                versions=versions(),
            )
        )
        box = self._sandbox
        protection, root = protection_json(box), box.directories.root
        self._recorder.emit(
            ev.SandboxReady(sandbox_id=box.id, protection=protection, start_time=0.0, root=root)
        )
        self._recorder.emit(ev.MessageAdded(message={"role": "user", "content": str(ev.clean_text(task))}))
        await self._checkpoints.begin()
        await box.changes()
        self._checkpoints.start(0)

    async def settle(self) -> None:
        """Wait until the files after the last call are stored. A new call must not begin before."""
        async with self._lock:
            await self._recorded(self._checkpoints.settle())

    async def executed(self, command: Sequence[str], given: Mapping[str, Any], result: CommandResult) -> None:
        """Record a command that has ended. `given` has further arguments by name. If a value is None, it is omitted."""
        arguments = {"command": shlex.join(command)} | {
            name: value for name, value in given.items() if value is not None
        }
        await self._record("execute_bash", arguments, result)

    async def written(self, path: str, content: bytes) -> None:
        """Record a file that Inspect has written."""
        text = content[:MAX_RECORDED_BYTES].decode("utf-8", "replace")
        await self._record("write_file", {"path": path, "content": text}, None)

    async def finish(self, *, interrupted: bool) -> None:
        """End the record after the conversation has ended or was interrupted, and before the sandbox is closed."""
        state = _sample_state()
        answer = state.output.completion if state is not None and not interrupted else None
        await self.settle()
        await self._recorded(self._add_end("interrupted" if interrupted else "answered", answer or None))
        self._recorder.close()

    async def _record(self, tool: str, arguments: dict[str, Any], result: CommandResult | None) -> None:
        """Record an ended call as a step. Calls may run concurrently, so a lock keeps the events of a call together."""
        async with self._lock:
            await self._recorded(self._checkpoints.settle())
            await self._recorded(self._add_step(tool, arguments, result))

    async def _recorded(self, work: Coroutine[Any, Any, None]) -> None:
        """Await `work`, which writes to the record. Do nothing if recording has failed before."""
        if self._broken:
            work.close()
            return
        try:
            await work
        except (LLMSandboxError, OSError) as error:
            self._broken = True
            logger.warning("the record %s ends here: %s", self.folder, error)

    async def _add_end(self, reason: ev.StopReason, answer: str | None) -> None:
        elapsed = time.monotonic() - self._started
        answer = ev.clean_text(answer)
        self._recorder.emit(
            ev.RunFinished(stop_reason=reason, answer=answer, steps=self._step, wall_time=elapsed)
        )

    async def _add_step(self, tool: str, arguments: dict[str, Any], result: CommandResult | None) -> None:
        changes, incomplete = await file_diffs(await self._sandbox.changes())
        arguments = {name: ev.clean_text(value) for name, value in arguments.items()}
        self._step, raw = self._step + 1, json.dumps(arguments, ensure_ascii=False)
        id, step = f"call-{self._step}", self._step
        function = {"name": tool, "arguments": raw}
        call = {"id": id, "type": "function", "function": function}
        self._recorder.emit(
            ev.ModelReplied(step=step, message={"role": "assistant", "content": None, "tool_calls": [call]})
        )
        self._recorder.emit(
            ev.CallProposed(step=step, call_id=id, tool=tool, raw_arguments=raw, arguments=arguments)
        )
        self._recorder.emit(ev.CallStarted(step=step, call_id=id, tool=tool, arguments=arguments))
        finished = ev.CallFinished(step=step, call_id=id, observation="", changes=changes)
        finished.changes_incomplete = incomplete
        if result is not None:
            text = str(ev.clean_text(result.text))
            finished.observation = text[-_OBSERVATION_CHARACTERS:]
            finished.exit_code, finished.timed_out = result.exit_code, result.timed_out
            finished.duration = result.duration
            finished.truncated = result.truncated or len(text) > _OBSERVATION_CHARACTERS
            finished.stdout = await self._recorder.store(result.stdout)
            finished.stderr = await self._recorder.store(result.stderr)
        self._recorder.emit(finished)
        self._checkpoints.start(step)


def _sample_state() -> Any:
    """Return the state of the current sample, or None if this version of Inspect does not provide it."""
    try:
        from inspect_ai.solver._task_state import sample_state
    except ImportError:
        return None
    return sample_state()
