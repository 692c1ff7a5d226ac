"""Session of a run: open the sandbox, upload or restore files, execute the loop, collect the results, and close."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from llm_sandbox_nb.agent.artifacts import AnswerFiles, Collector, collected_names
from llm_sandbox_nb.agent.checkpoints import Checkpoints
from llm_sandbox_nb.agent.checks import ResultCheck
from llm_sandbox_nb.agent.connections import ConnectionRecord
from llm_sandbox_nb.agent.control.run_control import Move, RunControl, T
from llm_sandbox_nb.agent.control.settings_change import Changer
from llm_sandbox_nb.agent.conversation_state import (
    ConversationState,
    conversation_state,
    files_before_answer,
    seconds_so_far,
    tokens_so_far,
)
from llm_sandbox_nb.agent.errors import RunError, StopRun
from llm_sandbox_nb.agent.loop import Loop
from llm_sandbox_nb.agent.prompts import PromptConfig
from llm_sandbox_nb.agent.recorder import Recorder
from llm_sandbox_nb.agent.run_limits import Meter
from llm_sandbox_nb.agent.run_record import (
    RunRecord,
    claim_files,
    owns_files,
    release_sandbox,
    reserve_sandbox,
)
from llm_sandbox_nb.agent.run_spec import RunSpec, SandboxOpening
from llm_sandbox_nb.agent.workspace import Workspace
from llm_sandbox_nb.formats.llm_in_sandbox import write_seed
from llm_sandbox_nb.model.contract import ServedHere, SlowToBegin
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.errors import SandboxError, SandboxLostError
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.journal import JournalNotWrittenError
from llm_sandbox_nb.trajectory.run_folder import HISTORY
from llm_sandbox_nb.trajectory.state import CHECKED_ENDS

logger = logging.getLogger(__name__)
_COLLECT_TIMEOUT = 300.0
"""Maximum seconds for collecting the last files."""
_INTERRUPTED_COLLECT_TIMEOUT = 10.0
_FAILURES = frozenset({"model_error", "sandbox_lost", "error"})


@dataclass(frozen=True)
class Ending:
    """Reason of a run's end. `error` is a message if the run failed."""

    reason: ev.StopReason
    error: str | None = None


@dataclass(eq=False)
class Session:
    """Execution of one run."""

    spec: RunSpec
    recorder: Recorder
    record: RunRecord
    opening: SandboxOpening
    control: RunControl
    past: ConversationState | None = None
    """Conversation to continue. None for a new conversation."""
    box: Sandbox | None = None
    collector: Collector | None = None
    answers: AnswerFiles | None = None
    checkpoints: Checkpoints | None = None
    connections: ConnectionRecord | None = None
    changer: Changer | None = None

    def __post_init__(self) -> None:
        self.meter = Meter(self.spec.limits)
        self.meter.seconds_before = seconds_so_far(self.recorder.trajectory)
        context, model = self.record.context, self.spec.model
        context.loop, context.spec = asyncio.get_running_loop(), self.spec
        context.models[model.name] = model
        context.options = self.opening.options or context.options

    async def run(self) -> None:
        """Execute the run. Even after a failure, complete the record, and close a sandbox that the run owns.

        Raises:
            RunError: if the model, the sandbox or this program failed.
            asyncio.CancelledError: if the run was cancelled. A stop through its `RunControl` does not raise this error.
        """
        self.recorder.use_rules(self.spec.doubts)
        try:
            folder = self.recorder.folder
            start = ev.Continued(source="python") if self.past else self.spec.start_event(folder.name)
            if self.spec.check is not None:
                kept = await asyncio.to_thread(self.spec.check.kept_in, folder)
                self.spec = self.record.context.spec = dataclasses.replace(self.spec, check=kept)
                self.record.context.checks[kept.key] = kept
            self.recorder.emit(start)
            model = self.spec.model
            if isinstance(model, ServedHere) and (introduction := model.introduction()):
                self.recorder.emit(ev.Noted(text=introduction))
                model.log_to(folder)
        except BaseException as error:  # cancellation included
            self.recorder.close()
            await self.opening.discard()
            if isinstance(error, OSError):
                raise self._unwritable(error) from error
            raise
        self.record.context.session = self
        setup = asyncio.ensure_future(self._set_up())  # the first request does not wait for the sandbox
        if isinstance(self.spec.model, SlowToBegin):
            self.spec.model.prepare()
        check = None
        if self.spec.check is not None:
            check = ResultCheck(self.spec.check, self.recorder, self.record, self.spec.prompts)
        loop = Loop(self.spec, self.recorder, self.meter, setup, self.control, check)
        changer = self.changer = Changer(loop, self.spec.make_model, self.record.context.models)
        cause: BaseException
        try:
            self.control.begin(self.recorder.emit, changer)
            while True:  # the loop always ends with an exception, unless a person rewinds the run
                await self.control.interruptible(self._run_loop(loop, setup))
                await self._rewind(loop, setup)
        except BaseException as error:  # noqa: BLE001 - recorded first, raised below
            cause = error
        ending = _ending(cause, self.recorder.folder)
        lost = getattr(self.box, "lost", None)
        if ending.reason == "interrupted" and self.control.stopped and lost is not None:
            # A Jupyter server that stops ends the sandbox first, and then interrupts the cell as a person does.
            cause, ending = lost, _ending(lost, self.recorder.folder)
        try:
            await self._finish(loop, ending)
        except OSError as error:
            raise self._unwritable(error) from error
        finally:
            await self._close(setup)
        if ending.reason == "interrupted" and not self.control.stopped:
            raise cause
        if ending.reason in _FAILURES:
            origin = cause.__cause__ if isinstance(cause, StopRun) else cause
            raise RunError(ending.error or ending.reason, self.record) from origin

    def _unwritable(self, error: OSError) -> RunError:
        return RunError(_not_written(error, self.recorder.folder), self.record)

    async def rewind(self, move: Move[T]) -> T:
        return await self.control.rewind(move)

    async def complete_checkpoint(self) -> None:
        """Wait until the checkpoint of the last call is complete."""
        if self.checkpoints is not None:
            await self.checkpoints.complete()

    # --- open the sandbox, restore or upload ---

    async def _set_up(self) -> Workspace:
        started, opening = time.monotonic(), self.opening
        box = opening.sandbox if isinstance(opening.sandbox, Sandbox) else await opening.sandbox
        reserve_sandbox(box, self.recorder.folder)
        await self.record.context.close_lost_history()
        self.box = self.record.context.box = box
        if self.spec.servers is not None:
            self.spec.servers.attach(box, self.recorder.emit)
        has_files = claim_files(box, self.recorder.folder)
        root = box.directories.root
        self.recorder.emit(
            ev.SandboxReady(
                sandbox_id=box.id,
                protection=protection_json(box),
                start_time=time.monotonic() - started,
                root=root,
            )
        )
        if box.network is not None:
            self.connections = ConnectionRecord(
                box.network,
                self.recorder,
                lambda: self.meter.step,
                lambda host: self.control.refused.append(host),
            )
            if self.changer is not None:
                self.changer.network = box.network
        if opening.root not in (None, root):
            raise SandboxError(f"The sandbox works in {root}: add isolation='process' to use this sandbox.")
        prompts = self.spec.prompts.under(root)
        no_results = (prompts.input_dir, box.directories.input, box.directories.documents)
        inside = prompts.output_dir.rstrip("/") + "/"
        skipped = tuple(folder for folder in no_results if folder.startswith(inside))
        self.collector = collector = Collector(box, prompts.output_dir, self.recorder, skipped)
        self.answers = answers = AnswerFiles(box, prompts)
        if (origin := self.spec.starting_files) is not None:
            if source := origin.continued(box):
                await box.keep_history(self.recorder.folder / HISTORY, continue_from=source)
            self._note_problems(await origin.put_into(box))
        await _make_folders(box, prompts)
        if self.past is None or self.past.fresh:
            checkpoints = await self._upload(box, prompts, collector, answers)
        else:
            checkpoints = await self._restore(box, collector, answers, self.past.step, has_files)
        return Workspace(box, collector, checkpoints, self.spec, answers)

    async def _upload(
        self, box: Sandbox, prompts: PromptConfig, collector: Collector, answers: AnswerFiles
    ) -> Checkpoints:
        """Prepare the sandbox of a new run, and start the first checkpoint."""
        if not self.opening.owned or self.spec.starting_files is not None:
            await collector.remember_present()
            await answers.remember_present()
        self._note_problems(await self.spec.inputs.upload(box, prompts.input_dir))
        if prompts.working_dir != box.directories.root:
            await box.run(f"cd -- {shlex.quote(prompts.working_dir)}")
        await box.changes()
        checkpoints = await self._begin_checkpoints(box)
        checkpoints.start(0)
        return checkpoints

    async def _restore(
        self, box: Sandbox, collector: Collector, answers: AnswerFiles, step: int, has_files: bool
    ) -> Checkpoints:
        """Prepare the sandbox of a run that continues. `has_files` is True if the sandbox still has the run's files."""
        checkpoints = await self._begin_checkpoints(box)
        if not has_files and (files := self.recorder.trajectory.files):
            if checkpoints.off:
                raise SandboxError(checkpoints.off)
            self._note_problems((await box.restore(files)).problems)
        await collector.remember_present(collected_names(self.recorder.trajectory))
        if before := files_before_answer(self.recorder.trajectory):
            await answers.remember_present(before)
        await box.changes()
        if self.recorder.trajectory.files is None:
            checkpoints.start(step)
        return checkpoints

    async def _begin_checkpoints(self, box: Sandbox) -> Checkpoints:
        self.checkpoints = checkpoints = Checkpoints(box, self.recorder)
        await checkpoints.begin()
        return checkpoints

    def _note_problems(self, problems: tuple[str, ...]) -> None:
        for problem in problems:
            self.recorder.emit(ev.Noted(text=str(ev.clean_text(problem))))

    # --- loop ---

    async def _run_loop(self, loop: Loop, setup: asyncio.Future[Workspace]) -> NoReturn:
        past = self.past
        self.control.insert_texts(past.said if past else ())
        if past is not None and past.messages:
            await asyncio.shield(setup)  # restore the files even if the model makes no call
            self._count(past)
            loop.restore(past)
        else:
            root = self.opening.root or (await asyncio.shield(setup)).box.directories.root
            prompts = self.spec.prompts.under(root)
            preview = self.spec.inputs.preview(prompts.input_dir)
            in_text = self.spec.tool_calls == "text"
            loop.start(prompts.messages(self.spec.task, in_text=in_text, preview=preview))
        await loop.run()

    async def _rewind(self, loop: Loop, setup: asyncio.Future[Workspace]) -> None:
        """Execute the rewinds that interrupted the loop, and pause the run."""
        box = (await asyncio.shield(setup)).box
        folder = self.recorder.folder
        loop.close_open_calls(interrupted=True)
        if self.collector is not None:
            await self.collector.settle()
        await self._take_last_checkpoint()
        await self.control.execute_rewinds(self.recorder, box)
        if not owns_files(box, folder) and (files := self.recorder.trajectory.files):
            # a rewind failed half-way, so the files from before the rewind are restored
            self._note_problems((await box.restore(files)).problems)
        claim_files(box, folder)
        if self.collector is not None:
            self.collector.take_again()
        self.past = conversation_state(self.recorder.trajectory)
        self._count(self.past)
        if self.control.stopped:
            raise asyncio.CancelledError
        self.control.pause(source="rewind")

    def _count(self, past: ConversationState) -> None:
        """Set the meter to the usage of the recorded conversation."""
        trajectory = self.recorder.trajectory
        counted, added = tokens_so_far(trajectory)
        self.meter.resume_from(
            past.step, counted, trajectory.known_cost, added, trajectory.total_usage.total_tokens
        )

    # --- collect ---

    async def _finish(self, loop: Loop, ending: Ending) -> None:
        """Collect the last files and the answer, and complete the record."""
        answer = None
        try:
            if self.control.close():
                self.recorder.emit(
                    ev.Noted(text="The run ended before the model read the newest messages that it was sent.")
                )
            loop.close_open_calls(interrupted=ending.reason == "interrupted")
            answer = await self._collect(ending)
        finally:  # even if a second interrupt arrives meanwhile
            if ending.reason == "no_answer" and answer:
                ending = Ending("answered")  # the model wrote its answer before the failure
            silent = ending.reason in ("no_answer", "refused")
            spoken = not silent and (
                ending.reason in ("submitted", "answered") or loop.conversation.only_talked
            )
            without = ending.reason == "submitted" and loop.submission.without_answer and not answer
            words = loop.conversation.last_text or loop.conversation.earlier_answer
            said = words if spoken and not without else None
            verdict = loop.submission.verdict if ending.reason in CHECKED_ENDS else None
            self._record_end(ending, answer or said or None, without, verdict)
        try:
            write_seed(self.recorder.trajectory, self.recorder.folder)
        except OSError as error:  # the file is not essential, because the journal is complete
            logger.warning("%s has no trajectory.json: %s", self.recorder.folder, error)

    async def _collect(self, ending: Ending) -> str | None:
        """Collect the files in the output folder. Return the content of the answer file, or None if there is none."""
        if self.box is None or self.collector is None or self.answers is None:
            return None
        if ending.reason == "sandbox_lost":
            return None
        if not owns_files(self.box, self.recorder.folder):
            self._skip_last_files("a rewind was interrupted, so these files belong to no step")
            return None
        answer = None
        timeout = _INTERRUPTED_COLLECT_TIMEOUT if ending.reason == "interrupted" else _COLLECT_TIMEOUT
        try:
            async with asyncio.timeout(timeout):
                answer = await self.answers.read()
                await self.collector.collect_all()
                await self._take_last_checkpoint()
        except TimeoutError:
            self._skip_last_files("it took too long")
        except Exception as error:
            logger.exception("the last files of %s could not be collected", self.recorder.folder)
            self._skip_last_files(str(error))
        return answer

    async def _take_last_checkpoint(self) -> None:
        """Make a checkpoint of the current files, including the changes by an interrupted call."""
        if self.checkpoints is None:
            return
        await self.checkpoints.settle()
        if self.recorder.trajectory.uncovered is not None:
            self.checkpoints.start(self.meter.step)
            await self.checkpoints.settle()

    def _skip_last_files(self, reason: str) -> None:
        reason = ev.clean_text(f"The last files could not be taken: {reason.rstrip('.')}.")
        self.recorder.emit(ev.ArtifactSkipped(reason=reason))

    def _record_end(
        self, ending: Ending, answer: str | None, without_answer: bool, verdict: ev.Verdict | None
    ) -> None:
        event = ev.RunFinished(
            stop_reason=ending.reason,
            answer=ev.clean_text(answer),
            error=ev.clean_text(ending.error),
            usage=self.recorder.trajectory.usage,
            steps=self.recorder.trajectory.steps_done,
            wall_time=self.meter.elapsed,
            without_answer=without_answer,
            check=verdict,
        )
        try:
            if self.connections is not None:
                self.connections.close()
            self.recorder.emit(event)
        finally:
            self.recorder.close()

    # --- close ---

    async def _close(self, setup: asyncio.Future[Workspace]) -> None:
        try:
            setup.cancel()
            await asyncio.gather(setup, return_exceptions=True)
            if self.collector is not None:
                await self.collector.abandon()
            if self.checkpoints is not None:
                await self.checkpoints.abandon()
        finally:  # even if another interrupt arrives meanwhile
            self.record.context.session = None
            if isinstance(self.spec.model, ServedHere):
                self.spec.model.end_log(self.recorder.folder)
            if self.box is not None:
                release_sandbox(self.box, self.recorder.folder)
        if self.box is None or not self.opening.owned:
            return
        self.record.context.box = None
        try:
            await self.box.close()
        except (SandboxError, OSError) as error:
            logger.warning("closing the sandbox %s failed: %s", self.box.id, error)


def _not_written(error: OSError, folder: Path) -> str:
    return (
        f"The record of the run cannot be written to {folder} ({error.strerror or error}): "
        "free disk space, or choose another output folder."
    )


def _ending(cause: BaseException, folder: Path) -> Ending:
    match cause:
        case JournalNotWrittenError():
            return Ending("error", _not_written(cause, folder))
        case StopRun():
            return Ending(cause.reason, cause.error)
        case SandboxLostError():
            return Ending("sandbox_lost", str(cause))
        case SandboxError():
            return Ending("error", str(cause))
        case asyncio.CancelledError() | KeyboardInterrupt() | SystemExit():
            return Ending("interrupted")
    return Ending("error", f"The run broke off with {type(cause).__name__}: {cause}")


def protection_json(box: Sandbox) -> dict[str, object]:
    """Return the protection of the sandbox as JSON values."""
    protection = box.protection
    found = {field.name: getattr(protection, field.name) for field in dataclasses.fields(protection)}
    return found | {"capabilities": list(protection.capabilities), "details": dict(protection.details)}


async def _make_folders(box: Sandbox, prompts: PromptConfig) -> None:
    folders = (prompts.working_dir, prompts.input_dir, prompts.output_dir)
    result = await box.exec(["mkdir", "-p", "--", *folders], cwd="/")
    if result.exit_code != 0:
        raise SandboxError(
            f"The folders {', '.join(folders)} cannot be made in the sandbox: {result.text.strip()}."
        )
