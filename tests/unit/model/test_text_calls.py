"""Calls written as text: those of 25 families are read, those that are only shown are not, and no text takes long."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from canitoolcall.checks import canonical_arguments
from canitoolcall.fixtures import Fixture, load_fixtures
from hypothesis import given
from hypothesis import strategies as st

from llm_sandbox_nb.agent.tools.toolbox import TOOLS
from llm_sandbox_nb.model.text_calls import TextReply, read_text_calls
from llm_sandbox_nb.model.text_formats import FORMATS
from llm_sandbox_nb.model.text_places import MAX_MARK_LENGTH

DATA = Path(__file__).parents[2] / "data"
SHOWN = yaml.safe_load((DATA / "shown_calls.yaml").read_text("utf-8"))
REAL = [json.loads(line) for line in (DATA / "qwen_replies.jsonl").read_text("utf-8").splitlines()]


def tool(name: str, **properties: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()}}
    return {
        "type": "function",
        "function": {"name": name, "parameters": {**schema, "required": list(properties)[:1]}},
    }


LS = [tool("ls", d="string"), tool("execute_bash", command="string", timeout="number")]
UNMARKED = (
    '{"name": "ls", "arguments": {"d": "."}}',
    '{"name": "ls", "parameters": {"d": "."}}',
    '[{"name": "ls", "arguments": {"d": "."}}]',
    "{'name': 'ls', 'arguments': {'d': '.'}}",
    '{"type": "function", "function": {"name": "ls", "arguments": "{\\"d\\": \\".\\"}"}}',
    '```json\n{"name": "ls", "arguments": {"d": "."}}\n```',
    '```tool_code\nls(d=".")\n```',
    "[ls(d='.')]",
)
CHANNELS = (
    '<|channel|>commentary to=functions.ls <|constrain|>json<|message|>{"d":"."}<|call|>',
    'analysisI look.assistantcommentary to=functions.ls json{"d":"."}',
    '<|open|>tools<|sep|><|open|>call tool="ls" index="1"<|sep|><|open|>argument key="d" type="string"<|sep|>.'
    "<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
)
EXAMPLES = [*(form.example for form in FORMATS), *UNMARKED, *CHANNELS]


def calls(reply: TextReply) -> list[tuple[str, dict[str, Any]]]:
    return [(call.name, call.arguments) for call in reply.calls]


@pytest.mark.parametrize("text", EXAMPLES)
def test_the_example_of_each_form_is_read_and_the_text_before_it_stays(text: str) -> None:
    assert calls(read_text_calls(text, LS)) == [("ls", {"d": "."})]
    assert read_text_calls(text, [tool("other")]).calls == ()
    if text not in CHANNELS and not text.startswith("[ls"):
        reply = read_text_calls(f"I will look.\n\n{text}\n", LS)
        assert (calls(reply), reply.text) == ([("ls", {"d": "."})], "I will look.")


def test_marks_are_short_enough_to_be_held_back_in_a_stream() -> None:
    assert max(len(mark) for form in FORMATS for mark in form.begins) <= MAX_MARK_LENGTH


def test_a_cut_off_call_of_kimi_k3_is_no_call() -> None:
    """The mark of a call's end is also in the argument of the first call."""
    head = '<|open|>tools<|sep|><|open|>call tool="ls" index="1"<|sep|><|open|>argument key="d" type="string"<|sep|>'
    first = f"{head}<|close|>call<|sep|><|close|>argument<|sep|><|close|>call<|sep|>"
    second = head.removeprefix("<|open|>tools<|sep|>")
    assert calls(read_text_calls(f"{first}{second}x", LS)) == []
    cut = read_text_calls(f"{first}{second}x<|close|>argument<|sep|>", LS)
    assert calls(cut) == [("ls", {"d": "<|close|>call<|sep|>"})]


# --- the outputs of nine families that canitoolcall has collected, each with its right parse ---

LEAST = 458
"""The right ones. The other eleven are refused on purpose: text follows the call, or half a sentence is before it."""
PAGE = Path(__file__).parents[3] / "docs" / "reference" / "model-servers.md"


def fixtures() -> list[Fixture]:
    return load_fixtures()


def right(fixture: Fixture) -> tuple[bool, bool]:
    """Whether the calls are right, and whether text and reasoning are right too."""
    reply = read_text_calls(fixture.raw_output, [dict(tool) for tool in fixture.tools])
    expected = fixture.expected
    wanted = expected.tool_calls if expected else ()
    same = [(name, canonical_arguments(json.dumps(arguments))) for name, arguments in calls(reply)] == [
        (call.name, canonical_arguments(json.dumps(call.arguments))) for call in wanted
    ]
    said = (reply.text.strip(), reply.reasoning.strip())
    meant = (
        ((expected.content or "").strip(), (expected.reasoning_content or "").strip()) if expected else said
    )
    return same, same and said == meant


def test_the_outputs_of_nine_families_are_read_without_their_family() -> None:
    """The page of model servers has the same figures."""
    found: dict[str, list[int]] = {}
    for fixture in fixtures():
        counts = found.setdefault(fixture.family, [0, 0, 0])
        for at, one in enumerate((True, *right(fixture))):
            counts[at] += one
    found["all"] = [sum(column) for column in zip(*found.values(), strict=True)]
    assert found["all"][0] == 469
    assert found["all"][1] >= LEAST
    rows = re.findall(r"^\| ([\w-]+) \| (\d+) \| (\d+) \| (\d+) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert {name: [int(one) for one in counts] for name, *counts in rows} == found


# --- what is only shown ---


@pytest.mark.parametrize("bash_blocks", [False, True])
def test_what_is_only_shown_is_not_called(bash_blocks: bool) -> None:
    assert len(SHOWN) >= 60
    assert [text for text in SHOWN if read_text_calls(text, LS, bash_blocks).calls] == []


WRAPPED = {
    "a fence": "Here:\n```text\n{}\n```",
    "tildes": "~~~\n{}\n~~~",
    "an open fence": "Here:\n```text\n{}",
    "inline code": "Write `` {} ``",
    "a comment": "<!-- {} -->",
    "a result": "<tool_response>\n{}\n</tool_response>",
    "an open result": "<tool_response>\n{}",
    "the middle of a line": "To list files I write {}",
    "a sentence after it": "{}\nThis lists the files.",
    "a thought": "<think>I could send {}</think>Done.",
    "a thought alone": "<think>\n{}\n</think>",
    "an example": "For example:\n{}",
    "a description": "A call looks like this:\n{}",
    "a warning": "Never send:\n{}",
    "a file": '<file name="a">\n{}\n</file>',
    "quotation marks": 'The log said "{}"',
}


@pytest.mark.parametrize("wrapped", WRAPPED)
def test_no_form_is_called_where_it_is_only_shown(wrapped: str) -> None:
    for form in EXAMPLES:
        if not form.startswith("```"):
            text = WRAPPED[wrapped].replace("{}", form)
            assert read_text_calls(text, LS, bash_blocks=True).calls == (), text


CALL = '<tool_call>{"name": "execute_bash", "arguments": {"command": "ls"}}</tool_call>'
SAID_BEFORE = (
    "Zum Beispiel:", "So sieht ein Aufruf aus:", "Schreibe niemals:", "Die Datei enthält:",
    "Soll ich das ausführen?", "Par exemple :", "N'exécutez jamais ceci :", "Por ejemplo:", "Por exemplo:",
    "Per esempio:", "Un esempio:", "Bijvoorbeeld:", "Na przykład:", "Örneğin:", "Contohnya:", "Ví dụ:",
    "Например:", "Никогда не пиши:", "Наприклад:", "例如：", "调用的格式如下：", "示例：", "千万别这样写：",
    "たとえば:", "예를 들어:", "مثال:", "उदाहरण:", "The user could run this:", "I would run this:",
    "In the log I found:", "The file has this line:", "It reads:", "Output:", "[stdout]", "Expected output:",
    "Observation:", "$ cat a.txt", "Exit code: 0", "Please run this on your machine:",
    "Earlier the assistant sent", "If the user asks, send:", "Vous pouvez exécuter :", "Führen Sie bitte aus:",
    "你可以运行：", "Запустите:", "Você pode executar:", "If you agree, I run:", "Shall I run this?",
    "The tool schema is:", "Here is the command that the log contains:", "Here is the script that was found:",
    "Here is the command that contains it. The log says:", "Here is an example program that counts them:",
    "Here is a program to show what the file contains. The file contains:",
)  # fmt: skip
MEANT_BEFORE = (
    "Ich schaue nach.", "Ich liste die Dateien auf:", "Je regarde les fichiers :", "Voy a ver los archivos:",
    "Vou ver os arquivos:", "Посмотрю, какие здесь файлы:", "Примерно так, смотрю дальше.", "我将列出文件：",
    "检查文件是否存在：", "现在把数据保存为JSON格式。", "ファイルを見ます：", "파일을 확인합니다.",
    "Let me confirm that the file exists.", "For example, I could list them. I list the files now.",
    "I found the bug, so I mend it:", "## Action",
    'Here is a Python program that computes the number of lines of a.log that contain the word "ERROR":',
    "Sure, here is a Python program that computes the number of plants Shondra has:",
    "Here's the code to count what each row says:",
)  # fmt: skip


@pytest.mark.parametrize("form", ["{}\n{}", "{}\n\n```json\n{}\n```", "I look at it.\n\n{}\n\n{}"])
def test_words_of_other_languages_and_lists_announce_an_example_too(form: str) -> None:
    call = CALL.removeprefix("<tool_call>").removesuffix("</tool_call>") if "`" in form else CALL
    for said in SAID_BEFORE:
        written = form.replace("{}", said, 1).replace("{}", call)
        assert read_text_calls(written, LS).calls == (), written


@pytest.mark.parametrize("mark", ["1. ", "- ", "2) ", "* ", "| ", "# "])
def test_a_call_in_a_list_a_table_or_a_heading_is_shown(mark: str) -> None:
    assert read_text_calls(f"What there is:\n{mark}{CALL}", LS).calls == ()


def test_what_a_model_says_before_it_acts_announces_no_example() -> None:
    for said in MEANT_BEFORE:
        assert calls(read_text_calls(f"{said}\n{CALL}", LS)) == [("execute_bash", {"command": "ls"})], said


ONE_BAD = {
    "another name": CALL.replace("execute_bash", "rm"),
    "not whole": '<tool_call>{"name": "execute_bash", "arguments": {"command": </tool_call>',
    "without its argument": CALL.replace('"command": "ls"', ""),
    "an argument of another type": CALL.replace('"ls"', "{}"),
    "without a name": '<tool_call>{"arguments": {"command": "ls"}}</tool_call>',
    "XML that is not whole": "<tool_call>\n<function=execute_bash>\n<parameter=command>\nls\n</tool_call>",
}


@pytest.mark.parametrize("bad", ONE_BAD)
@pytest.mark.parametrize("first", [True, False])
def test_of_several_calls_of_which_one_is_bad_none_is_made(bad: str, first: bool) -> None:
    both = [ONE_BAD[bad], CALL] if first else [CALL, ONE_BAD[bad]]
    reply = read_text_calls("\n".join(both), LS)
    assert reply.calls == ()
    assert reply.refused


def test_an_example_between_two_calls_is_none_of_them() -> None:
    assert read_text_calls(f"{CALL}\nFor example:\n{CALL}", LS).calls == ()
    assert len(read_text_calls(f"{CALL}\nThen I look again.\n{CALL}", LS).calls) == 2


def test_a_model_that_plays_both_sides_makes_no_call() -> None:
    for turn in ("<|im_start|>user\nlist<|im_end|>\n<|im_start|>assistant\n", "<start_of_turn>user\nlist\n"):
        assert read_text_calls(f"{turn}{CALL}", LS).calls == ()


@pytest.mark.parametrize("block", ["$ ls", "$ ls\na.txt"])
def test_a_block_that_shows_a_session_is_not_run(block: str) -> None:
    reply = read_text_calls(f"```bash\n{block}\n```", LS, bash_blocks=True)
    assert reply.calls == ()
    assert "write the commands alone" in reply.refused


def test_a_call_whose_end_is_missing_is_not_made_but_a_mark_that_is_only_named_hides_none() -> None:
    assert read_text_calls(CALL.removesuffix("</tool_call>").replace(">{", ">\n{"), LS).calls == ()
    assert len(read_text_calls(f"I write a <tool_call> now.\n{CALL}", LS).calls) == 1


@pytest.mark.parametrize("bash_blocks", [True, False])
def test_a_call_in_a_block_of_shell_commands_is_no_command(bash_blocks: bool) -> None:
    assert read_text_calls(f"```bash\n{CALL}\n```", LS, bash_blocks).calls == ()


@pytest.mark.parametrize("arguments", ["null", '""', "[]", "{}"])
def test_no_arguments_are_written_in_several_ways(arguments: str) -> None:
    ends = f'<tool_call>{{"name": "submit", "arguments": {arguments}}}</tool_call>'
    assert calls(read_text_calls(ends, [tool("submit")])) == [("submit", {})]


@pytest.mark.parametrize(
    "text",
    [
        CALL.replace("execute_bash", "functions.execute_bash"),
        f"\ufeff{CALL}",
        '{"tool": "execute_bash", "arguments": {"command": "ls"}}',
        '{"function": "execute_bash", "parameters": {"command": "ls"}}',
    ],
)
def test_other_ways_to_write_a_name(text: str) -> None:
    assert calls(read_text_calls(text, LS)) == [("execute_bash", {"command": "ls"})]
    assert read_text_calls(text.replace("execute_bash", "Execute_Bash"), LS).calls == ()


def test_why_a_call_does_not_count_is_said() -> None:
    said = {
        '<tool_call>{"name": "rm", "arguments": {}}</tool_call>': 'there is no tool "rm"',
        '<tool_call>{"name": "ls", "arguments": {}}</tool_call>': "ls needs d",
        '<tool_call>{"name": "ls", "arguments": {"d": 1}}</tool_call>': "d of ls must be string",
        '<tool_call>{"name": "ls", "arguments": {"d": "."}}</tool_call> lists': "text follows the call",
        '<tool_call>{"name": "ls", "argum': "the call is not whole",
        "For example:\n[TOOL_CALLS]ls[ARGS]{}": "the words before it announce an example",
        "I say <tool_call>{}</tool_call>": "the call is not whole",
    }
    assert {text: read_text_calls(text, LS).refused for text in said} == said


# --- a real small model: what is a call in each of 97 replies, told by hand ---

NATIVE = {
    0: "str_replace_editor",
    2: "execute_bash",
    3: "submit",
    5: "submit",
    13: "execute_bash",
    14: "str_replace_editor",
}
"""Of the first 23, which answer our own messages; the others explain, are cut, or say nothing."""
NOT_ONE_BLOCK = {
    23, 24, 27, 29, 30, 31, 32, 33, 34, 35, 52, 53, 54, 55, 56, 57, 58, 61, 75,
}  # fmt: skip
"""Of the others, which were to be one ```bash block: a number or word, Python, several blocks."""


def test_the_calls_of_a_real_small_model_are_those_that_a_person_saw() -> None:
    found: dict[int, list[str]] = {}
    for number, row in enumerate(REAL[:97]):
        reply = read_text_calls(row["reply"], TOOLS.schemas(), bash_blocks="bash" in row["form"])
        found[number] = [call.name for call in reply.calls]
        if number >= 23:
            assert all(call.arguments["command"] in row["reply"] for call in reply.calls), number
    native = {number: [NATIVE[number]] if number in NATIVE else [] for number in range(23)}
    blocks = {number: [] if number in NOT_ONE_BLOCK else ["execute_bash"] for number in range(23, 97)}
    assert found == {**native, **blocks}


def test_blocks_count_only_where_they_are_asked_for() -> None:
    text = "I count.\n\n```bash\nls | wc -l\n```"
    assert read_text_calls(text, LS).calls == ()
    reply = read_text_calls(text, LS, bash_blocks=True)
    assert calls(reply) == [("execute_bash", {"command": "ls | wc -l"})]
    assert reply.text == "I count."


# --- any text ---


def mutated() -> st.SearchStrategy[str]:
    raw = [fixture.raw_output for fixture in fixtures()] + [row["reply"] for row in REAL] + list(SHOWN)
    pieces = st.sampled_from(
        ["<tool_call>", "```", "`", "{", "}", '"', "\\", "<think>", "</think>", "\n", "[", "<|message|>"]
    )

    def change(text: str, cut: int, begin: int, piece: str, other: str) -> str:
        cut, begin = cut % (len(text) + 1), begin % (len(text) + 1)
        return text[:cut] + piece + text[begin:] + other[: cut % 50]

    return st.builds(
        change,
        st.sampled_from(raw),
        st.integers(0, 10**6),
        st.integers(0, 10**6),
        pieces,
        st.sampled_from(raw),
    )


TOOLS_OF_ALL = list(
    {tool["function"]["name"]: dict(tool) for row in fixtures() for tool in row.tools}.values()
)


@given(mutated())
@pytest.mark.parametrize("bash_blocks", [False, True])
def test_any_text_gives_calls_of_offered_tools_or_none(bash_blocks: bool, text: str) -> None:
    reply = read_text_calls(text, TOOLS_OF_ALL, bash_blocks)
    offered = {tool["function"]["name"] for tool in TOOLS_OF_ALL}
    assert {call.name for call in reply.calls} <= offered
    assert not (reply.calls and reply.refused)
    json.dumps([call.arguments for call in reply.calls])


@pytest.mark.campaign
def test_a_hundred_thousand_changed_replies() -> None:
    import random

    rng, raw = random.Random(23), [fixture.raw_output for fixture in fixtures()]
    offered = {tool["function"]["name"] for tool in TOOLS_OF_ALL}
    for _ in range(100_000):
        text = list(rng.choice(raw))
        for _ in range(rng.randrange(1, 6)):
            at = rng.randrange(len(text) + 1)
            text[at : at + rng.randrange(8)] = rng.choice(raw)[: rng.randrange(30)]
        reply = read_text_calls("".join(text), TOOLS_OF_ALL, rng.random() < 0.5)
        assert {call.name for call in reply.calls} <= offered


BLANKS = {
    "after a name without marks": ("to=functions.ls", "x"),
    "after a thought without marks": ("analysis assistant", "to=functions.9"),
    "in a parameter": ("<tool_call><function=ls><parameter=", "x"),
    "after a fence": ("```", "`"),
    "after an end": ('<tool_call>{"name": "ls", "arguments": {"d": "."}}</tool_call>', "x"),
    "before a bracket": ("ls", "}"),
}


@pytest.mark.parametrize("place", BLANKS)
def test_white_space_between_marks_takes_no_longer(place: str) -> None:
    """Two patterns in a row that both match blanks take years for a million of them."""
    before, after = BLANKS[place]
    assert cpu(before + " " * 400_000 + after) < 30 * cpu(before + " " * 50_000 + after) + 0.05


def test_a_reply_of_very_many_calls_is_one_that_repeats_itself() -> None:
    call = '<tool_call>{"name": "ls", "arguments": {"d": "."}}</tool_call>\n'
    assert len(read_text_calls(call * 255, LS).calls) == 255
    for text in (
        call * 256,
        call * 9000,
        "[" + "ls(d='.')," * 300 + "]",
        '{"name": "ls", "arguments": {"d": "."}}\n' * 300,
    ):
        reply = read_text_calls(text, LS)
        assert (reply.calls, reply.refused) == ((), "it has 256 calls or more")


@pytest.mark.parametrize(
    "about", [{"anyOf": None, "enum": None, "type": None}, {"type": 5, "oneOf": 5}, {"enum": {}}, True]
)
def test_odd_schemas_of_arguments_allow_any_value(about: object) -> None:
    tool = {"type": "function", "function": {"name": "ls", "parameters": {"properties": {"d": about}}}}
    for call in (
        '{"name": "ls", "arguments": {"d": "."}}',
        "<function=ls><parameter=d>.</parameter></function>",
    ):
        assert calls(read_text_calls(f"<tool_call>{call}</tool_call>", [tool])) == [("ls", {"d": "."})]


BLOCKS = {
    "1. I write:\n   ```bash\n   cat > a <<E\n   if x:\n       y\n   E\n   ```": "cat > a <<E\nif x:\n    y\nE",
    "   ```bash\nls\n  pwd\n    id\n   ```": "ls\npwd\n id",
    "```bash\n  ls\n```": "  ls",
    "```bash\nls\n```<|im_end|>": "ls",
    "```bash\nls\n```</s>\n": "ls",
    "```bash\ncat <<E\n```</s>\nE\n```<|eot_id|>": "cat <<E\n```</s>\nE",
}


@pytest.mark.parametrize("text", BLOCKS)
def test_a_block_is_read_without_its_indent_and_before_the_end_of_a_reply(text: str) -> None:
    [call] = read_text_calls(text, TOOLS.schemas(), bash_blocks=True).calls
    assert call.arguments == {"command": BLOCKS[text]}


@pytest.mark.parametrize("form", ["[{}(d='.')]", "```tool_code\n{}(d='.')\n```"])
def test_a_name_of_very_many_parts_is_no_call(form: str) -> None:
    text = form.format(".".join(["ls"] * 900))
    assert (read_text_calls(text, LS).text, read_text_calls(text, LS).calls) == (text, ())


def test_backticks_of_another_paragraph_hide_no_call() -> None:
    call = '<tool_call>{"name": "ls", "arguments": {"d": "."}}</tool_call>'
    stray = "It`s there. I look.\n\nI open `a.txt`.\n\n"
    assert calls(read_text_calls(stray + call, LS)) == [("ls", {"d": "."})]
    assert calls(read_text_calls(f"{call}\n{call.replace('.', 'a`b')}\n{call}", LS))[1:] == [
        ("ls", {"d": "a`b"}), ("ls", {"d": "."}),
    ]  # fmt: skip
    assert read_text_calls(f"The mark `x {call} y` is one.", LS).calls == ()


LONG = (
    "<tool_call>", "`", "` `` ", "{", "[", '"', '\\"', '{"', '<tool_call>{"a": "', "\n```\n", " ", "\n{", "[f(",
    "<parameter=a>\n", '{"name":"ls","arguments":{"d":"."}}\n', "<|start|> ", "<think></think>", "<", "<file ",
    "<tool_call>ls<arg_key>d</arg_key><arg_value>", "<|channel|>", "[TOOL_CALLS]{", "<tool_call>{'a': ", "\n[",
    "<tool_call><function=ls><parameter=d>",
)  # fmt: skip


def cpu(text: str) -> float:
    best = 10.0
    for _ in range(3):
        started = time.process_time()
        read_text_calls(text, LS, bash_blocks=True)
        best = min(best, time.process_time() - started)
    return best


@pytest.mark.parametrize("piece", LONG)
@pytest.mark.parametrize(("before", "after"), [("", "}"), ("<tool_call>", "</tool_call>"), ("", "\n```")])
def test_time_grows_with_the_text_and_no_faster(piece: str, before: str, after: str) -> None:
    small, large = (before + piece * (size // len(piece)) + after for size in (10_000, 80_000))
    assert cpu(large) < 30 * cpu(small) + 0.05, piece
