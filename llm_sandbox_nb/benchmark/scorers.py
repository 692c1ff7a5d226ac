"""Rule-based scorers by name, and the scorer `routed`, which chooses a rule for each row of the training tasks.

A new rule needs a row in `RULES`. If it uses a package, add the package to `digests.SCORING_PACKAGES` and to the extra
`benchmark` in pyproject.toml. A new scorer that needs a model or a sandbox, such as `judge.py` or `swe.py`, needs its
name in `BY_MODEL` or `IN_SANDBOX`, and `item_pipeline.py` must start it. `data.py` checks the rows of `swe`.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_sandbox_nb.benchmark.ifbench import constraints_of, ifbench
from llm_sandbox_nb.benchmark.math_scorer import is_one_value, math_equal
from llm_sandbox_nb.benchmark.normalisation import text_key
from llm_sandbox_nb.benchmark.text_scorers import NO_ANSWER, NO_GOLD, Score, exact, letter, rouge_l, set_f1
from llm_sandbox_nb.errors import LLMSandboxError

if TYPE_CHECKING:  # importing `rows` would take most of the start time of a scoring worker
    from llm_sandbox_nb.benchmark.rows import Row

RowRule = Callable[[str, str, Mapping[str, Any]], Score]
REWARDED_BY_DOMAIN = ("math", "physics", "chem", "biomed", "instruct_follow")
"""Domains whose rows `routed` scores by the domain and not by the kind of question."""


def routed(answer: str, gold: str, row: Mapping[str, Any]) -> Score:
    """Score like the reward of the paper's package: by the domain in some domains, else by the kind of question.

    Mathematics and physics are scored by equality, chemistry and biomedicine as multiple choice, and instructions by
    their constraints. In other domains, a multiple-choice question is scored by its letter, or by F1 if several answers
    are right. Free text is scored by equality or ROUGE-L.

    This package adds three cases. The kind "extraction" is scored by F1. In a row without a kind, a gold list is scored
    by F1 too, and a single gold letter as a choice.
    """
    domain = row_domain(row)
    if domain in ("math", "physics"):
        return math_equal(answer, gold)
    if domain in ("chem", "biomed"):
        return _choice(answer, gold)
    if domain == "instruct_follow":
        return ifbench(answer, gold, row)
    kind = re.sub(r"[\W_]+", " ", str(row.get("qa_type") or "").casefold())
    if "choice" in kind:
        several = "multiple answers" in kind or ("single" not in kind and "," in gold)
        return set_f1(answer, gold) if several else _choice(answer, gold)
    if "free" in kind or "open" in kind:
        return _free(answer, gold)
    if "multi" in kind or "extract" in kind or (_is_list(gold) and not kind.strip()):
        return set_f1(answer, gold)
    return _choice(answer, gold) if _ONE_LETTER.fullmatch(gold.strip()) else _free(answer, gold)


def row_domain(row: Mapping[str, Any]) -> str:
    """Return the domain by which `routed` scores a row, such as "math" for "math_mini".

    Return an empty text if the kind of question decides.
    """
    named = str(row.get("domain") or "").casefold()
    return next((domain for domain in REWARDED_BY_DOMAIN if re.fullmatch(rf"{domain}(_\w+)?", named)), "")


def _choice(answer: str, gold: str) -> Score:
    """Score by letter, or by equality if the gold option is no letter but, for example, a digit."""
    scored = letter(answer, gold, options=26)
    return exact(answer, gold) if scored.value is None else scored


_ONE_LETTER = re.compile(r"[(\[]?[A-Za-z][)\].]?")
_PAPERS_PACKAGE = "llm_in_sandbox"
_WORD = re.compile(r"[^\W\d_]{2,}")


def _is_list(gold: str) -> bool:
    """Return True for a gold answer that is a list such as "A, C", but not for "12,345", a date or a sentence."""
    items = re.split(r"[,;]\s*", gold.strip())
    return (
        len(items) > 1
        and all(0 < len(item.split()) <= 4 for item in items)
        and not is_one_value(gold)
        and gold.strip()[-1:] not in ".!?"
    )


def _free(answer: str, gold: str) -> Score:
    """Score 1 if the answers are equal, and by ROUGE-L otherwise.

    Only equality counts if the gold answer has no words, or has at most three words and a digit or final sign. Without
    this rule, similar but wrong answers would score: 10.0.0.9 for 10.0.0.7, or O- for O+.
    """
    equal = math_equal(answer, gold)
    words = len(_WORD.findall(gold))
    marked = re.search(r"\d", gold) or text_key(gold).endswith(("+", "-", "#"))
    if equal.value == 1.0 or (equal.value is not None and (not words or (marked and words <= 3))):
        return equal
    return rouge_l(answer, gold)


RULES: dict[str, RowRule] = {
    "exact": lambda answer, gold, row: exact(answer, gold),
    "letter": lambda answer, gold, row: letter(answer, gold, _options(row)),
    "math": lambda answer, gold, row: math_equal(answer, gold),
    "set_f1": lambda answer, gold, row: set_f1(answer, gold),
    "rouge_l": lambda answer, gold, row: rouge_l(answer, gold),
    "ifbench": ifbench,
    "routed": routed,
}
BY_MODEL = ("judge",)
"""Names of scorers that ask a model."""
IN_SANDBOX = ("swe",)
"""Names of scorers that execute commands in a sandbox."""
SCORERS = (*RULES, *BY_MODEL, *IN_SANDBOX)


def _options(row: Mapping[str, Any]) -> int:
    options = row.get("options")
    return len(options) if isinstance(options, list | dict) and options else 10


def score_row(scorer: str, answer: str | None, gold: str, row: Mapping[str, Any]) -> Score:
    """Score one answer. `scorer` is a name of `RULES`, or the path of a Python file with `score(answer, gold, **row)`.

    The function in the file returns a number from 0 to 1, None, or a `Score`. A function with a parameter
    `output_files` receives the names and paths of the files in the run's output folder. Such a function also scores
    runs without an answer.
    """
    function = None if scorer in RULES else load_scorer(Path(scorer))
    parameters = list(inspect.signature(function).parameters) if function is not None else []
    by_files = "output_files" in parameters
    if not by_files and (answer is None or not answer.strip()):
        return NO_ANSWER
    answer = answer or ""
    if function is None and not gold.strip() and scorer not in ("ifbench", "routed"):
        return NO_GOLD
    if function is None:
        return RULES[scorer](answer, gold, row)
    # The first two parameters are already given, even if the data has columns with the same names.
    returned = function(answer, gold, **{name: row[name] for name in row if name not in parameters[:2]})
    score = returned if isinstance(returned, Score) else Score(returned)
    if score.value is None:
        return score
    value = float(score.value)
    if not 0 <= value <= 1:
        raise ValueError(f"it returned {value}, which is not between 0 and 1")
    return replace(score, value=value)


def gold_problem(scorer: str, row: Row) -> str:
    """Return why a scorer cannot score a row, or an empty text if it can. A task's own scorer can score any row."""
    if scorer == "ifbench" or (scorer == "routed" and row_domain(vars(row)) == "instruct_follow"):
        identities, _ = constraints_of(row.ground_truth, row.extra)
        return "" if identities else "has no instruction_id_list with kwargs, one for each constraint"
    if scorer in (*RULES, *BY_MODEL) and not row.ground_truth.strip():
        return "has no ground_truth, so no answer can be scored"
    return ""


class ScorerError(LLMSandboxError, ValueError):
    """Error for a Python file of a task that cannot be used. The message is one sentence with the remedy."""


def load_scorer(path: Path) -> Callable[..., Any]:
    """Return the function `score` of a Python file, or the function `compute_score`, as in the paper's package.

    Raises:
        ScorerError: if the file has neither function, or needs a package that is not installed.
    """
    found = _function(path, "score", "compute_score")
    if found is None:
        raise ScorerError(f"{path} has no function `score(answer, gold, **row)`: write one.")
    return found


def load_asker(path: Path) -> Callable[[Mapping[str, Any]], str]:
    """Return the function `create_prompt` of a task's Python file.

    If the file does not define the function, return a function that returns the problem.
    """
    return _function(path, "create_prompt") or (lambda row: str(row["problem_statement"]))


def _function(path: Path, *names: str) -> Callable[..., Any] | None:
    """Return the first function in `names` that a task's Python file defines."""
    spec = importlib.util.spec_from_file_location(f"{path.stem}_{abs(hash(path))}", path)
    if spec is None or spec.loader is None:
        raise ScorerError(f"{path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    # The usual loader would use an outdated compiled file if the source changed within a second and kept its size.
    code = compile(path.read_bytes(), path, "exec")
    try:
        exec(code, vars(module))
    except ModuleNotFoundError as error:
        if error.name != _PAPERS_PACKAGE:
            raise
        raise ScorerError(
            f"{path.name} imports {_PAPERS_PACKAGE}: install llm-in-sandbox==0.2.0 next to this package, or run the "
            f"task {path.parent.name} of this package"
        ) from error
    found = (getattr(module, name, None) for name in names)
    return next((function for function in found if callable(function)), None)
