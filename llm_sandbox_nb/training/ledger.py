"""Task for a small pretrained model: questions about ledgers, which are files in the sandbox.

Each line of a ledger is a sale, such as `Norwick sold rye for 481`. There are four kinds of questions, and each kind
needs a different command. The scripted runs choose the right command in half of the runs, and otherwise one of the
other three by chance. The policy has to learn to prefer the right command.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from llm_sandbox_nb.agent.prompts import PromptConfig
from llm_sandbox_nb.benchmark.rows import Row
from llm_sandbox_nb.benchmark.task import Task
from llm_sandbox_nb.model.contract import DeltaCallback, ModelSettings, Reply

LEDGER, LEDGER_OTHER = "ledger", "ledger-other"
"""Values of `data.rows`: for the questions to learn from, and for questions of other kinds about ledgers."""
_FILES, _LINES = 3, 6
_GOODS = ("rye", "salt", "wool", "iron", "tea", "coal")
_BEGINNINGS = (
    "Nor",
    "Sal",
    "Wes",
    "Har",
    "Ber",
    "Dun",
    "Kel",
    "Mar",
    "Pen",
    "Tor",
    "Bra",
    "Els",
    "Fal",
    "Gor",
)
_ENDINGS = (
    "wick",
    "ton",
    "ford",
    "by",
    "mouth",
    "worth",
    "ham",
    "dale",
    "gate",
    "field",
    "bury",
    "port",
    "cote",
    "ley",
)


@dataclass(frozen=True)
class Sale:
    """Sale. A ledger has a line for each sale."""

    town: str
    goods: str
    amount: int

    @property
    def line(self) -> str:
        return f"{self.town} sold {self.goods} for {self.amount}"


@dataclass(frozen=True)
class QuestionKind:
    """Kind of questions. The same shell command answers all questions of a kind."""

    questions: Sequence[str]
    """Wordings of the question, with `{key}` in place of a town or goods."""
    about: str
    """Attribute of a sale that the question names: `town` or `goods`."""
    answer: Callable[[Sequence[Sale]], Any]
    """Function that computes the answer from the sales with this town or these goods."""
    command: str
    """Shell command that reads the lines with this town or these goods from a pipe, and prints the answer."""


KINDS: Mapping[str, QuestionKind] = {
    "goods": QuestionKind(
        ("What did {key} sell?", "Which goods come from {key}?", "Which goods did {key} sell?"),
        "town",
        lambda sales: sales[0].goods,
        "cut -d ' ' -f 3",
    ),
    "count": QuestionKind(
        ("How many towns sold {key}?", "How often was {key} sold?", "In how many lines is {key}?"),
        "goods",
        len,
        "wc -l",
    ),
    "largest": QuestionKind(
        (
            "What is the largest amount for {key}?",
            "What was the highest price of {key}?",
            "What is the most that {key} was sold for?",
        ),
        "goods",
        lambda sales: max(sale.amount for sale in sales),
        "cut -d ' ' -f 5 | sort -n | tail -n 1",
    ),
    "total": QuestionKind(
        (
            "What is the total of all amounts for {key}?",
            "For how much was {key} sold in all?",
            "What is the sum of the prices of {key}?",
        ),
        "goods",
        lambda sales: sum(sale.amount for sale in sales),
        "awk '{s += $5} END {print s}'",
    ),
}
"""Kinds of questions to learn from, by name."""
OTHER_KINDS: Mapping[str, QuestionKind] = {
    "price": QuestionKind(
        ("For how much did {key} sell?", "What is the amount of {key}?"),
        "town",
        lambda sales: sales[0].amount,
        "cut -d ' ' -f 5",
    ),
    "smallest": QuestionKind(
        ("What is the smallest amount for {key}?", "What was the lowest price of {key}?"),
        "goods",
        lambda sales: min(sale.amount for sale in sales),
        "cut -d ' ' -f 5 | sort -n | head -n 1",
    ),
}
"""Kinds of questions for evaluations only. The training on `ledger` and the scripted runs do not use them."""


def towns(*, held_out: bool) -> list[str]:
    """Return the names of towns for held-out rows, or for the rows of a training.

    No town is in both lists, so no held-out row equals a row of a training.
    """
    pairs = itertools.product(enumerate(_BEGINNINGS), enumerate(_ENDINGS))
    return [
        beginning + ending
        for (row, beginning), (column, ending) in pairs
        if ((row + column) % 3 == 0) is held_out
    ]


def ledger_rows(
    count: int, seed: int, kinds: Mapping[str, QuestionKind] = KINDS, *, held_out: bool = False
) -> list[Row]:
    """Make rows with questions of the given kinds. Equal arguments give equal rows. For `held_out`, see `towns`."""
    chance = random.Random(f"ledger-{seed}-{held_out}-{','.join(kinds)}")
    names, listed = towns(held_out=held_out), list(kinds.items())
    rows = []
    for number in range(count):
        # The kinds take turns, so that they are equally frequent.
        name, kind = listed[number % len(listed)]
        sales = [
            Sale(town, chance.choice(_GOODS), chance.randint(100, 999))
            for town in chance.sample(names, _FILES * _LINES)
        ]
        key = getattr(chance.choice(sales), kind.about)
        answer = kind.answer([sale for sale in sales if getattr(sale, kind.about) == key])
        files = {
            f"ledger-{place + 1}.txt": "".join(
                f"{sale.line}\n" for sale in sales[place * _LINES : (place + 1) * _LINES]
            )
            for place in range(_FILES)
        }
        question = chance.choice(kind.questions).replace("{key}", key)
        rows.append(Row(f"{name}-{number}", question, str(answer), input_files=files, qa_type="free form"))
    return rows


def ledger_task(task: Task) -> Task:
    """Return `task` with short prompts for text mode, and with the scorer for the ledger rows."""
    prompts = PromptConfig(
        system_prompt="Answer the question from the text files in the folder documents.",
        working_dir=task.prompts.working_dir,
        input_dir=task.prompts.input_dir,
        output_dir=task.prompts.output_dir,
        text_form="brief",
    )
    return replace(
        task,
        name=LEDGER,
        scorer="exact",
        prompts=prompts,
        vanilla_prompt="{problem_statement} Reply with the answer alone.",
    )


def other_task(task: Task) -> Task:
    """Return `task` with the changes of `ledger_task`, and with the name for rows of `OTHER_KINDS`."""
    return replace(ledger_task(task), name=LEDGER_OTHER)


def command(key: str, kind: QuestionKind) -> str:
    """Return the command that answers a question of the given kind about `key`."""
    return f"grep -h {key} documents/* | {kind.command}"


def asked_about(question: str) -> str:
    """Return the town or the goods that a question names."""
    return next(word for word in question.rstrip("?").split() if word in _KEYS)


_RIGHT_SHARE = 0.5
"""Share of the scripted runs whose command is right. A policy that imitates runs with random commands learns that the
command does not depend on the question; and if all runs are right, nothing is left for the reinforcement learning."""


class LedgerDemonstrator:
    """Scripted model for a row in text mode. It executes one command, which is right in half of the runs.

    The last line of the command's output is the answer.
    """

    name = f"scripted/{LEDGER}"
    scripted = True

    def __init__(self, seed: str, row: Row) -> None:
        chance = random.Random(seed)
        right = row.id.partition("-")[0]
        wrong = [name for name in KINDS if name != right]
        name = right if chance.random() < _RIGHT_SHARE else chance.choice(wrong)
        self._command = command(asked_about(row.problem_statement), KINDS[name])
        self._executed = False

    async def reply(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]],
        settings: ModelSettings,
        on_delta: DeltaCallback | None = None,
    ) -> Reply:
        if self._executed:
            text = f"ANSWER: {str(messages[-1]['content']).strip().splitlines()[-1]}"
        else:
            text = f"```bash\n{self._command}\n```"
        self._executed = True
        return Reply({"role": "assistant", "content": text}, text=text, finish_reason="stop")


_KEYS = frozenset((*_GOODS, *towns(held_out=False), *towns(held_out=True)))
