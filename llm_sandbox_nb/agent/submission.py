"""Submission of a result: a reminder to the model if nothing is saved, and the check of the result."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from llm_sandbox_nb.agent.checks import ResultCheck
from llm_sandbox_nb.agent.conversation import Conversation
from llm_sandbox_nb.agent.errors import StopRun
from llm_sandbox_nb.agent.recorder import Recorder
from llm_sandbox_nb.agent.run_limits import Meter
from llm_sandbox_nb.agent.workspace import Workspace
from llm_sandbox_nb.trajectory import events as ev

NOTHING_SAVED = (
    "The task is not ended yet: nothing is saved in {folder}, and your reply says nothing, so there is "
    "no answer. Save the result, for example: echo 'the answer' > {folder}/answer.txt. Then call submit "
    "again. If the task asks for no result, call submit again now."
)


@dataclass
class Submission:
    """Acceptance or refusal of submitted results."""

    conversation: Conversation
    workspace: asyncio.Future[Workspace]
    recorder: Recorder
    meter: Meter
    check: ResultCheck | None
    replies: int | None
    """Maximum number of replies. None if there is no such limit."""
    reminds: Callable[[], bool]
    """Function that returns True if a model that submits nothing should be reminded once."""
    without_answer: bool = False
    """True if the model has submitted without a saved file and without text."""
    verdict: ev.Verdict | None = None
    """Verdict of the last check. None if the result was not checked, or if the model may correct the result."""
    _reminded: bool = False

    async def reminder(self) -> str:
        """Return a reminder if the model has neither saved a file nor written text. Empty if no reminder is needed."""
        self.without_answer = False
        if not self.reminds() or self.conversation.has_answer_text:
            return ""
        workspace = await self.meter.in_time(asyncio.shield(self.workspace))
        await workspace.collector.settle()
        if not self.recorder.trajectory.artifacts:
            await workspace.collector.collect_all()
        if self.recorder.trajectory.artifacts or await workspace.answers.read():
            return ""
        if self._reminded or self.meter.over:
            self.without_answer = True
            return ""
        self._reminded = True
        return NOTHING_SAVED.replace("{folder}", workspace.collector.output_dir)

    async def refusal(self) -> str:
        """Check the result. Return a text for the model if the model may try again. Return an empty text otherwise."""
        self.verdict = None
        if self.check is None:
            return ""
        workspace = await self.meter.in_time(asyncio.shield(self.workspace))
        await workspace.collector.settle()
        await workspace.collector.collect_all()
        await workspace.checkpoints.settle()
        started = time.monotonic()
        talk = self.conversation
        answer = await workspace.answers.read() or talk.last_text or talk.earlier_answer or None
        checked = await self.check.run(workspace.box, answer)
        # the time limit of the run excludes the duration of a check
        self.meter.leave_out(time.monotonic() - started)
        at_end = self.meter.over or (self.replies is not None and self.meter.step >= self.replies)
        if at_end or not self.check.may_try_again(checked):
            self.verdict = checked.verdict
            return ""
        return self.check.observation(checked)

    async def repeat(self) -> NoReturn:
        """End a run that was killed after its submission was accepted. Check the result again."""
        self.without_answer = bool(await self.reminder()) or self.without_answer
        await self.end(StopRun("submitted"))

    async def end(self, ending: StopRun) -> NoReturn:
        """If the model gave an answer in its text or in a file, check the result once. Then raise `ending`."""
        if self.check is not None:
            workspace = await self.meter.in_time(asyncio.shield(self.workspace))
            if ending.reason in ("answered", "submitted") or await workspace.answers.read():
                await self.refusal()
                self.verdict = self.verdict or self.recorder.trajectory.checks[-1].verdict
        raise ending
