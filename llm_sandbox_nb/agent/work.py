"""One run from first event to last: sandbox and model side by side, then the loop, then the tidying up."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import shlex
import time
from typing import Any

from llm_sandbox_nb.agent.answer import AnswerFiles
from llm_sandbox_nb.agent.checkpoints import Checkpoints, history_folder
from llm_sandbox_nb.agent.collect import Collector
from llm_sandbox_nb.agent.control import RunControl
from llm_sandbox_nb.agent.ending import Ending, ending_of, spoken_answer
from llm_sandbox_nb.agent.failures import RunError
from llm_sandbox_nb.agent.files_back import collected
from llm_sandbox_nb.agent.job import Job, Opening
from llm_sandbox_nb.agent.limits import Meter
from llm_sandbox_nb.agent.loop import Loop, Workplace
from llm_sandbox_nb.agent.origin import Origin
from llm_sandbox_nb.agent.past import Past, past_of
from llm_sandbox_nb.agent.place import begin_work, end_work, take_over, was_last_in
from llm_sandbox_nb.agent.prompts import PromptConfig
from llm_sandbox_nb.agent.recorder import Recorder
from llm_sandbox_nb.agent.requests import StopRun
from llm_sandbox_nb.agent.run import Run
from llm_sandbox_nb.agent.settings_change import Changer
from llm_sandbox_nb.agent.tools import Toolbox
from llm_sandbox_nb.agent.trips import Trips
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.errors import SandboxError
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.seed_format import write_seed

logger = logging.getLogger(__name__)
_TIDYING = 300.0
"""Seconds for taking the last files out."""
_TIDYING_INTERRUPTED = 10.0


class Work:
    """One run under way."""

    def __init__(
        self,
        job: Job,
        recorder: Recorder,
        run: Run,
        opening: Opening,
        control: RunControl,
        past: Past | None = None,
    ) -> None:
        """`past` is where a conversation stands that is gone on with; None begins one."""
        self.job = job
        self.past = past
        self.control = control
        self.recorder = recorder
        self.run = run
        self.opening = opening
        self.meter = Meter(job.limits)
        self.box: Sandbox | None = None
        self.collector: Collector | None = None
        self.answers: AnswerFiles | None = None
        self.checkpoints: Checkpoints | None = None
        self.trips = Trips()
        run.place.loop, run.place.job = asyncio.get_running_loop(), job
        run.place.models[job.model.name] = job.model
        run.place.options = opening.options or run.place.options

    async def do(self) -> Run:
        """Do it all. Whatever happens, the record is complete and an owned sandbox closed in the end."""
        self._record_start()
        self.run.place.work = self
        workplace = asyncio.ensure_future(self._prepare())
        loop, cause = await self._talks(workplace)
        ending = ending_of(cause)
        try:
            await self._finish(loop, ending)
        except OSError as error:
            raise RunError(f"The record of the run cannot be written: {error}.", self.run) from error
        finally:
            await self._close(workplace)
        return self._outcome(ending, cause)

    def _record_start(self) -> None:
        if self.past is None:
            self.recorder.emit(self.job.start_event(self.recorder.folder.name))
        else:
            self.recorder.emit(ev.Continued(source="python"))

    async def _talks(self, workplace: asyncio.Future[Workplace]) -> tuple[Loop, BaseException]:
        """Talk until the end, with a trip whenever one is asked for; what ended it."""
        interrupts = _interrupts()
        while True:
            loop, cause = await self._one_talk(workplace)
            if not self.trips.wanted or self.control.stopped or _interrupts() > interrupts:
                return loop, cause
            try:
                await self._travel(loop, workplace)
            except BaseException as error:  # noqa: BLE001 - recorded, then told to the caller by _outcome
                return loop, error

    async def _one_talk(self, workplace: asyncio.Future[Workplace]) -> tuple[Loop, BaseException]:
        """Talk until the end, or until the run is taken back; what ended it."""
        job = self.job
        loop = Loop(
            job.model,
            job.settings,
            self.recorder,
            self.meter,
            workplace,
            job.retries,
            self.control,
            job.halting,
            given=job.given,
            replies=job.replies,
        )
        talk = asyncio.ensure_future(self._talk(loop, workplace))
        self.trips.interrupt = talk.cancel
        try:
            self.control.begin(
                self.recorder.emit, talk.cancel, Changer(loop, job.make_model, self.run.place.models)
            )
            await talk
        except BaseException as error:  # noqa: BLE001 - recorded, then told to the caller by _outcome
            return loop, error
        raise AssertionError("A loop ends by an exception only.")

    async def _travel(self, loop: Loop, workplace: asyncio.Future[Workplace]) -> None:
        """Go back, or elsewhere, as was asked for; the run then halts there."""
        await asyncio.shield(workplace)
        loop.close_open_calls()
        if self.collector is not None:
            await self.collector.settle()
        await self._keep_last_files()
        await self.trips.do(self.recorder, self._sandbox())
        await self._make_whole(self._sandbox())
        now: dict[str, Any] = {"model": loop.model, "settings": loop.settings, "halting": loop.halting}
        self.job = dataclasses.replace(self.job, **now)
        self.past = past_of(self.recorder.trajectory)
        self._count_past(self.past)
        if self.control.stopped:
            loop.last_text, loop.only_talked = self.past.last_text, False
            raise asyncio.CancelledError
        self.control.pause(source="rewind")

    async def _make_whole(self, box: Sandbox) -> None:
        """A rewind that failed half-way did not happen: the files are put back to what they were."""
        folder = self.recorder.folder
        if not was_last_in(box, folder) and (files := self.recorder.trajectory.files):
            await self._restore(box, files)
        take_over(box, folder)

    def _count_past(self, past: Past) -> None:
        trajectory = self.recorder.trajectory
        usage = next((step.usage for step in reversed(trajectory.steps) if step.usage), None)
        tokens = usage.total_tokens if usage else 0
        self.meter.go_on_from(past.step, tokens, trajectory.spent.cost)

    async def _talk(self, loop: Loop, workplace: asyncio.Future[Workplace]) -> None:
        if self.past is not None and self.past.messages:
            await asyncio.shield(workplace)  # its files are back, also when the model makes no call
            self._count_past(self.past)
            await loop.go_on(self.past)
        self.control.say_first(self.past.said if self.past is not None else ())
        if self.opening.root is None:
            await asyncio.shield(workplace)
        root = self.opening.root or self._sandbox().directories.root
        await loop.run(self.job.prompts.under(root).messages(self.job.task))

    # --- the sandbox ---

    async def _prepare(self) -> Workplace:
        started, opening = time.monotonic(), self.opening
        box = opening.sandbox if isinstance(opening.sandbox, Sandbox) else await opening.sandbox
        begin_work(box, self.recorder.folder)
        await self.run.place.put_away_lost()
        self.box = self.run.place.box = box
        known = take_over(box, self.recorder.folder)
        self.recorder.emit(
            ev.SandboxReady(
                sandbox_id=box.id,
                protection=_protection(box),
                start_time=time.monotonic() - started,
                root=box.directories.root,
            )
        )
        if opening.root not in (None, box.directories.root):
            raise SandboxError(
                f"The sandbox works in {box.directories.root}: say isolation='process' to use it."
            )
        prompts = self.job.prompts.under(box.directories.root)
        self.collector = self._make_collector(box, prompts)
        self.answers = AnswerFiles(box, prompts.output_dir)
        if self.job.origin is not None:
            await self._begin_with(box, self.job.origin)
        await _make_folders(box, prompts)
        if self.past is not None and not self.past.fresh:
            return await self._prepare_again(box, self.collector, known)
        if not opening.owned:
            await self.collector.take_stock()
            await self.answers.take_stock()
        await self.job.inputs.upload(box, prompts.input_dir)
        if prompts.working_dir != box.directories.root:
            await box.run(f"cd -- {shlex.quote(prompts.working_dir)}")
        await box.changes()
        await self._keep_files(box)
        return self._workplace(box, self.collector)

    async def _begin_with(self, box: Sandbox, origin: Origin) -> None:
        """Give the sandbox the files of another run, before anything else is done in it."""
        if source := origin.continued(box):
            await box.keep_history(history_folder(self.recorder.folder), continue_from=source)
        for problem in await origin.put_into(box):
            self.recorder.emit(ev.Noted(text=str(ev.clean_text(problem))))

    async def _prepare_again(self, box: Sandbox, collector: Collector, known: bool) -> Workplace:
        """A sandbox for a run that goes on: with its files, which one it has just worked in has already."""
        self.checkpoints = Checkpoints(box, self.recorder)
        await self.checkpoints.begin()
        if not known and (files := self.recorder.trajectory.files):
            if self.checkpoints.off:
                raise SandboxError(self.checkpoints.off)
            await self._restore(box, files)
        await collector.take_stock(collected(self.run))
        await box.changes()
        if self.recorder.trajectory.files is None:
            self.checkpoints.start(self.past.step if self.past else 0)
        return self._workplace(box, collector)

    async def _restore(self, box: Sandbox, files: str) -> None:
        for problem in (await box.restore(files)).problems:
            self.recorder.emit(ev.Noted(text=str(ev.clean_text(problem))))

    def _workplace(self, box: Sandbox, collector: Collector) -> Workplace:
        toolbox = Toolbox(box, lambda: self.meter.time_left, self.job.command_timeout)
        return Workplace(toolbox, collector, self._kept())

    async def _keep_files(self, box: Sandbox) -> None:
        """Keep the files as they are before the first call, and in the run's folder from now on."""
        self.checkpoints = Checkpoints(box, self.recorder)
        await self.checkpoints.begin()
        self.checkpoints.start(0)

    def _kept(self) -> Checkpoints:
        assert self.checkpoints is not None
        return self.checkpoints

    def _make_collector(self, box: Sandbox, prompts: PromptConfig) -> Collector:
        not_results = (prompts.input_dir, box.directories.input, box.directories.documents)
        inside = prompts.output_dir.rstrip("/") + "/"
        skipped = tuple(folder for folder in not_results if folder.startswith(inside))
        return Collector(box, prompts.output_dir, self.recorder, skipped)

    def _sandbox(self) -> Sandbox:
        assert self.box is not None
        return self.box

    # --- the end ---

    async def _finish(self, loop: Loop, ending: Ending) -> None:
        answer = None
        try:
            self._note_unread(self.control.close())
            loop.close_open_calls()
            answer = await self._last_look(ending)
        finally:  # also when a second interrupt comes meanwhile
            self._record_end(ending, answer or spoken_answer(ending, loop))
        write_seed(self.recorder.trajectory, self.recorder.folder)

    def _note_unread(self, said: list[str]) -> None:
        if said:
            self.recorder.emit(ev.Noted(text="The run ended before the model read what was said last."))

    def _record_end(self, ending: Ending, answer: str | None) -> None:
        event = ev.RunFinished(
            stop_reason=ending.reason,
            answer=ev.clean_text(answer),
            error=ev.clean_text(ending.error),
            usage=self.recorder.trajectory.usage,
            steps=self.meter.step,
            wall_time=self.meter.elapsed,
        )
        try:
            self.recorder.emit(event)
        finally:
            self.recorder.close()

    async def _last_look(self, ending: Ending) -> str | None:
        """Take what is in the output folder now; the answer file's content when there is one."""
        if self.collector is None or self.answers is None or ending.reason == "sandbox_lost":
            return None
        if not was_last_in(self._sandbox(), self.recorder.folder):
            self._missed("a rewind was cut short, so they are of no step")
            return None
        answer = None
        try:
            async with asyncio.timeout(_TIDYING_INTERRUPTED if ending.reason == "interrupted" else _TIDYING):
                answer = await self.answers.read()
                await self.collector.collect_all()
                await self._keep_last_files()
        except TimeoutError:
            self._missed("it took too long")
        except Exception as error:
            logger.exception("the last files of %s could not be taken", self.recorder.folder)
            self._missed(str(error))
        return answer

    async def _keep_last_files(self) -> None:
        """The files in the end, also those of a call that was cut short."""
        if self.checkpoints is None:
            return
        await self.checkpoints.settle()
        if self.recorder.trajectory.uncovered is not None:
            self.checkpoints.start(self.meter.step)
            await self.checkpoints.settle()

    def _missed(self, reason: str) -> None:
        reason = ev.clean_text(f"The last files could not be taken: {reason.rstrip('.')}.")
        self.recorder.emit(ev.ArtifactSkipped(reason=reason))

    async def _close(self, workplace: asyncio.Future[Workplace]) -> None:
        try:
            workplace.cancel()
            await asyncio.gather(workplace, return_exceptions=True)
            if self.collector is not None:
                await self.collector.abandon()
            if self.checkpoints is not None:
                await self.checkpoints.abandon()
        finally:  # also when another interrupt comes meanwhile
            self.run.place.work = None
            self.trips.close()
            if self.box is not None:
                end_work(self.box, self.recorder.folder)
        if self.box is None or not self.opening.owned:
            return
        self.run.place.box = None
        try:
            await self.box.close()
        except (SandboxError, OSError) as error:
            logger.warning("closing the sandbox %s failed: %s", self.box.id, error)

    def _outcome(self, ending: Ending, cause: BaseException) -> Run:
        if ending.reason == "interrupted" and not self.control.stopped:
            raise cause
        if ending.failed:
            raise RunError(ending.error or ending.reason, self.run) from _origin(cause)
        return self.run


def _interrupts() -> int:
    """How often the task of this run was cancelled from outside."""
    task = asyncio.current_task()
    return task.cancelling() if task else 0


def _origin(cause: BaseException) -> BaseException | None:
    return cause.__cause__ if isinstance(cause, StopRun) else cause


def _protection(box: Sandbox) -> dict[str, object]:
    """What is in force, as JSON has it."""
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
