"""The supervised learning before a training."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from llm_sandbox_nb.training import tiny
from llm_sandbox_nb.training.config import load_config
from llm_sandbox_nb.training.token_model import TokenConversation
from llm_sandbox_nb.training.warm_up import imitate

pytestmark = pytest.mark.campaign


def test_each_tenth_of_the_steps_is_reported(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    changes = {"warm_up.steps": 20, "warm_up.batch": 1, "model.layers": 1, "model.width": 8, "model.heads": 1}
    config = load_config("tiny-cpu.yaml", changes)
    tokenizer = tiny.make_tokenizer(["a b c"], [], 300, tiny.chat_template())
    model = tiny.make_model(config.model, tokenizer, 32)
    said: list[str] = []
    losses = imitate(
        config, model, tokenizer, [TokenConversation([1, 2], [3, 4], [1, 1])], tmp_path, said.append
    )
    assert len(said) == len(losses) == 10
    assert re.fullmatch(rf"  step 2 of 20: loss {losses[0]:.3f}, [\d.]+ (s|min.*)", said[0])
    assert said[-1].startswith("  step 20 of 20: loss ")
