"""Small real models and tokenizers for tests with torch. Import it only where torch is installed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from token_policy import SUBMIT, bash

from llm_sandbox_nb.agent.tools.toolbox import TOOLS
from llm_sandbox_nb.training import tiny
from llm_sandbox_nb.training.config import ModelConfig, TrainingConfig, make_config

TEXTS = [
    "<|im_start|>system\nYou work in a sandbox.<|im_end|>\n<|im_start|>user\nWhat is it?<|im_end|>\n",
    bash("cat documents/a.txt") + SUBMIT + json.dumps(TOOLS.schemas()),
]


def tokenizer(template: str | None = None) -> Any:
    return tiny.make_tokenizer(TEXTS * 4, [], 400, template or tiny.chat_template())


def model(made: Any, tokens: int = 4096) -> Any:
    import torch

    torch.manual_seed(3)
    return tiny.make_model(ModelConfig(layers=2, width=32, heads=2), made, tokens)


def config(**more: Any) -> TrainingConfig:
    content: dict[str, Any] = {
        "device": "cpu",
        "steps": 2,
        "data": {"rows": "notes", "count": 8, "scorer": "exact"},
        "rollouts": {
            "rows_per_step": 2,
            "per_row": 4,
            "prompt_tokens": 3000,
            "completion_tokens": 200,
            "isolation": "bubblewrap",
        },
        "objective": {"learning_rate": 1e-3},
    }
    for name, value in more.items():
        content[name] = {**content[name], **value} if isinstance(content.get(name), dict) else value
    return make_config(content)


def template(name: str) -> str:
    from importlib import resources

    path = Path(str(resources.files("trl").joinpath(f"chat_templates/{name}.jinja")))
    return path.read_text("utf-8")
