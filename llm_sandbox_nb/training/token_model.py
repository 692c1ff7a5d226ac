"""Model for the agent loop that stores the token ids of its conversation, for the training."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from llm_sandbox_nb.model.contract import (
    ContextOverflowError,
    DeltaCallback,
    ModelError,
    ModelSettings,
    Reply,
    ToolCall,
)
from llm_sandbox_nb.model.request import assistant_message
from llm_sandbox_nb.model.stream import Assembly
from llm_sandbox_nb.training.chat_tokens import ChatTokens, TemplateError
from llm_sandbox_nb.training.generation import Generator
from llm_sandbox_nb.trajectory.events import Usage


@dataclass
class TokenConversation:
    """Token ids of one conversation: the first prompt, then the replies and the texts between the replies."""

    prompt: list[int] = field(default_factory=list)
    completion: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    """1 for each id in `completion` that was sampled, and 0 for each id of the environment."""
    logprobs: list[float] = field(default_factory=list)
    """Log-probability of each id in `completion`. For an id of the environment, or if unknown, the value is 0.0."""
    replies: list[tuple[int, ...]] = field(default_factory=list)
    """Sampled ids of each reply."""

    def add_environment(self, ids: Sequence[int]) -> None:
        self.completion += ids
        self.mask += [0] * len(ids)
        self.logprobs += [0.0] * len(ids)

    def add_reply(self, ids: tuple[int, ...], logprobs: tuple[float, ...] | None) -> None:
        self.completion += ids
        self.mask += [1] * len(ids)
        self.logprobs += logprobs if logprobs is not None else [0.0] * len(ids)
        self.replies.append(ids)

    @property
    def ids(self) -> list[int]:
        return [*self.prompt, *self.completion]


class TokenModel:
    """Policy as the model of a single conversation.

    Args:
        name: name of the policy in records.
        chat: converter of the messages to ids.
        generator: source of the replies.
        prompt_limit: maximum number of ids of the first prompt.
        completion_limit: maximum number of ids after the prompt, including texts of the environment.
        order: place of this conversation's requests in a batch.
    """

    scripted = False
    append_only = True

    def __init__(
        self,
        name: str,
        chat: ChatTokens,
        generator: Generator,
        *,
        prompt_limit: int,
        completion_limit: int,
        order: int = 0,
    ) -> None:
        self.name = name
        self.chat, self.generator = chat, generator
        self.prompt_limit, self.completion_limit, self.order = prompt_limit, completion_limit, order
        self.conversation = TokenConversation()
        self.cut = False
        """True if the newest reply reached a limit before its end."""
        self._seen: list[dict[str, Any]] = []
        """Messages whose ids are in `conversation`, except for the newest reply."""
        self._calls: tuple[ToolCall, ...] = ()

    async def reply(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]],
        settings: ModelSettings,
        on_delta: DeltaCallback | None = None,
    ) -> Reply:
        """Return the next reply; see `Model.reply`. Only the setting `max_tokens` is used.

        Raises:
            ContextOverflowError: if the conversation has reached its limit of ids.
            ModelError: if earlier messages have changed, so that the stored ids no longer match.
        """
        new = self._new_ids(messages, tools)
        conversation = self.conversation
        room = self.completion_limit - len(conversation.completion) - (len(new) if self._seen else 0)
        if room <= 0:
            raise ContextOverflowError(
                f"The conversation has reached its limit of {self.completion_limit} tokens."
            )
        if self._seen:
            conversation.add_environment(new)
        else:
            conversation.prompt = new
        self._seen = list(messages)
        limit = min(room, settings.max_tokens or room)
        made = await self.generator.generate(conversation.ids, limit, self.order)
        before = len(conversation.ids)
        conversation.add_reply(made.ids, made.logprobs)
        self.cut = not made.ids or made.ids[-1] != self.chat.end
        return self._read(made.ids, tools, before)

    def take_over(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> None:
        """Continue a conversation that another model began. The last of `messages` is the newest reply."""
        self.conversation = conversation_ids(self.chat, messages, tools)
        self._seen, self._calls = list(messages[:-1]), _calls_of(messages[-1])

    def _new_ids(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> list[int]:
        """Return the ids of the messages after the newest reply. Without a reply yet, return the ids of the prompt."""
        if not self._seen:
            ids = self.chat.first(messages, tools)
            if len(ids) > self.prompt_limit:
                raise ContextOverflowError(
                    f"The prompt has {len(ids)} tokens and the limit is {self.prompt_limit}: "
                    "raise rollouts.prompt_tokens or leave the row out.",
                    prompt_tokens=len(ids),
                )
            return ids
        known, rest = messages[: len(self._seen)], messages[len(self._seen) :]
        if known != self._seen or not rest or rest[0].get("role") != "assistant":
            raise ModelError(
                "Earlier messages were changed, so the sampled tokens no longer fit: begin a new conversation.",
                kind="bad_request",
            )
        try:
            ids = self.chat.between(_named(rest[1:], self._calls), calls=self._calls)
        except TemplateError as error:
            raise ModelError(str(error), kind="bad_request") from error
        return [self.chat.end, *ids] if self.cut else ids

    def _read(self, ids: tuple[int, ...], tools: list[dict[str, Any]], prompt: int) -> Reply:
        text, reasoning, calls = self.chat.read(ids, tools, len(self.conversation.replies))
        self._calls = calls
        return Reply(
            message=assistant_message(Assembly(text=text, reasoning=reasoning), calls, "none"),
            text=text,
            reasoning=reasoning or None,
            calls=calls,
            usage=Usage(prompt_tokens=prompt, completion_tokens=len(ids)),
            finish_reason="length" if self.cut else "tool_calls" if calls else "stop",
            context_window=self.prompt_limit + self.completion_limit,
        )


def _named(messages: Sequence[dict[str, Any]], calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
    """Add the name of the tool to each message with a tool's result, because some templates write the name."""
    names = {call.id: call.name for call in calls}
    return [
        {**message, "name": names.get(message["tool_call_id"], "")} if message["role"] == "tool" else message
        for message in messages
    ]


def conversation_ids(
    chat: ChatTokens, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]
) -> TokenConversation:
    """Return the ids of a recorded conversation of any model, as if the policy had written the replies.

    Messages after the last reply are left out.
    """
    found = TokenConversation()
    first = next(
        (place for place, message in enumerate(messages) if message["role"] == "assistant"), len(messages)
    )
    found.prompt = chat.first(messages[:first], tools)
    calls: tuple[ToolCall, ...] = ()
    waiting: list[dict[str, Any]] = []
    for place, message in enumerate(messages[first:], first + 1):
        if message["role"] != "assistant":
            waiting.append(message)
            continue
        if waiting:
            found.add_environment(chat.between(_named(waiting, calls), calls=calls))
            waiting = []
        calls = _calls_of(message)
        after = itertools.takewhile(lambda message: message["role"] != "assistant", messages[place:])
        found.add_reply(tuple(chat.reply(message, _named(list(after), calls))), None)
    return found


def _calls_of(message: dict[str, Any]) -> tuple[ToolCall, ...]:
    return tuple(
        ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls") or ()
    )
