"""Training for a laptop: a task that needs files, scripted runs to imitate, and a very small model.

In the task, there are four notes. Each note has a code of four digits and one of four words for its state. Only the
note with the word `valid` is in force. The prompt asks for its code and does not name the word. The scripted runs
search for one of the four words, chosen at random, so a quarter of the runs are right. The policy has to learn to
search for `valid`.
"""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from llm_sandbox_nb.benchmark.rows import Row
from llm_sandbox_nb.benchmark.task import Task
from llm_sandbox_nb.model.contract import DeltaCallback, ModelSettings, Reply, ToolCall
from llm_sandbox_nb.model.request import assistant_message
from llm_sandbox_nb.model.stream import Assembly
from llm_sandbox_nb.training.config import ModelConfig
from llm_sandbox_nb.trajectory.trajectory import Trajectory

WORDS = ("valid", "draft", "expired", "sample")
"""Words for the state of a note. Only a note with the first word is in force."""
NOTES = "notes"
"""Value of `data.rows` for the tiny task."""
PROBLEM = "Which code is in force today? The documents tell it. Answer with its four digits."


def notes_rows(count: int, seed: int) -> list[Row]:
    """Make rows of the tiny task. Equal seeds give equal rows."""
    chance = random.Random(f"notes-{seed}")
    rows = []
    for number in range(count):
        codes = chance.sample(range(1000, 10_000), len(WORDS))
        places = chance.sample(range(1, len(WORDS) + 1), len(WORDS))
        files = {
            f"note-{place}.txt": f"{word}: the code is {code}\n"
            for place, word, code in zip(places, WORDS, codes, strict=True)
        }
        rows.append(
            Row(
                f"notes-{number}",
                PROBLEM,
                str(codes[0]),
                input_files=dict(sorted(files.items())),
                qa_type="free form",
            )
        )
    return rows


def notes_task(task: Task) -> Task:
    """Return the task with the name and the scorer for the rows of the tiny task."""
    return replace(task, name="notes", scorer="exact")


class NotesDemonstrator:
    """Scripted model that works on the tiny task with random choices. A tiny model learns by imitating such runs."""

    name = "scripted/notes"
    scripted = True

    def __init__(self, seed: str) -> None:
        chance = random.Random(seed)
        word = chance.choice(WORDS)
        commands = ["ls documents"] if chance.random() < 0.5 else []
        commands.append(f"grep -h {word} documents/* | grep -o '[0-9]*' > answer.txt")
        commands += ["cat answer.txt"] if chance.random() < 0.5 else []
        self._calls = [("execute_bash", {"command": command}) for command in commands] + [("submit", {})]
        self._replies = itertools.count(1)

    async def reply(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]],
        settings: ModelSettings,
        on_delta: DeltaCallback | None = None,
    ) -> Reply:
        number = next(self._replies)
        name, arguments = self._calls[number - 1]
        calls = (ToolCall(f"call_{number}_0", name, json.dumps(arguments)),)
        return Reply(assistant_message(Assembly(), calls, "none"), calls=calls, finish_reason="tool_calls")


def rendered(template: str, run: Trajectory) -> str:
    """Return the text of a whole run, as the chat template renders it."""
    from transformers.utils.chat_template_utils import render_jinja_template

    tools = run.start.tools if run.start else []
    (text,), _ = render_jinja_template([list(run.messages())], tools=tools, chat_template=template)
    return str(text)


def fixed_lines(texts: Sequence[str]) -> list[str]:
    """Return the long lines that all given texts share, with the longest line first."""
    counted = Counter(line for text in texts for line in set(text.split("\n")))
    common = (line for line, count in counted.items() if count == len(texts) and len(line) > 20)
    # Sorting by length alone would give lines of the same length another order in each process.
    return sorted(common, key=lambda line: (len(line), line), reverse=True)


def make_tokenizer(texts: Sequence[str], lines: Iterable[str], size: int, template: str) -> Any:
    """Train a byte-level BPE tokenizer on `texts`, in which each of `lines` becomes one token.

    Without these tokens, the prompt, which is always the same, would be most of a tiny model's input.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    marks = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
    own = [AddedToken(line, normalized=False, special=False) for line in (*marks, *lines)]
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=64,
        show_progress=False,
    )
    made.train_from_iterator(_without(texts, [*special, *marks, *lines]), trainer)
    made.add_tokens(own)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<|im_end|>", pad_token="<|endoftext|>", padding_side="left"
    )
    tokenizer.chat_template = template
    return tokenizer


def _without(texts: Iterable[str], pieces: Sequence[str]) -> list[str]:
    """Split `texts` at `pieces`, which have their own tokens. Return the parts between the pieces."""
    parts = list(texts)
    for piece in pieces:
        parts = [part for text in parts for part in text.split(piece) if part]
    return parts


def chat_template() -> str:
    """Return the chat template of Qwen3 instruct models, from a file in the package TRL."""
    from importlib import resources

    return resources.files("trl").joinpath("chat_templates/qwen3_instruct_2507.jinja").read_text("utf-8")


def make_model(config: ModelConfig, tokenizer: Any, tokens: int) -> Any:
    """Make a Qwen3 model of the given size with random weights, for at most `tokens` tokens."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=config.width,
            intermediate_size=3 * config.width,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.heads,
            head_dim=config.width // config.heads,
            max_position_embeddings=tokens,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
