"""A stand-in of vLLM with the parts of its interface that TRL and we use; it samples with Transformers on a CPU.

`install` puts it where `import vllm` and TRL look. Its weights are a copy of its own, which change only when they are
pushed to it, as vLLM's do. Import this only where torch is installed.
"""

from __future__ import annotations

import importlib.machinery
import sys
import types
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch


def sampled(
    model: Any, prompt: Sequence[int], limit: int, temperature: float
) -> tuple[list[int], list[float]]:
    """Ids and the log-probabilities that they were sampled with, up to the end token or the limit."""
    ids, chances = list(prompt), []
    with torch.no_grad():
        for _ in range(limit):
            logits = model(torch.tensor([ids])).logits[0, -1] / temperature
            known = torch.log_softmax(logits.float(), dim=-1)
            ids.append(int(torch.multinomial(known.exp(), 1)))
            chances.append(float(known[ids[-1]]))
            if ids[-1] == model.config.eos_token_id:
                break
    return ids[len(prompt) :], chances


class Weights:
    """A copy of a policy. `pushes` counts how often all weights were replaced."""

    def __init__(self, path: str) -> None:
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(path).eval()
        self.known = dict(self.model.named_parameters())
        self.pushed: set[str] = set()
        self.pushes = 0

    def load_weights(self, pairs: Iterable[tuple[str, Any]]) -> None:
        for name, weight in pairs:
            self.known[name].data.copy_(weight)
            self.pushed.add(name)
            if self.pushed == set(self.known):
                self.pushes, self.pushed = self.pushes + 1, set()


class LLM:
    """`vllm.LLM`: `made` are all that were made."""

    made: list[LLM] = []  # noqa: RUF012

    def __init__(self, model: str, **options: Any) -> None:
        self.options = options
        self.weights = Weights(model)
        self.asked: list[tuple[int, Any]] = []
        """How many prompts each call had, and its SamplingParams."""
        runner = SimpleNamespace(model=self.weights)
        worker = SimpleNamespace(model_runner=runner)
        self.llm_engine = SimpleNamespace(model_executor=SimpleNamespace(driver_worker=worker))
        LLM.made.append(self)

    def reset_prefix_cache(self) -> None:
        pass

    def generate(self, prompts: list[dict[str, Any]], sampling_params: Any, use_tqdm: bool) -> list[Any]:
        self.asked.append((len(prompts), sampling_params))
        answers = []
        for prompt in prompts:
            ids, chances = sampled(
                self.weights.model,
                prompt["prompt_token_ids"],
                sampling_params.max_tokens,
                sampling_params.temperature,
            )
            told = [
                {one: SimpleNamespace(rank=1, logprob=chance)}
                for one, chance in zip(ids, chances, strict=True)
            ]
            output = SimpleNamespace(token_ids=ids, logprobs=told)
            answers.append(SimpleNamespace(prompt_token_ids=prompt["prompt_token_ids"], outputs=[output]))
        return answers


class Client:
    """TRL's client of a vLLM server, which pushes weights to `weights`; set it before a training."""

    weights: Weights | None = None

    def __init__(self, base_url: str, **_: Any) -> None:
        self.base_url = base_url

    def init_communicator(self, device: Any) -> None:
        pass

    def get_server_info(self) -> dict[str, Any]:
        return {"model_config": {"logprobs_mode": "processed_logprobs"}}

    def update_named_params(self, described: list[Any], pairs: Iterable[tuple[str, Any]]) -> None:
        assert Client.weights is not None
        pairs = list(pairs)
        assert [name for name, _, _ in described] == [name for name, _ in pairs]
        Client.weights.load_weights(pairs)

    def reset_prefix_cache(self) -> None:
        pass


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    from trl.generation import vllm_generation

    module = types.ModuleType("vllm")
    module.__spec__ = importlib.machinery.ModuleSpec("vllm", None)
    monkeypatch.setitem(sys.modules, "vllm", module)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):  # TRL sets them
        monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv(name, "0" if "RANK" in name else "1")
        monkeypatch.delenv(name)
    monkeypatch.setattr(vllm_generation, "is_vllm_available", lambda: True)
    monkeypatch.setattr(vllm_generation, "LLM", LLM, raising=False)
    monkeypatch.setattr(vllm_generation, "SamplingParams", SimpleNamespace, raising=False)
    monkeypatch.setattr(vllm_generation, "VLLMClient", Client)
    monkeypatch.setattr(LLM, "made", [])
