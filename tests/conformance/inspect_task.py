"""A task of Inspect with 20 samples and a scripted model, which answers four of them wrongly.

inspect eval tests/conformance/inspect_task.py --sandbox llm-sandbox-nb
"""

from __future__ import annotations

import re
from typing import Any

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessage, ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import match
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import bash

SAMPLES = 20
WRONG = range(0, SAMPLES, 5)


USAGE = ModelUsage(input_tokens=10, output_tokens=5, total_tokens=15)
"""Without one, Inspect counts tokens, and loads a table from the network for that."""


def reply(messages: list[ChatMessage], *_: Any, **__: Any) -> ModelOutput:
    """Adds the two numbers in the sandbox, then says what the file holds; in some samples it says another number."""
    output = _output(messages)
    output.usage = USAGE
    return output


def _output(messages: list[ChatMessage]) -> ModelOutput:
    asked = next(message.text for message in messages if message.role == "user")
    first, second = map(int, re.findall(r"\d+", asked))
    if messages[-1].role == "tool":
        found = int(messages[-1].text.strip() or -1)
        said = found + 1 if first in WRONG else found
        return ModelOutput.from_content("mockllm/model", f"The sum is {said}")
    command = f"echo $(({first} + {second})) > sum.txt && cat sum.txt"
    return ModelOutput.for_tool_call("mockllm/model", "bash", {"command": command})


@task
def sums() -> Task:
    return Task(
        dataset=[
            Sample(input=f"Add {number} and {number * 7}.", target=str(number * 8), id=number)
            for number in range(SAMPLES)
        ],
        solver=[use_tools(bash(timeout=60)), generate()],
        scorer=match(),
        model=get_model("mockllm/model", custom_outputs=reply),
    )
