"""Templates of ten families and two more, in `data/chat_templates`, and a tokenizer that renders them without torch.

Each is a few lines, written for these tests in the form that the family documents. The templates of the models
themselves come with TRL, and a campaign tests those.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2.sandbox import ImmutableSandboxedEnvironment

DATA = Path(__file__).with_name("data") / "chat_templates"
ENDS = {
    "Qwen2.5": "<|im_end|>",
    "Qwen3": "<|im_end|>",
    "Qwen3-Coder": "<|im_end|>",
    "Llama 3": "<|eot_id|>",
    "Mistral": "</s>",
    "Gemma": "<end_of_turn>",
    "GLM-4": "<|endoftext|>",
    "GPT-OSS": "<|return|>",
    "DeepSeek": "<｜end▁of▁sentence｜>",
    "LFM2": "<|im_end|>",
    "Granite": "<|end_of_text|>",
    "Phi": "<|end|>",
}
"""The families, and the token that ends a reply of each."""


def family_tokenizer(name: str) -> TemplateTokenizer:
    path = DATA / f"{name.lower().replace(' ', '-')}.jinja"
    return TemplateTokenizer(path.read_text("utf-8").removesuffix("\n"), ENDS[name])


class TemplateTokenizer:
    """One id for each character and for each control token that a template names."""

    def __init__(self, template: str, end: str) -> None:
        self.chat_template: Any = template
        marks = (
            r"<\|[^|<>\s]{1,40}\|>|</?(?:tool_call|think|tool_response|s)>|<｜[^｜]{1,30}｜>|\[/?[A-Z_]{4,}\]"
        )
        self.tokens = sorted({end, *re.findall(marks, template)}, key=len, reverse=True)
        self.eos_token: str | None = end
        self.eos_token_id: int | None = self.tokens.index(end)
        self.all_special_tokens = self.tokens
        self._pieces = re.compile(f"({'|'.join(map(re.escape, self.tokens))})")

    def get_added_vocab(self) -> dict[str, int]:
        return {token: place for place, token in enumerate(self.tokens)}

    def encode(self, text: str, **options: Any) -> list[int]:
        return [
            one
            for piece in self._pieces.split(text)
            for one in (
                [self.tokens.index(piece)]
                if piece in self.tokens
                else [1000 + ord(letter) for letter in piece]
            )
        ]

    def decode(self, token_ids: Sequence[int], **options: Any) -> str:
        return "".join(self.tokens[one] if one < 1000 else chr(one - 1000) for one in token_ids)

    def apply_chat_template(self, conversation: Any, **options: Any) -> str:
        return compiled(self.chat_template).render(
            messages=conversation,
            tools=options.get("tools"),
            add_generation_prompt=options.get("add_generation_prompt", False),
            bos_token="",
            eos_token=self.eos_token,
        )


@functools.cache
def compiled(template: str) -> Any:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value, **how: json.dumps(value, ensure_ascii=False, **how)
    environment.globals["raise_exception"] = _refuse
    return environment.from_string(template)


def _refuse(text: str) -> None:
    raise ValueError(text)
