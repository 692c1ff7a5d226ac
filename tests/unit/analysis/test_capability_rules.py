"""The published rules of capability use against turns that were labelled by hand."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import labelled
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from labelled import EXAMPLES, Labelled, load
from support import examples

from llm_sandbox_nb.analysis.behaviour import behaviour_of
from llm_sandbox_nb.analysis.capability_rules import (
    CAPABILITIES,
    RULES_VERSION,
    call_uses,
    without_texts,
)
from llm_sandbox_nb.shell_parser import shell_commands

ALL = load()
DOCUMENT = Path(__file__).parents[3] / "docs" / "explanation" / "capability-use.md"
Rule = Callable[[Labelled], frozenset[str]]


def by_rules(turn: Labelled) -> frozenset[str]:
    return call_uses(turn.tool, turn.arguments)


SUBSTRINGS = {
    "external": ("pip install", "apt install", "apt-get install", "requests.get", "curl", "wget", "BeautifulSoup",
                 "rdkit", "biopython"),
    "files": ("open(", "json.load", "pd.read_csv", "cat", "grep", "find", "os.path", "pathlib", "glob",
              "pickle.load", "np.load"),
    "computation": ("scipy.optimize", "fsolve", "minimize", "odeint", "solve_ivp", "quad", "in range(", "while ",
                    "permutations", "combinations"),
}  # fmt: skip
"""The substrings of the paper's table 15."""


def by_substrings(turn: Labelled) -> frozenset[str]:
    texts = (turn.arguments.get(name, "") for name in ("command", "file_text", "new_str"))
    text = "\n".join(texts)
    return frozenset(name for name, parts in SUBSTRINGS.items() if any(part in text for part in parts))


def precision_and_recall(turns: Iterable[Labelled], capability: str, rule: Rule) -> tuple[float, float]:
    pairs = [(capability in turn.uses, capability in rule(turn)) for turn in turns]
    hits = pairs.count((True, True))
    return hits / (hits + pairs.count((False, True))), hits / (hits + pairs.count((True, False)))


LABELLED = [turn for name, turns in ALL.items() if name != "held_out" for turn in turns]


def test_there_are_two_hundred_labelled_turns_of_each_kind() -> None:
    assert len(LABELLED) >= 200
    assert len(EXAMPLES) == 10
    for capability in CAPABILITIES:
        assert sum(capability in turn.uses for turn in LABELLED) >= 30
    assert sum(not turn.uses for turn in LABELLED) >= 50


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_precision_and_recall_are_at_least_nine_tenths(capability: str) -> None:
    precision, recall = precision_and_recall(LABELLED, capability, by_rules)
    assert precision >= 0.9
    assert recall >= 0.9
    poor = precision_and_recall(LABELLED, capability, by_substrings)
    assert poor[0] < precision
    assert poor[1] < recall


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_the_rules_hold_on_turns_they_were_not_made_with(capability: str) -> None:
    precision, recall = precision_and_recall(ALL["held_out"], capability, by_rules)
    assert precision >= 0.9
    assert recall >= 0.8


def table() -> str:
    """The table of the docs: `python -c 'import test_capability_rules as t; print(t.table())'`."""
    rows = ["| capability | labelled | held out | substrings |", "|---|---|---|---|"]
    for capability in CAPABILITIES:
        cells = [
            precision_and_recall(turns, capability, rule)
            for turns, rule in ((LABELLED, by_rules), (ALL["held_out"], by_rules), (LABELLED, by_substrings))
        ]
        shown = " | ".join(f"{precision:.2f} / {recall:.2f}" for precision, recall in cells)
        rows.append(f"| {capability} | {shown} |")
    return "\n".join(rows)


def test_the_docs_tell_what_is_measured() -> None:
    text = DOCUMENT.read_text("utf-8")
    assert table() in text
    assert f"version {RULES_VERSION}" in text
    assert f"{len(LABELLED)} turns" in text
    assert f"{len(ALL['held_out'])} more" in text


def test_the_ranking_of_the_paper_holds_on_the_ten_examples() -> None:
    rates = {
        name: {capability: behaviour.rate(capability) for capability in CAPABILITIES}
        for name in EXAMPLES
        for behaviour in [behaviour_of(labelled.trajectory(ALL[name]))]
    }
    assert max(rates, key=lambda name: rates[name]["computation"]) == "math"
    assert max(rates, key=lambda name: rates[name]["external"]) == "chem"
    assert max(rates, key=lambda name: rates[name]["files"]) == "long_context"
    assert max(rates["math"], key=rates["math"].__getitem__) == "computation"
    assert rates["long_context"]["files"] > 0.5
    assert rates["long_context"]["external"] == 0


@pytest.mark.parametrize(
    ("command", "external"),
    [
        ("curl http://localhost:8000 https://example.org", True),
        ("curl https://example.org http://[::1]:8000", True),
        ("curl -o page.html http://localhost:8000 ftp://127.0.0.1/a", False),
        ("""python -c 'import requests; requests.post("https://example.org", "http://localhost")'""", True),
        ("""python -c 'import requests; requests.get("http://localhost" + path)'""", False),
    ],
)
def test_an_address_of_this_machine_does_not_hide_another_one(command: str, external: bool) -> None:
    assert ("external" in call_uses("execute_bash", {"command": command})) is external


def test_attempted_and_succeeded_are_told_apart() -> None:
    behaviour = behaviour_of(labelled.trajectory(ALL["physics"]))
    failed = next(turn for turn in behaviour.turns if turn.attempted and not turn.succeeded)
    assert "external" in failed.attempted
    assert behaviour.rate("external") > behaviour.rate("external", only_succeeded=True) == 0


def test_a_turn_of_the_first_label_is_found_when_it_is_spoiled() -> None:
    """The measurement can fail: a rule that finds nothing, or everything, does not pass."""
    for rule in (lambda turn: frozenset(), lambda turn: frozenset(CAPABILITIES)):
        hits = [(turn.uses == rule(turn)) for turn in LABELLED]
        assert sum(hits) < 0.5 * len(hits)


def words(text: str) -> list[list[str]]:
    return [command.words for command in shell_commands(text) if command.words]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a b 'c d' \"e f\" g\\ h", [["a", "b", "c d", "e f", "g h"]]),
        ("a | b && c; d || e & f", [["a"], ["b"], ["c"], ["d"], ["e"], ["f"]]),
        ("a # b\nc", [["a"], ["c"]]),
        ("a#b c", [["a#b", "c"]]),
        ("if a; then b; fi", [["a"], ["b"]]),
        ("for x in $(b c); do d $x; done", [["d", "$x"], ["b", "c"]]),
        ("X=1 Y=2 a b", [["a", "b"]]),
        ("a 2>&1 >out.txt <in.txt", [["a"]]),
        ("cat <<A <<-B; x\n1\nA\n\t2\n\tB\ny", [["cat"], ["x"], ["y"]]),
        ("a \\\n b", [["a", "b"]]),
        ('good\nbad "open', [["good"]]),
        ("(a; b) && { c; }", [["a"], ["b"], ["c"]]),
        ('a "x $(b "y z") w"', [["a", 'x $(b "y z") w'], ["b", "y z"]]),
    ],
)
def test_shell_code_is_taken_apart(text: str, expected: list[list[str]]) -> None:
    assert words(text) == expected


def test_here_documents_belong_to_their_command() -> None:
    first, second = (
        shell_commands("cat <<'A' | sort\none\nA\nwc <<< two\n")[0],
        shell_commands("wc <<< 'a b'")[0],
    )
    assert first.here == "one\n"
    assert second.here == "a b"


@given(st.text(alphabet="ab \t\n'\"\\$`()<>|&;#{}=-<", max_size=60), st.text(max_size=80))
def test_no_command_and_no_program_breaks_the_rules(command: str, program: str) -> None:
    file = {"command": "create", "path": "a.py", "file_text": program}
    for tool, arguments in (("execute_bash", {"command": command}), ("str_replace_editor", file)):
        assert call_uses(tool, arguments) <= set(CAPABILITIES)


@pytest.mark.parametrize(
    "arguments",
    [None, {}, {"command": 3}, {"command": None}, {"command": ["ls"]}, {"path": 1, "file_text": {}}],
)
def test_arguments_of_any_kind_are_taken(arguments: object) -> None:
    for tool in ("execute_bash", "str_replace_editor", "nonsense", ""):
        assert call_uses(tool, arguments) == frozenset()  # type: ignore[arg-type]


def test_deep_nesting_ends() -> None:
    deep = "echo " + "$(echo " * 400 + "x" + ")" * 400
    assert call_uses("execute_bash", {"command": deep}) == frozenset()
    program = "x = " + "(" * 5000 + "1" + ")" * 5000
    assert (
        call_uses("str_replace_editor", {"command": "create", "path": "a.py", "file_text": program})
        == frozenset()
    )


def test_a_long_text_takes_no_quadratic_time() -> None:
    text = "x " * 200_000 + "\n" + "echo `` '' $( \n" * 1000
    call_uses("execute_bash", {"command": text})
    assert re.match("x", text)


SUM = "+".join(str(n) for n in range(400))


@pytest.mark.parametrize(
    ("program", "uses"),
    [
        (f"print({SUM})", {"computation"}),
        (f"x = {SUM}\nopen('a')", {"computation", "files"}),
        ("print('a'" + " + f(x)" * 900 + ")", set()),
        ("print(f(x)" + " + g(x)" * 900 + " + 'a')", {"computation"}),
        ("print(" + "-" * 900 + "1)", set()),
        ("x" + "[0]" * 900 + "; 2 * 3", {"computation"}),
        ("x" + ".b()" * 900, set()),
        ("1 if 1 else " * 900 + "2 * 3", {"computation"}),
    ],
)
def test_a_deep_program_is_read_too(program: str, uses: set[str]) -> None:
    path = {"command": "create", "path": "a.py", "file_text": program}
    assert call_uses("str_replace_editor", path) == uses


@pytest.mark.parametrize(
    "program",
    ["1+" * 100_000 + "1", "-" * 100_000 + "1", "lambda:" * 50_000 + "1", "(" * 100_000, "\0", "\ud800"],
)
def test_a_program_too_deep_to_read_uses_nothing_and_ends_nothing(program: str) -> None:
    call = {"command": "create", "path": "a.py", "file_text": f"{program}\nopen('a')"}
    assert call_uses("str_replace_editor", call) in (set(), {"files"})
    call_uses("execute_bash", {"command": f"python3 -c '{program}'"})


@pytest.mark.parametrize(
    "text",
    [
        "/* " * 70_000,
        "/*/" * 60_000,
        '"' + '\\"' * 100_000,
        "'" + "\\'" * 100_000 + "\n'",
        ("\"'" + "\\'" * 10) * 9_000,
        "a" + " " * 200_000 + "b",
        "a *" + " " * 200_000,
        "//" * 100_000,
    ],
)
def test_any_text_in_the_manner_of_c_is_read_in_no_time(text: str) -> None:
    started = time.process_time()
    call_uses("str_replace_editor", {"command": "create", "path": "a.js", "file_text": text})
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    "command",
    [
        "grep -" + "r" * 200_000 + "! x",
        "awk '{ print a" + " " * 200_000 + "}' x",
        "awk '" + '"/' * 100_000 + "' x",
        "curl " + "@" * 200_000,
        "rsync " + "a" * 200_000,
        "x" + " " * 200_000,
        "x=" * 100_000,
        "$(" * 100_000,
        "python3 -c '" + " " * 200_000 + "x'",
        "python3 -c '" + "x = 1\n" * 5_000 + "'",
    ],
)
def test_any_command_is_read_in_no_time(command: str) -> None:
    started = time.process_time()
    call_uses("execute_bash", {"command": command})
    assert time.process_time() - started < 5


AS_BEFORE = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.DOTALL)
"""The same in one pattern, which takes long on texts that are not closed."""


@settings(max_examples=examples(1000))
@given(st.text(alphabet="/*\"'\\\na ", max_size=40))
def test_strings_and_comments_are_those_of_the_pattern(text: str) -> None:
    assert without_texts(text) == AS_BEFORE.sub(" ", text)
