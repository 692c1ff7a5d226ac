"""A training of a model in a GGUF file, from the file to the evaluation: a tiny model with random weights, on a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training needs torch: make .venv/.rl")
pytest.importorskip("trl", reason="training needs TRL: make .venv/.rl")
pytest.importorskip("gguf", reason="GGUF files need the package gguf: make .venv/.rl")

import gguf
import numpy
import torch

from llm_sandbox_nb.cli import main
from llm_sandbox_nb.training.chat_tokens import ChatTokens
from llm_sandbox_nb.training.policy import load_policy, save_policy, weights_digest
from llm_sandbox_nb.training.record import START, TrainingRecord

pytestmark = [pytest.mark.campaign, pytest.mark.bubblewrap, pytest.mark.timeout(600)]
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
WIDTH, LAYERS, HEADS, INNER = 64, 2, 2, 96
BLOCK = 32
"""Numbers of a block of Q8_0."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a GGUF file of a Llama with random weights, some of them quantized, and a tokenizer of bytes."""
    from tokenizers.pre_tokenizers import ByteLevel

    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    letters = sorted(ByteLevel.alphabet())
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *letters, "an", "th"]
    types = [gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (len(tokens) - 3)
    chance = numpy.random.default_rng(7)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(2048)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(["a n", "t h"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)

    def add(name: str, *shape: int, quantized: bool = False) -> None:
        weights = (chance.normal(size=shape) * 0.05).astype(numpy.float32)
        kind = gguf.GGMLQuantizationType.Q8_0 if quantized else gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quants.quantize(weights, kind), raw_dtype=kind)

    add("token_embd.weight", len(tokens), WIDTH)
    add("output_norm.weight", WIDTH)
    for layer in range(LAYERS):
        for name in ("attn_norm", "ffn_norm"):
            add(f"blk.{layer}.{name}.weight", WIDTH)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{layer}.{name}.weight", WIDTH, WIDTH, quantized=True)
        for name in ("ffn_gate", "ffn_up"):
            add(f"blk.{layer}.{name}.weight", INNER, WIDTH, quantized=True)
        add(f"blk.{layer}.ffn_down.weight", WIDTH, INNER, quantized=True)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_weights_are_dequantized_and_saved_as_those_of_any_model(model: Path, tmp_path: Path) -> None:
    loaded, tokenizer = load_policy(str(model), "float32")
    assert {one.dtype for one in loaded.parameters()} == {torch.float32}
    assert tokenizer.encode("<|im_end|>", add_special_tokens=False) == [tokenizer.eos_token_id] == [2]
    assert ChatTokens(tokenizer, in_text=True).end == 2
    save_policy(loaded, tokenizer, tmp_path / "saved")
    again, _ = load_policy(str(tmp_path / "saved"), "float32")
    before = loaded.state_dict()
    assert all(torch.equal(before[name], value) for name, value in again.state_dict().items())
    assert weights_digest(str(model)) not in (str(model), weights_digest(str(tmp_path / "saved")))


def test_training_and_evaluation_in_text_mode(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A policy of random weights makes no call; each part of the training still has to fit the next one."""
    run = tmp_path / "run"
    changes = {
        "model.path": str(model), "model.dtype": "float32", "steps": "2", "warm_up.steps": "2", "warm_up.count": "8",
        "warm_up.batch": "4", "rollouts.rows_per_step": "2", "rollouts.per_row": "2", "rollouts.turns": "2",
        "rollouts.reply_tokens": "8", "rollouts.completion_tokens": "2000", "rollouts.prompt_tokens": "2000",
        "objective.micro_batch": "0", "validation.every": "0", "record.checkpoint_every": "1",
    }  # fmt: skip
    words = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    assert main(["train", "run", "--config", "smollm2-cpu.yaml", "--out", str(run), *words]) == 0
    said = capsys.readouterr().err
    assert "8 scripted runs to imitate" in said
    assert "Supervised learning from 8 runs, 2 steps" in said
    assert "step 2 of 2: loss" in said
    record = TrainingRecord.load(run)
    assert [step["step"] for step in record.steps()] == [1, 2]
    published, warmed = load_policy(str(model), "float32")[0], load_policy(str(run / START), "float32")[0]
    changed = [
        name
        for name, value in published.state_dict().items()
        if not torch.equal(value, warmed.state_dict()[name])
    ]
    assert changed
    assert all("proj" in name for name in changed), "LoRA changes linear layers only"
    words = ["--rows", "2", "--workers", "4", "--out", str(tmp_path / "cells")]
    assert main(["train", "evaluate", str(run), *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    begins = [tuple(line.split()[:2]) for line in lines[1:7]]
    assert begins == [(policy, mode) for policy in ("base", "before", "after") for mode in ("sandbox", "llm")]
    pairs = [line.partition(":")[0] for line in lines[7:11]]
    assert pairs == [
        f"{change}, {mode}" for change in ("before - base", "after - before") for mode in ("sandbox", "llm")
    ]
    assert "over 2 rows; 0 better, 0 worse, p 1 (McNemar)" in lines[7]
