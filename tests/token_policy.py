"""A tokenizer without weights or packages, and a policy that plays replies as ids: rollouts without torch."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from llm_sandbox_nb.training.generation import Generated

SPECIAL = ("<|im_start|>", "<|im_end|>")
END = 1


class PlainTokenizer:
    """One id for each character and for each special token; writes conversations as Qwen's template does."""

    eos_token: str | None = SPECIAL[END]
    eos_token_id: int | None = END
    chat_template: Any = "plain"

    def encode(self, text: str, **options: Any) -> list[int]:
        for place, token in enumerate(SPECIAL):
            text = text.replace(token, chr(place))
        return [ord(letter) for letter in text]

    def decode(self, token_ids: Any, **options: Any) -> str:
        return "".join(SPECIAL[one] if one < len(SPECIAL) else chr(one) for one in token_ids)

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        text = ""
        messages, tools = list(conversation), options.get("tools")
        if tools:
            system = messages.pop(0)["content"] + "\n\n" if messages[0]["role"] == "system" else ""
            text += f"<|im_start|>system\n{system}# Tools\n{json.dumps(tools)}<|im_end|>\n"
        for place, message in enumerate(messages):
            text += self._message(message, messages[place - 1 : place], messages[place + 1 : place + 2])
        return text + ("<|im_start|>assistant\n" if options.get("add_generation_prompt") else "")

    def _message(self, message: Any, before: list[Any], after: list[Any]) -> str:
        if message["role"] == "tool":
            head = "" if before and before[0]["role"] == "tool" else "<|im_start|>user"
            tail = "" if after and after[0]["role"] == "tool" else "<|im_end|>\n"
            return f"{head}\n<tool_response>\n{message['content']}\n</tool_response>{tail}"
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        written = [message["content"]] * bool(message["content"]) + [
            written_call(call["name"], call["arguments"]) for call in calls
        ]
        return f"<|im_start|>{message['role']}\n{chr(10).join(written)}<|im_end|>\n"


def written_call(name: str, arguments: Any) -> str:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return f'<tool_call>\n{{"name": "{name}", "arguments": {text}}}\n</tool_call>'


def bash(command: str) -> str:
    return written_call("execute_bash", {"command": command})


SUBMIT = written_call("submit", {})
Play = Callable[[int, int], str | None]
"""Gives the text of a reply for the place of a rollout and the number of the reply; None never ends it."""


class PlayedPolicy:
    """Answers with the ids of texts, cut at the limit as a model would be. Keeps what it gave, by rollout."""

    def __init__(self, play: Play) -> None:
        self.play = play
        self.given: dict[int, list[tuple[int, ...]]] = {}
        self.prompts: dict[int, list[list[int]]] = {}
        self.tokenizer = PlainTokenizer()

    async def generate(self, prompt: Sequence[int], limit: int, order: int = 0) -> Generated:
        replies = self.given.setdefault(order, [])
        self.prompts.setdefault(order, []).append(list(prompt))
        text = self.play(order, len(replies))
        if text is None:
            await asyncio.Event().wait()
        assert text is not None
        ids = tuple([*self.tokenizer.encode(text), END][:limit])
        replies.append(ids)
        return Generated(ids)


def mixed(place: int, number: int) -> str | None:
    """Replies of all kinds: several calls, unknown tools, torn JSON, no call, long ones, thinking, and none at all."""
    if place % 20 == 7 and number == 2:
        return None
    chance = random.Random(f"{place}-{number}")
    kinds = [
        bash(f"echo {chance.random()}"),
        "I look.\n" + bash("ls documents") + "\n" + bash("cat documents/* > answer.txt"),
        "<think>\nWhich one?\n</think>\n\n" + bash("exit 3"),
        written_call("execute_bash", '{"comm'),
        written_call("execute_bash", {"wrong": 1}),
        written_call("no_such_tool", {}),
        written_call("execute_bash", {"command": "sleep infinity", "timeout": 1}),
        "Ünïcode 🎈 and no call",
        bash("printf 'ä\\377\\n%.0s' 1 2 3; false") + "\n" + SUBMIT,
        bash("echo " + "long " * 400),
        written_call("str_replace_editor", {"command": "view", "path": "documents/a.txt"})
        + "\n"
        + bash("pwd"),
    ]
    return SUBMIT if number > 3 and chance.random() < 0.4 else chance.choice(kinds)
