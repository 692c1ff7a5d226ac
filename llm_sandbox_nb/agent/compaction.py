"""Compaction: the shortening of a conversation that nearly fills the context of its model, or repeats itself.

When the conversation fills three quarters of the model's token limit, many old messages are shortened at once. Between
two compactions the history only grows, so that the provider's prompt cache stays valid. The limit comes from the
server, from a list of known models, or from a refused request.

A new rule of compaction begins in `Compaction.prepare`. A new way of shortening also needs a method of
`reduction.Reduction`, a word in `run_options.ContextMode` and in the row `context` of `options/table.py`, and a value
of `events.ContextReduced.how`. The docstring of `solve`, docs/reference/python.md and docs/explanation/run.md explain
the words.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

from llm_sandbox_nb.agent.conversation import Conversation
from llm_sandbox_nb.agent.recorder import Recorder
from llm_sandbox_nb.agent.reduction import (
    KEPT_STEPS,
    Reduction,
    Repeated,
    find_repeated,
    message_tokens,
    step_groups,
)
from llm_sandbox_nb.agent.run_limits import MAX_RESERVE_TOKENS, MIN_REPLY_TOKENS, Meter
from llm_sandbox_nb.agent.run_options import ContextMode
from llm_sandbox_nb.model.contract import AppendOnly, ContextOverflowError, KnowsContext, Model, Reply
from llm_sandbox_nb.trajectory import events as ev

Messages = list[dict[str, Any]]
Ask = Callable[[Messages, int], Awaitable[Reply]]
"""Function that makes a request. Its arguments are the messages and the maximum number of tokens in the reply."""

_TRIGGER_SHARE = 0.75
"""A conversation that fills this share of the limit is shortened. If its first request was long, the share is larger,
because system message and task are never shortened."""
_TARGET_SHARE = 0.5
"""Share of the limit that a shortened conversation should fill. If its first request was long, the share is larger."""
_MAX_RECOVERIES = 3
"""Maximum number of times that a refused request is shortened."""
_STALL_SHARE = 0.3
"""A prompt should grow by at least this share of the tokens that were added to the conversation. If it grows less, the
server may have left messages out."""
_MAX_LIMIT_REQUESTS = 4
"""Maximum number of times that the server is asked for its limit because of suspicious token counts."""
_UNCACHED_SHARE = 0.25
"""A prompt with fewer tokens than this share of the largest prompt so far is not compared. The server may have counted
only the part of the prompt that was not in its cache."""
SUMMARY_REQUEST = (
    "This conversation no longer fits into what you can take in, so its older part is removed now. Write a summary "
    "that takes its place, for yourself: what was asked, what you did, what you found out (exact values, names and "
    "paths), which files exist and what is in them, what failed, and what is left to do. Write text only and make no "
    "tool call."
)


class Compaction:
    """Compaction of the conversation of a run, and the token limit of its model."""

    def __init__(self, mode: ContextMode, recorder: Recorder, meter: Meter) -> None:
        self._mode = mode
        self._recorder = recorder
        self._meter = meter
        self._model: Model | None = None
        self._known: dict[str, tuple[int, Literal["server", "refusal", "cut"]]] = {}
        """Limits that this process has learned, with their sources, by model name."""
        self._ask_again = False
        """True if the server should be asked for its limit again. Some servers can state the limit only after they have
        loaded the model, which they do at the first request."""
        self._counted: tuple[int, int] = (0, 0)
        """Number of the newest step whose token count was compared, and the server's count of this step's prompt."""
        self._largest_prompt = 0
        """The largest token count of a prompt so far."""
        self._stalls = 0
        """Number of successive prompts that grew too little."""
        self._fell = False
        """True if one of the prompts that `_stalls` counts was smaller than the prompt before it."""
        self._limit_requests = 0
        self._repeated: Repeated | None = None
        """The equal replies that were left out last."""

    def restore(self) -> None:
        """Prepare for the conversation that the recorder has now, for example after a rewind."""
        self._model, self._counted, self._largest_prompt, self._repeated = None, (0, 0), 0, None
        first = self._recorder.trajectory.steps[:1]
        self._meter.beginning = first[0].usage.prompt_tokens if first and first[0].usage else 0

    async def prepare(self, model: Model, conversation: Conversation, ask: Ask) -> None:
        """Prepare a request. Find the limit of a new model, and shorten a conversation that nearly fills the limit."""
        if model is not self._model:
            await self._begin(model)
        await self._compare_counts(model, conversation.messages)
        limit = self._meter.context
        if not self._meter.shortens or limit is None or self._meter.conversation < self._trigger(limit):
            return
        if self._mode == "summary":
            await self._summarize(conversation, limit, ask)
        if self._meter.conversation >= self._trigger(limit):
            self._mask(conversation, limit, self._target(limit))

    def leave_out_repeats(self, conversation: Conversation, text: str, nudges: Sequence[str]) -> None:
        """Replace the newest replies, if they are equal, by `text` and their newest result. Do nothing without `text`.

        Replies that are followed by `nudges` are replaced by the newest of these nudges.
        A weak model that reads its own reply again and again only copies it, until the run ends.
        """
        if not text or not self._meter.shortens:
            return
        if repeated := find_repeated(conversation.messages, text, self._repeated, nudges):
            self._repeated = repeated
            reduction = self._reduction(conversation.messages)
            reduction.leave_out(repeated)
            self._apply(conversation, reduction, "repeats", self._meter.context or 0)

    def learn(self, error: ContextOverflowError) -> None:
        """Store the limits that a refused request reports."""
        if error.completion_limit is not None:
            self._meter.longest_reply = error.completion_limit
        if error.context_limit is not None:
            self._keep(error.context_limit, "refusal")

    def recover(self, error: ContextOverflowError, conversation: Conversation, attempt: int) -> bool:
        """Shorten the conversation after a request that did not fit. Return True if another request may succeed."""
        if attempt > _MAX_RECOVERIES:
            return False
        meter, known = self._meter, self._meter.context
        self.learn(error)
        if error.prompt_tokens is not None:
            meter.conversation = max(meter.conversation, error.prompt_tokens)
        elif meter.context is None:  # the limit is unknown, but less than the request needs
            self._keep(math.ceil(meter.conversation * 0.9), "refusal")
        elif known == meter.context:  # no new limit, so the estimate of the tokens was too low
            meter.conversation = max(meter.conversation, meter.context)
        if (limit := meter.context) is None:
            return False
        if meter.shortens and self._mask(conversation, limit, self._target(limit) / attempt, attempt):
            return True
        # Nothing can be shortened. With the limit that the error has reported, a shorter reply may still fit.
        return known != error.context_limit == limit >= meter.conversation + MIN_REPLY_TOKENS

    @property
    def ending(self) -> str:
        """Message for a person about a run that ends because the context is full."""
        model = self._model.name if self._model else "the model"
        return (
            f"The conversation is at the {self._meter.context} tokens that {model} can take in: load the model with a "
            "longer context, give a shorter task, or take another model."
        )

    # --- the limit ---

    async def _begin(self, model: Model) -> None:
        self._model, meter = model, self._meter
        steps = self._recorder.trajectory.steps
        self._counted = steps[-1].number if steps else 0, 0
        meter.context = meter.longest_reply = None
        meter.shortens = self._mode != "full" and not isinstance(model, AppendOnly)
        recorded = self._recorder.trajectory.context_limit(model.name)
        if recorded is not None:
            meter.context = recorded.tokens
        elif model.name in self._known:
            self._keep(*self._known[model.name])
        else:
            self._ask_again = not await self._ask(model)

    async def _ask(self, model: Model) -> bool:
        """Get the limit from the server or from a list of models. Return True if the server reported a limit."""
        found = await model.context_limit() if isinstance(model, KnowsContext) else None
        if found is None:
            return False
        if found.served:
            self._keep(found.tokens, "server")
        else:
            self._meter.context = found.tokens
        return found.served

    def _keep(self, tokens: int, source: Literal["server", "refusal", "cut"]) -> None:
        if tokens == self._meter.context and self._model and self._model.name in self._known:
            return
        self._meter.context = tokens
        if self._model is not None:
            self._known[self._model.name] = tokens, source
            self._recorder.emit(ev.ContextKnown(model=self._model.name, tokens=tokens, source=source))

    async def _compare_counts(self, model: Model, messages: Messages) -> None:
        """Compare token counts, to detect a server that silently leaves out messages."""
        newest = next((step for step in reversed(self._recorder.trajectory.steps) if step.replied), None)
        if newest is None or newest.usage is None or newest.number == self._counted[0]:
            return
        before, now = self._counted[1], newest.usage.prompt_tokens
        self._counted = newest.number, now
        if self._ask_again:
            self._ask_again = False
            await self._ask(model)
        replies = (at for at in range(len(messages) - 1, -1, -1) if messages[at]["role"] == "assistant")
        last, before_last = next(replies, 0), next(replies, 0)
        grown = sum(map(message_tokens, messages[before_last:last])) if before_last else 0
        expected = before + _STALL_SHARE * grown
        if not before or now >= expected or now < _UNCACHED_SHARE * self._largest_prompt:
            self._stalls, self._fell, self._largest_prompt = 0, False, max(now, self._largest_prompt)
            return
        self._stalls, self._fell = self._stalls + 1, self._fell or now < before
        if not self._fell:
            return
        self._limit_requests += 1
        reported = self._limit_requests <= _MAX_LIMIT_REQUESTS and await self._ask(model)
        if reported or self._stalls > 1:
            self._was_cut(messages)

    def _was_cut(self, messages: Messages) -> None:
        meter, self._stalls, self._fell = self._meter, 0, False
        if meter.context is not None and meter.context > 2 * self._largest_prompt:
            return  # the limit is much higher than any prompt, so the server cannot have cut one
        if meter.context is None or meter.context > self._largest_prompt:
            self._keep(self._largest_prompt, "cut")
        # The server counts only the messages that it kept, but the conversation is longer.
        sent = meter.beginning + sum(map(message_tokens, messages[step_groups(messages)[0][0] :]))
        meter.conversation = max(meter.conversation, sent)
        text = (
            "The model server has silently left out the beginning of the conversation, because it takes in only "
            f"{meter.context} tokens. Raise num_ctx, in Ollama with OLLAMA_CONTEXT_LENGTH=32768 for `ollama serve`."
        )
        self._recorder.emit(ev.Noted(text=text))

    # --- compaction ---

    def _trigger(self, limit: int) -> float:
        beginning = min(self._meter.beginning, limit)
        return max(_TRIGGER_SHARE * limit, beginning + 0.6 * (limit - beginning))

    def _target(self, limit: int) -> float:
        beginning = min(self._meter.beginning, limit)
        return max(_TARGET_SHARE * limit, beginning + 0.35 * (limit - beginning))

    def _mask(self, conversation: Conversation, limit: int, target: float, attempt: int = 1) -> bool:
        reduction = self._reduction(conversation.messages)
        reduction.mask_and_remove(target, self._recorder.trajectory, note_tokens=limit // 16)
        # The room is halved at each attempt, because digits and non-Latin scripts have more tokens than estimated.
        room = limit // 2 ** (attempt - 1)
        reduction.cut_newest(room - min(MAX_RESERVE_TOKENS, room // 8))
        return self._apply(conversation, reduction, "mask", limit)

    async def _summarize(self, conversation: Conversation, limit: int, ask: Ask) -> None:
        """Replace old steps by a summary that the model writes. If the model writes no summary, keep the old steps."""
        messages = conversation.messages
        groups = step_groups(messages)
        if len(groups) <= KEPT_STEPS:
            return
        end = groups[-KEPT_STEPS][0]
        room = max(256, min(MAX_RESERVE_TOKENS, limit // 8))
        request = messages[:end]
        if request[-1]["role"] == "user":  # some servers refuse two user messages in a row
            last = request.pop()
            request.append({**last, "content": f"{last['content']}\n\n{SUMMARY_REQUEST}"})
        else:
            request.append({"role": "user", "content": SUMMARY_REQUEST})
        try:
            reply = await ask(request, room)
        except ContextOverflowError as error:
            self.learn(error)
            return
        self._meter.add_summary(reply.usage)
        if not (summary := reply.text.strip()):
            return
        reduction = self._reduction(messages)
        reduction.summarize(summary[: 4 * 2 * room], len(groups) - KEPT_STEPS, self._recorder.trajectory)
        self._apply(conversation, reduction, "summary", limit, reply.usage)

    def _reduction(self, messages: Messages) -> Reduction:
        trajectory = self._recorder.trajectory
        left_out = {
            step
            for event in trajectory.path
            if isinstance(event, ev.ContextReduced) and event.how == "repeats"
            for step in range(event.step - (event.removed_to - event.removed_from) // 2, event.step)
        }
        replied = [step for step in trajectory.steps if step.replied and step.number not in left_out]
        return Reduction(messages, replied, self._meter)

    def _apply(
        self,
        conversation: Conversation,
        reduction: Reduction,
        how: Literal["mask", "summary", "repeats"],
        limit: int,
        usage: ev.Usage | None = None,
    ) -> bool:
        if not reduction.shown and not reduction.removed:
            return False
        start, end = reduction.removed or (0, 0)
        self._meter.conversation = before = reduction.conversation
        self._meter.shorten(reduction.saved)
        event = ev.ContextReduced(
            step=self._meter.step,
            how=how,
            shown=[ev.ShownInstead(at=at, content=text) for at, text in sorted(reduction.shown.items())],
            removed_from=start,
            removed_to=end,
            tokens_before=before,
            tokens_after=self._meter.conversation,
            limit=limit,
            usage=usage,
        )
        conversation.reduce(event)
        # The next prompt is smaller, so its token count must not be compared with earlier counts.
        self._counted, self._largest_prompt = (self._counted[0], 0), 0
        return True
