"""Sampling settings of local models: those of the model's row in the table, unless the request sets others."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from llm_sandbox_nb.model.contract import ModelSettings, Reply
from llm_sandbox_nb.model.local.local_model import LocalModel
from llm_sandbox_nb.model.local.table import MODELS


def sent(name: str, settings: ModelSettings) -> ModelSettings:
    """Return the settings that the server of a local model gets."""
    got: list[ModelSettings] = []

    async def reply(messages: Any, tools: Any, settings: ModelSettings, on_delta: Any) -> Reply:
        got.append(settings)
        return Reply({"role": "assistant", "content": "3"}, "3")

    model = LocalModel(name)
    server = SimpleNamespace(alive=True, takes_tools=True, requests=0, plan=SimpleNamespace(context=4_096))
    model._served = SimpleNamespace(model=SimpleNamespace(reply=reply), server=server)  # type: ignore[assignment]
    asyncio.run(model.reply([{"role": "user", "content": "3?"}], [], settings))
    return got[0]


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("local/qwen2.5-coder-1.5b", ModelSettings(), (0.2, 0.8, 20)),
        ("local/qwen2.5-coder-1.5b", ModelSettings(temperature=0.0, top_p=1.0), (0.0, 1.0, 20)),
        ("local/qwen2.5-coder-1.5b", ModelSettings(temperature=0.9, top_k=5), (0.9, 0.8, 5)),
        ("local/smollm2-135m", ModelSettings(), (None, None, None)),
        ("local/my-model.gguf", ModelSettings(), (None, None, None)),
    ],
)
def test_the_row_of_the_model_fills_in_what_a_request_leaves_open(
    name: str, settings: ModelSettings, expected: tuple[float | None, float | None, int | None]
) -> None:
    made = sent(name, settings)
    assert (made.temperature, made.top_p, made.top_k) == expected


def test_the_model_is_used_as_it_was_measured() -> None:
    from measure.columns import SAMPLING

    sampling = MODELS["qwen2.5-coder-1.5b"].sampling
    assert sampling == {name: getattr(SAMPLING, name) for name in ("temperature", "top_p", "top_k")}
