"""The loop's requests to the model: one reply each, in time, and recorded."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Awaitable
from typing import Any, TypeVar

from llm_sandbox_nb.agent.folders import public_settings
from llm_sandbox_nb.agent.limits import Meter
from llm_sandbox_nb.agent.loop_support import unless_failed, well_formed
from llm_sandbox_nb.agent.model import ContextOverflowError, Model, ModelError, ModelSettings, Reply, ToolCall
from llm_sandbox_nb.agent.recorder import Recorder
from llm_sandbox_nb.agent.retry import RetryPolicy, reply_with_retries
from llm_sandbox_nb.agent.schemas import TOOLS
from llm_sandbox_nb.trajectory import events as ev

_T = TypeVar("_T")


class StopRun(Exception):  # noqa: N818 - it is no error
    """The run is over. `error` is one sentence when that is a failure."""

    def __init__(self, reason: ev.StopReason, error: str | None = None) -> None:
        super().__init__(reason)
        self.reason: ev.StopReason = reason
        self.error = error


class Requests:
    """The side of a loop that speaks to the model."""

    model: Model
    settings: ModelSettings
    recorder: Recorder
    meter: Meter
    workplace: asyncio.Future[Any]
    retries: RetryPolicy
    messages: list[dict[str, Any]]
    last_text: str
    only_talked: bool
    _open: list[ToolCall]

    async def _in_time(self, work: Awaitable[_T]) -> _T:
        try:
            async with asyncio.timeout(self.meter.time_left):
                return await work
        except TimeoutError as error:
            if self.meter.time_left != 0:
                raise
            raise StopRun("time") from error

    async def _ask(self) -> Reply:
        step, started = self.meter.begin_step(), time.monotonic()
        tokens = self.meter.reply_tokens(self.settings.max_tokens)
        request = reply_with_retries(
            self.model,
            list(self.messages),
            TOOLS,
            dataclasses.replace(self.settings, max_tokens=tokens),
            policy=self.retries,
            on_delta=lambda text, reasoning: self._streamed(step, text, reasoning),
            on_attempt=lambda attempt, settings: self._requested(step, attempt, settings),
            on_failure=lambda attempt, error, wait: self._failed(step, attempt, error, wait),
        )
        try:
            reply = await self._in_time(unless_failed(request, self.workplace))
        except ContextOverflowError as error:
            raise StopRun("tokens", str(error)) from error
        except ModelError as error:
            raise StopRun("model_error", str(error)) from error
        return self._accept(well_formed(reply), time.monotonic() - started)

    def _accept(self, reply: Reply, model_time: float) -> Reply:
        step = self.meter.step
        self.messages.append(reply.message)
        written = reply.text + (reply.reasoning or "") + "".join(call.arguments for call in reply.calls)
        self.meter.add_reply(reply.usage, written)
        self.last_text = reply.text.strip() or self.last_text
        self.only_talked = not reply.calls
        self._open = list(reply.calls)
        self.recorder.emit(
            ev.ModelReplied(
                step=step,
                message=reply.message,
                reasoning=reply.reasoning,
                usage=reply.usage,
                finish_reason=reply.finish_reason,
                model_time=model_time,
                response_id=reply.response_id,
                response_model=reply.response_model,
            )
        )
        if step == 1:
            self._note_what_is_unknown(reply)
        return reply

    def _note_what_is_unknown(self, reply: Reply) -> None:
        if reply.left_out:
            self._note(f"{self.model.name} does not take {', '.join(reply.left_out)}: left out.")
        if self.meter.limits.cost is not None and self.meter.cost is None:
            self._note(f"The price of {self.model.name} is not known, so the limit on cost cannot be kept.")

    def _note(self, text: str) -> None:
        self.recorder.emit(ev.Noted(text=text))

    def _requested(self, step: int, attempt: int, settings: ModelSettings) -> None:
        sent = {key: value for key, value in dataclasses.asdict(settings).items() if value not in (None, {})}
        self.recorder.emit(ev.ModelRequested(step=step, attempt=attempt, settings=public_settings(sent)))

    def _streamed(self, step: int, text: str, reasoning: str) -> None:
        self.recorder.emit(
            ev.ModelDelta(step=step, text=ev.clean_text(text), reasoning=ev.clean_text(reasoning))
        )

    def _failed(self, step: int, attempt: int, error: ModelError, wait: float | None) -> None:
        self.recorder.emit(
            ev.ModelFailed(step=step, attempt=attempt, error=error.kind, message=str(error), retry_in=wait)
        )
