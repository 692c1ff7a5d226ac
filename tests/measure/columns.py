"""The columns of the measurement: who answers the rows, and how. All have the same limits and sampling."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import yaml

from llm_sandbox_nb.agent.prompts import load_prompts
from llm_sandbox_nb.agent.run_limits import RunLimits
from llm_sandbox_nb.agent.text_mode import load_text_form
from llm_sandbox_nb.benchmark.task import Task
from llm_sandbox_nb.model.contract import ModelSettings

SCORER = Path(__file__).with_name("scorer.py")
LIMITS = RunLimits(steps=12, tokens=8_192)
REPLY_TOKENS = 512
SAMPLING = ModelSettings(temperature=0.2, top_p=0.8, top_k=20, max_tokens=REPLY_TOKENS, timeout=1_800)
COMMAND_TIMEOUT = 60.0
VANILLA_PROMPT = (
    "{problem_statement}\n\nThink step by step. End with one line that holds ANSWER: and the result alone."
)
WRITING_PROMPT = "{problem_statement}"
"""For sets whose answer is a whole text."""
WHOLE_TEXT = ("ifbench", "examples")


@dataclass(frozen=True)
class Column:
    """One column. `peer` names the program that asks, if it is none of this package."""

    name: str
    title: str
    mode: Literal["llm", "sandbox"]
    tool_calls: Literal["native", "text"] = "native"
    peer: str = ""
    form: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the form of text mode that are others than in the package."""
    prompts: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the prompts that are others than in the package."""


COLUMNS: Final[Mapping[str, Column]] = {
    one.name: one
    for one in (
        Column("vanilla", "no sandbox", "llm"),
        Column("native", "this package, native calls", "sandbox"),
        Column("text", "this package, text mode", "sandbox", "text"),
        Column("llm-in-sandbox", "llm-in-sandbox 0.2.0", "sandbox", peer="llm_in_sandbox"),
        Column("mini-swe-agent", "mini-swe-agent 2.4.6", "sandbox", peer="mini_swe_agent"),
    )
}


def _variant(name: str, title: str, **keys: Mapping[str, Any]) -> Column:
    return Column(name, title, "sandbox", "text", **keys)


VARIANTS: Final[Mapping[str, Column]] = {
    one.name: one
    for one in (
        COLUMNS["vanilla"],
        COLUMNS["text"],
        _variant("long-prompt", "the prompt of native mode", prompts={"text_system_prompt": ""}),
        _variant("no-end-of-block", "a reply is not ended after its block", form={"first_block_ends": False}),
        _variant("guesses-count", "an answer counts before anything was executed", form={"answer_first": ""}),
        _variant("same-after-errors", "an error is answered like a result", form={"failed": ""}),
        _variant("repeats-sent", "equal replies are sent again", form={"repeated": ""}),
        _variant("texts-refused", "a text alone is no answer", form={"said": "", "cut": ""}),
        _variant("steps-told", "each message tells the steps that remain", form={"footer_from": None}),
    )
}
"""Text mode without one of its parts each, for tuning."""


def task_of(name: str, column: Column | None = None, folder: Path | None = None) -> Task:
    """How a set of rows is asked and scored: with the package's own prompts, or those of a variant.

    The form of a variant is written into `folder`.
    """
    prompts = load_prompts()
    if column is not None and folder is not None and (column.form or column.prompts):
        own = dataclasses.asdict(load_text_form(prompts.text_form)) | dict(column.form)
        file = folder / f"{column.name}.yaml"
        file.write_text(yaml.safe_dump(own), "utf-8")
        prompts = dataclasses.replace(prompts, text_form=str(file), **column.prompts)
    return Task(
        name=name,
        folder=SCORER.parent,
        prompts=prompts,
        vanilla_prompt=WRITING_PROMPT if name in WHOLE_TEXT else VANILLA_PROMPT,
        scorer="ifbench" if name == "ifbench" else str(SCORER),
        answer="reply",
        limits=LIMITS,
    )


def modes_of(column: Column, name: str) -> tuple[str, ...]:
    """The modes in which a column does a set: documents in files, and for this package also in the prompt."""
    if name == "files" and column.mode == "sandbox" and not column.peer:
        return ("sandbox", "sandbox-prompt")
    return (column.mode,)
