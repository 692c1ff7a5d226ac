"""Scripts: what they say, which turn is played, what is wrong with a bad one."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_sandbox_nb.model.contract import ModelError
from llm_sandbox_nb.model.model_names import make_model
from llm_sandbox_nb.model.scripted import (
    SCRIPTS,
    Player,
    Script,
    ScriptTurn,
    load_script,
    parse_script,
)


@pytest.mark.parametrize("path", sorted(SCRIPTS.glob("*.yaml")), ids=lambda path: path.stem)
def test_packaged_scripts_are_whole(path: Path) -> None:
    script = load_script(path.stem)
    calls = [call.tool for turn in script.turns for call in turn.calls]
    if calls:
        assert script.turns[-1].calls[-1].tool == "submit"
    else:
        assert len(script.turns) == 1, "a model without tools replies once"
    assert all(call.raw_arguments is None for turn in script.turns for call in turn.calls)


def test_a_script_says_turns_calls_usage_and_pace() -> None:
    script = parse_script(
        """
        chunk: 3
        delay: 0.5
        turns:
          - reasoning: hm
            text: I look.
            calls:
              - {tool: execute_bash, arguments: {command: ls}}
              - {tool: execute_bash, raw_arguments: "{oops"}
            usage: {prompt_tokens: 5, completion_tokens: 7}
            delay: 2
        """
    )
    turn = script.turns[0]
    assert (script.chunk, script.delay, turn.delay, turn.reasoning) == (3, 0.5, 2, "hm")
    assert [call.text for call in turn.calls] == ['{"command": "ls"}', "{oops"]
    assert list(script.pieces("I look.")) == ["I l", "ook", "."]
    assert turn.usage_for(0).completion_tokens == 7


def test_tokens_are_counted_four_characters_each() -> None:
    usage = ScriptTurn(text="12345", reasoning="123").usage_for(14)
    assert (usage.prompt_tokens, usage.completion_tokens, usage.reasoning_tokens) == (4, 2, 1)


def test_a_turn_is_played_as_often_as_it_is_asked_for_so_replays_and_forks_work() -> None:
    player = Player(Script(turns=[ScriptTurn(text="a"), ScriptTurn(text="b")]))
    assert [player.next_turn(number)[0].text for number in (0, 1, 0, 1)] == ["a", "b", "a", "b"]


@given(st.text(), st.integers(1, 50))
def test_the_pieces_are_the_text(text: str, chunk: int) -> None:
    pieces = list(Script(turns=[], chunk=chunk).pieces(text))
    assert "".join(pieces) == text
    assert all(0 < len(piece) <= chunk for piece in pieces)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("turns: [", "not valid YAML"),
        ("turns: 2026-13-01", "not valid YAML"),
        ("[" * 3000, "not valid YAML"),
        ("", "turns: field required"),
        ("turns: 3", "turns: input should be a valid list"),
        ("turns: [{txt: a}]", "turns.0.txt: extra inputs are not permitted"),
        ("turns: [{error: {kind: nonsense}}]", "turns.0.error.kind"),
        ("{turns: [], chunk: 0}", "chunk: input should be greater"),
    ],
)
def test_a_bad_script_says_where_it_is_bad(text: str, says: str) -> None:
    with pytest.raises(ModelError) as caught:
        parse_script(text)
    assert says.lower() in str(caught.value).lower()
    assert "\n" not in str(caught.value)


def test_names_and_paths(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("turns: [{text: mine}]")
    assert load_script(str(path)).turns[0].text == "mine"
    assert make_model(f"scripted/{path}").scripted
    assert load_script("strawberry").turns


@pytest.mark.parametrize("name", ["nope", "nowhere/at-all.yaml", "../secrets"])
def test_a_missing_script_names_the_packaged_ones(name: str) -> None:
    with pytest.raises(ModelError, match="strawberry") as caught:
        make_model(f"scripted/{name}")
    assert caught.value.kind == "not_found"


def test_a_script_that_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"\xff\xfe\x00turns")
    with pytest.raises(ModelError, match="is not UTF-8 text: save it as UTF-8"):
        load_script(str(path))


@pytest.mark.parametrize(
    "address", ["not a url", "ftp://x/v1", "127.0.0.1:8000/v1", "http://", "http://x:99999/v1"]
)
def test_an_address_that_is_none_is_an_error(address: str) -> None:
    with pytest.raises(ModelError, match="give it as http://host:port/v1"):
        make_model("m", api_base=address)


def test_an_empty_name_is_an_error() -> None:
    with pytest.raises(ModelError, match="No model is named"):
        make_model("  ")
