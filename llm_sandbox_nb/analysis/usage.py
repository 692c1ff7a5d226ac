"""Token counts of a run by origin, and times of a run. There are two ways to count tokens.

*Once*: each token of the final conversation is counted one time. *As billed*: a token is counted again for each request
that sends the token, because a provider bills each request with its complete history.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass

from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.messages import message_text
from llm_sandbox_nb.trajectory.trajectory import Trajectory

CHARACTERS_PER_TOKEN = 4
_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking_blocks", "reasoning_details")


@dataclass(frozen=True)
class Tokens:
    """Token counts by origin.

    `prompt` counts the tokens of the system message, the task and the tools. `model` counts the tokens of replies.
    `environment` counts the tokens of observations and of messages that the agent adds. An observation that no later
    request contains is not counted, because the model has not read this observation.
    """

    prompt: int = 0
    model: int = 0
    environment: int = 0
    billed_environment: int = 0
    billed_input: int = 0
    billed_output: int = 0
    cached: int = 0
    cost: float | None = None
    estimated: bool = False
    """True if the counts are estimates of one token for each four characters, because the record lacks counts."""

    @property
    def once(self) -> int:
        """Number of all tokens, each counted once."""
        return self.prompt + self.model + self.environment

    @property
    def billed(self) -> int:
        """Number of all tokens as billed."""
        return self.billed_input + self.billed_output

    @property
    def environment_share(self) -> float:
        """Share of the environment's tokens in all tokens, each counted once."""
        return self.environment / self.once if self.once else 0.0

    @property
    def billed_environment_share(self) -> float:
        """Share of the environment's tokens in all tokens as billed."""
        return self.billed_environment / self.billed if self.billed else 0.0


@dataclass(frozen=True)
class _Request:
    """Token counts of a request. `kept` is the number of received tokens that later requests send again."""

    sent: int
    received: int
    kept: int
    cached: int = 0


def tokens_of(trajectory: Trajectory) -> Tokens:
    """Count the tokens of a run. Use the provider's counts if the record has them for all replies."""
    replies = [event for event in trajectory.path if isinstance(event, ev.ModelReplied)]
    counted = [reply.usage for reply in replies if reply.usage is not None and reply.usage.prompt_tokens > 0]
    if replies and len(counted) == len(replies):
        costs = [usage.cost for usage in counted]
        cost = None if None in costs else math.fsum(amount or 0.0 for amount in costs)
        return _add_up([_counted(reply) for reply in replies], cost=cost, estimated=False)
    return _add_up(_estimated(trajectory), cost=None, estimated=True)


def _counted(reply: ev.ModelReplied) -> _Request:
    usage = reply.usage or ev.Usage()
    keeps_reasoning = any(reply.message.get(key) for key in _REASONING_KEYS)
    dropped = 0 if keeps_reasoning else usage.reasoning_tokens
    kept = max(0, usage.completion_tokens - dropped)
    return _Request(usage.prompt_tokens, usage.completion_tokens, kept, usage.cached_tokens)


def _estimated(trajectory: Trajectory) -> list[_Request]:
    found: list[_Request] = []
    history = size(json.dumps(trajectory.start.tools)) if trajectory.start and trajectory.start.tools else 0
    for event in trajectory.path:
        if isinstance(event, ev.ModelReplied):
            calls = event.message.get("tool_calls")
            texts = map(_call_text, calls if isinstance(calls, list) else ())
            kept = size(message_text(event.message) + "".join(texts))
            found.append(_Request(history, kept + size(event.reasoning or ""), kept))
            history += kept
        elif isinstance(event, ev.MessageAdded):
            history += size(message_text(event.message))
        elif isinstance(event, ev.CallFinished):
            history += size(event.observation)
    return found


def _call_text(call: object) -> str:
    """Return the name and the arguments of a call in a message.

    Return an empty text for a call of another form, because a record may come from any program.
    """
    match call:
        case {"function": {"name": name, "arguments": arguments}}:
            return f"{name}{arguments}"
    return ""


def size(text: str) -> int:
    """Estimate the number of tokens in a text by its number of characters."""
    return math.ceil(len(text) / CHARACTERS_PER_TOKEN)


def _add_up(requests: list[_Request], *, cost: float | None, estimated: bool) -> Tokens:
    if not requests:
        return Tokens(
            cost=0.0, estimated=True
        )  # a run without a reply, such as after a prompt that is too long
    prompt, model_history, environment, billed_model = requests[0].sent, 0, 0, 0
    for before, request in zip([None, *requests], requests, strict=False):
        if before is not None:
            grown = max(0, request.sent - before.sent)
            kept = min(before.kept, grown)
            model_history += kept
            environment += grown - kept
        billed_model += min(model_history, request.sent)
    written = sum(request.received for request in requests)
    billed_input = sum(request.sent for request in requests)
    billed_prompt = min(prompt * len(requests), billed_input)
    return Tokens(
        prompt=prompt,
        model=written,
        environment=environment,
        billed_environment=max(0, billed_input - billed_prompt - billed_model),
        billed_input=billed_input,
        billed_output=written,
        cached=sum(request.cached for request in requests),
        cost=cost,
        estimated=estimated,
    )


@dataclass(frozen=True)
class Times:
    """Times of a run in seconds. A time is None if it was not recorded. Other programs record only the model's time."""

    model: float
    tools: float | None = None
    wall: float | None = None
    start: float | None = None
    """Start time in seconds since the epoch."""

    @property
    def tool_share(self) -> float | None:
        """Share of the wall time in which tool calls were executed. None if these times were not recorded."""
        return self.tools / self.wall if self.tools is not None and self.wall else None


@dataclass(frozen=True)
class Throughput:
    """Throughput of several runs. `per_minute` is the mean number of runs per minute, from first start to last end."""

    per_minute: float
    concurrency: float
    """Average number of runs that were active at the same time."""


def times_of(trajectory: Trajectory, *, foreign: bool = False) -> Times:
    """Return the times of one run. `foreign` is True for the record of another program."""
    model = sum(step.model_time for step in trajectory.steps)
    if foreign or not trajectory.events:
        return Times(model)
    first, last = trajectory.events[0].time, trajectory.events[-1].time
    tools = sum(
        call.result.time - call.started
        for step in trajectory.steps
        for call in step.calls
        if call.result is not None and call.started is not None
    )
    wall = trajectory.finish.wall_time if trajectory.finish and trajectory.finish.wall_time else last - first
    return Times(model, max(0.0, tools), wall, first)


def throughput(times: Iterable[Times]) -> Throughput | None:
    """Return the throughput of several runs. Return None if no times were recorded, or if the clock was set back."""
    known = [(time.start, time.start + time.wall, time.wall) for time in times if time.start and time.wall]
    span = max((end for _, end, _ in known), default=0.0) - min((start for start, _, _ in known), default=0.0)
    if span <= 0:
        return None
    return Throughput(60 * len(known) / span, sum(wall for _, _, wall in known) / span)
