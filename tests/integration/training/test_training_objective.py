"""The objective in TRL's configuration against numbers computed by hand; the seams to TRL that are not public."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="training needs torch: make .venv/.rl")
pytest.importorskip("trl", reason="training needs TRL: make .venv/.rl")

import peft
import tiny_policy
import torch
from chat_templates import TemplateTokenizer
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.utils.chat_template_utils import render_jinja_template

from llm_sandbox_nb.agent.tools.toolbox import TOOLS
from llm_sandbox_nb.benchmark.rows import Row
from llm_sandbox_nb.model.contract import ToolCall
from llm_sandbox_nb.training import grpo
from llm_sandbox_nb.training.chat_tokens import ChatTokens, TemplateError
from llm_sandbox_nb.training.config import ConfigError
from llm_sandbox_nb.training.policy import Sampling, load_policy, save_policy, weights_digest
from llm_sandbox_nb.training.rollouts import LOST, Rollout
from llm_sandbox_nb.training.token_model import TokenConversation, conversation_ids

pytestmark = pytest.mark.campaign
REWARDS: list[float | None] = [1.0, 0.0, 0.5, 0.0, 0.25, 0.25, 1.0, 0.75]


def rollout(place: int, reward: float | None, stop: str = "submitted") -> Rollout:
    made = Rollout(Row(f"row-{place // 4}", "?", "1"), TokenConversation([10 + place, 11, 12]))
    made.conversation.add_reply(tuple(range(20 + place, 25 + place)), None)
    made.conversation.add_environment(list(range(60, 60 + place)))
    made.conversation.add_reply((40, 41 + place, 2), None)
    made.conversation.add_environment([70, 71])  # shown to nobody: no reply follows
    made.reward, made.stop_reason = reward, stop
    return made


def trainer_of(tmp_path: Path, rollouts: list[Rollout], told: list[float] | None = None, **more: Any) -> Any:
    config = tiny_policy.config(**more)
    tokenizer = tiny_policy.tokenizer()
    return grpo.make_trainer(
        config,
        tiny_policy.model(tokenizer),
        tokenizer,
        ["row-0", "row-1"],
        tmp_path,
        lambda ids, trainer: rollouts,
        (told if told is not None else []).extend,
    )


def inputs_of(trainer: Any) -> dict[str, Any]:
    rows = [
        {"prompt": [{"role": "user", "content": f"row-{n // 4}", "row": f"row-{n // 4}"}]} for n in range(8)
    ]
    trainer.model.train()
    made: dict[str, Any] = trainer._generate_and_score_completions(rows)
    return made


def test_advantage_is_reward_less_the_mean_of_the_others(tmp_path: Path) -> None:
    told: list[float] = []
    trainer = trainer_of(tmp_path, [rollout(n, one) for n, one in enumerate(REWARDS)], told)
    advantages = inputs_of(trainer)["advantages"].tolist()
    assert advantages == told
    for start in (0, 4):
        group = [one for one in REWARDS[start : start + 4] if one is not None]
        for place, one in enumerate(group):
            others = (sum(group) - one) / 3
            assert advantages[start + place] == pytest.approx(one - others, abs=1e-6)


def test_mask_covers_what_was_sampled_and_nothing_else(tmp_path: Path) -> None:
    rollouts = [rollout(n, one) for n, one in enumerate(REWARDS)]
    rollouts[3] = rollout(3, None, LOST)
    rollouts[5] = Rollout(Row("row-1", "?", "1"), TokenConversation(), stop_reason="tokens", reward=0.0)
    made = inputs_of(trainer_of(tmp_path, rollouts))
    for place, one in enumerate(rollouts):
        mask = (made["completion_mask"][place] * made["tool_mask"][place]).bool()
        kept = made["completion_ids"][place][mask].tolist()
        wanted = [] if place in (3, 5) else [id for reply in one.conversation.replies for id in reply]
        assert kept == wanted
    assert made["advantages"][3].item() == 0.0
    assert 70 not in made["completion_ids"].tolist()[0]


def log_probabilities(trainer: Any, made: dict[str, Any], place: int) -> list[float]:
    prompt = made["prompt_ids"][place][made["prompt_mask"][place].bool()]
    completion = made["completion_ids"][place][made["completion_mask"][place].bool()]
    logits = trainer.model(torch.cat([prompt, completion])[None]).logits[0].double()
    chances = torch.log_softmax(logits / trainer.temperature, dim=-1)
    at = range(len(prompt) - 1, len(prompt) + len(completion) - 1)
    return [chances[where, id].item() for where, id in zip(at, completion.tolist(), strict=True)]


@pytest.mark.parametrize("shift", [0.0, 0.15, 0.4, -0.3])
def test_loss_is_the_sum_over_tokens_of_the_clipped_ratio(tmp_path: Path, shift: float) -> None:
    trainer = trainer_of(tmp_path, [rollout(n, one) for n, one in enumerate(REWARDS)])
    made = inputs_of(trainer)
    now = [log_probabilities(trainer, made, place) for place in range(8)]
    width = made["completion_ids"].shape[1]
    before = torch.zeros(8, width)
    for place, values in enumerate(now):  # every other token was less likely before, or more
        for at, value in enumerate(values):
            before[place, at] = value - shift * (1 if at % 2 else 0.5)
    made["old_per_token_logps"] = before
    trainer.current_gradient_accumulation_steps = 1
    loss = trainer._compute_loss(trainer.model, made)
    by_hand = 0.0
    for place, values in enumerate(now):
        advantage = made["advantages"][place].item()
        for at, value in enumerate(values):
            if made["tool_mask"][place][at]:
                ratio = math.exp(value - before[place, at].item())
                clipped = min(max(ratio, 1 - 0.2), 1 + 0.28)
                by_hand += -min(ratio * advantage, clipped * advantage) / 8
    assert loss.item() == pytest.approx(by_hand, abs=1e-6)


def test_tokens_of_the_environment_get_no_gradient(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, [rollout(n, one) for n, one in enumerate(REWARDS)])
    made = inputs_of(trainer)
    made["old_per_token_logps"] = torch.full(made["completion_ids"].shape, -3.0)
    kept: dict[str, Any] = {}
    original = trainer._get_per_token_logps_and_entropies

    def watched(*given: Any, **more: Any) -> Any:
        first, *rest = original(*given, **more)
        first.retain_grad()
        kept["logps"] = first
        return (first, *rest)

    trainer._get_per_token_logps_and_entropies = watched
    trainer.current_gradient_accumulation_steps = 1
    trainer._compute_loss(trainer.model, made).backward()
    mask = (made["completion_mask"] * made["tool_mask"]).bool()
    assert torch.all(kept["logps"].grad[~mask] == 0.0)
    assert torch.any(kept["logps"].grad[mask] != 0.0)


def test_generation_keeps_each_limit_and_stops_at_the_end(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, [])
    made = grpo.generate_together(trainer, [[5, 6, 7], [8], [9, 10]], [3, 40, 7])
    end = trainer.processing_class.eos_token_id
    for one, limit in zip(made, [3, 40, 7], strict=True):
        assert 0 < len(one.ids) <= limit
        assert end not in one.ids[:-1]
        assert one.logprobs is None


def test_a_temperature_of_zero_selects_the_likeliest_tokens(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, [])
    asked = [[5, 6, 7]] * 8, [12] * 8
    with grpo.sampling_as(trainer, Sampling(0.0)):
        assert len({one.ids for one in grpo.generate_together(trainer, *asked)}) == 1
    assert len({one.ids for one in grpo.generate_together(trainer, *asked)}) > 1


@pytest.mark.parametrize("name", ["qwen3", "qwen3_instruct_2507", "qwen2_5", "qwen3_training", "glm4moe"])
def test_ids_between_replies_are_those_of_trl(tmp_path: Path, name: str) -> None:
    tokenizer = tiny_policy.tokenizer(tiny_policy.template(name))
    if name == "glm4moe":
        with pytest.raises(TemplateError, match="does not end a reply with the end token"):
            ChatTokens(tokenizer)
        return
    chat = ChatTokens(tokenizer)
    trainer = trainer_of(tmp_path, [])
    # TRL itself needs the training form of Qwen3's template, which keeps what is before; ours needs it not.
    theirs = tiny_policy.tokenizer(tiny_policy.template("qwen3_training")) if name == "qwen3" else tokenizer
    trainer.processing_class = trainer._tokenizer = theirs
    calls = (ToolCall("call_1_0", "execute_bash", "{}"), ToolCall("call_1_1", "submit", "{}"))
    results = [
        {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": f"result {n} ünïcode\n<x>"}
        for n, call in enumerate(calls)
    ]
    for count in (1, 2):
        mine = chat.between(results[:count], calls=calls[:1])
        assert tokenizer.decode(mine) == tokenizer.decode(trainer._get_tool_suffix_ids(results[:count]))
        assert mine == trainer._get_tool_suffix_ids(results[:count])
    nudge = tokenizer.decode(chat.between([{"role": "user", "content": "Go on."}]))
    assert nudge.startswith("\n<|im_start|>user\nGo on.<|im_end|>\n<|im_start|>assistant\n")


RIGHT = {
    "gemma4_v2": "<turn|>", "lfm2_2_5_vl": "<|im_end|>", "lfm2_v2": "<|im_end|>", "llama3_1": "<|eot_id|>",
    "llama3_2": "<|eot_id|>", "qwen2_5": "<|im_end|>", "qwen3": "<|im_end|>", "qwen3_5_nothink": "<|im_end|>",
    "qwen3_5_think": "<|im_end|>", "qwen3_6": "<|im_end|>", "qwen3_8": "<|im_end|>",
    "qwen3_instruct_2507": "<|im_end|>", "qwen3_vl": "<|im_end|>",
}  # fmt: skip
"""Models' templates that TRL ships and that are trained rightly, and the token that ends a reply of each."""
REFUSED = {
    "deepseekv3": ("<｜end▁of▁sentence｜>", "DeepSeek"), "gemma3": ("<end_of_turn>", "Gemma"),
    "gemma4": ("<turn|>", "Gemma 4"),
    "glm4moe": ("<|endoftext|>", "GLM-4"), "gptoss": ("<|return|>", "GPT-OSS"), "lfm2": ("<|im_end|>", "LFM2"),
    "lfm2_2_5": ("<|im_end|>", "LFM2"), "llama3": ("<|eot_id|>", "Llama 3"), "phi3": ("<|end|>", "Phi"),
    "cohere2": ("<|END_OF_TURN_TOKEN|>", "Command R"), "nemotron_3_nano": ("<|im_end|>", "Nemotron"),
}  # fmt: skip


class AsTransformers(TemplateTokenizer):
    """Renders with Transformers' own function."""

    def apply_chat_template(self, conversation: Any, **options: Any) -> str:
        (text,), _ = render_jinja_template(
            [list(conversation)],
            tools=options.get("tools"),
            chat_template=self.chat_template,
            add_generation_prompt=options.get("add_generation_prompt", False),
            bos_token="",
            eos_token=self.eos_token,
        )
        return str(text)


@pytest.mark.parametrize("name", [*RIGHT, *REFUSED])
def test_templates_of_models_give_their_own_ids_or_are_refused_by_name(name: str) -> None:
    text = tiny_policy.template(name)
    if name in REFUSED:
        end, family = REFUSED[name]
        with pytest.raises(TemplateError, match=rf"\({re.escape(family)}\)"):
            ChatTokens(AsTransformers(text, end))
        return
    chat, tools = ChatTokens(AsTransformers(text, RIGHT[name])), TOOLS.schemas()
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Work."},
        {"role": "user", "content": "?"},
    ]
    for turn, commands in enumerate(
        [["ls"], ["pwd", 'echo "a\nb" <c>'][: 1 if "llama" in name else 2], ["date"]]
    ):
        calls = [
            {"id": f"call_{turn}_{place}", "type": "function",
             "function": {"name": "execute_bash", "arguments": json.dumps({"command": command})}}
            for place, command in enumerate(commands)
        ]  # fmt: skip
        messages.append({"role": "assistant", "content": "", "tool_calls": calls})
        chat.check_reply(messages[-1], tools)
        messages += [
            {"role": "tool", "tool_call_id": call["id"], "name": "execute_bash", "content": 'x "y"'}
            for call in calls
        ]
    own = chat.tokenizer.apply_chat_template([chat._with_arguments(one) for one in messages], tools=tools)
    found = conversation_ids(chat, messages, tools)
    assert found.ids == chat.tokenizer.encode(own)[: len(found.ids)]
    assert len(found.replies) == 3


def test_an_adapter_or_a_model_with_other_names_is_refused(tmp_path: Path) -> None:
    tokenizer = tiny_policy.tokenizer()
    base = tiny_policy.model(tokenizer)
    save_policy(base, tokenizer, tmp_path / "base")
    adapted = peft.get_peft_model(
        AutoModelForCausalLM.from_pretrained(tmp_path / "base"),
        peft.LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    save_policy(adapted, tokenizer, tmp_path / "adapter")
    assert load_policy(str(tmp_path / "adapter"))[0] is not None
    before = weights_digest(str(tmp_path / "adapter"))
    for folder, name in (("adapter", "adapter_model.safetensors"), ("base", "model.safetensors")):
        file = tmp_path / folder / name
        renamed = {key.replace("q_proj", "query"): value for key, value in load_file(file).items()}
        save_file(renamed, file, {"format": "pt"})
        said = (
            "has names that the model does not have|has not all" if folder == "adapter" else "has no weights"
        )
        with pytest.raises(ConfigError, match=said):
            load_policy(str(tmp_path / folder))
    assert weights_digest(str(tmp_path / "adapter")) != before


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (None, "has no chat template"),
        ("{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}", "shows no tools"),
        ("{{ raise_exception('no tools here') }}", "cannot write calls of tools .*no tools here"),
    ],
)
def test_tokenizer_without_tools_is_refused_in_a_sentence(template: str | None, said: str) -> None:
    tokenizer = tiny_policy.tokenizer()
    tokenizer.chat_template = template
    with pytest.raises(TemplateError, match=said):
        ChatTokens(tokenizer)
