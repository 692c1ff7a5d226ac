"""Prompts: the paper's structure, our words, and braces that are text."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_sandbox_nb.agent.errors import InputError
from llm_sandbox_nb.agent.prompts import PromptConfig, fill, load_prompts

SECTIONS = ["TASK", "DIRECTORIES", "WORKFLOW", "IMPORTANT_NOTES", "ENCOURAGED_APPROACHES", "ANTI_HARDCODING"]


def test_the_general_prompts() -> None:
    prompts = load_prompts()
    system, user = prompts.messages("Count {r}'s in {problem_statement}: f'{x!r:>{width}}' {{}}")
    assert [system["role"], user["role"]] == ["system", "user"]
    places = [system["content"].index(f"<{section}>") for section in SECTIONS]
    assert places == sorted(places)
    assert (
        "<problem>\nCount {r}'s in {problem_statement}: f'{x!r:>{width}}' {{}}\n</problem>" in user["content"]
    )
    assert "<OUTPUT_INSTRUCTIONS>" in user["content"]
    assert "/testbed/output/answer.txt" in user["content"]
    for folder in ("/testbed", "/testbed/input", "/testbed/output"):
        assert folder in system["content"]
    for name in ("execute_bash", "str_replace_editor", "submit"):
        assert name in system["content"]
    assert "{working_dir}" not in system["content"] + user["content"]


@given(st.text(st.sampled_from("{}abc_problem statement\n%$\\")), st.text())
def test_braces_are_text(template: str, task: str) -> None:
    assert (
        fill(f"{template}|{{problem_statement}}|{template}", {"problem_statement": task})
        == f"{template}|{task}|{template}"
    )


def test_values_are_not_filled_in_again() -> None:
    values = {"problem_statement": "{working_dir}", "working_dir": "{problem_statement}"}
    assert fill("{working_dir} {problem_statement}", values) == "{problem_statement} {working_dir}"


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "prompts.yaml"
    path.write_text(
        'system_prompt: |-\n  JSON like {"a": {}} and {unknown} stays.\n'
        "instance_prompt: 'Do: {problem_statement} in {output_dir}'\n"
        "working_dir: /work\noutput_dir: /testbed/\n"
    )
    prompts = load_prompts(path)
    system, user = prompts.messages("x")
    assert system["content"] == 'JSON like {"a": {}} and {unknown} stays.'
    assert user["content"] == "Do: x in /testbed"
    assert (prompts.working_dir, prompts.input_dir, prompts.output_dir) == (
        "/work",
        "/testbed/input",
        "/testbed",
    )


def test_another_root_moves_the_usual_folders_only() -> None:
    prompts = PromptConfig(
        "s", working_dir="/testbed", input_dir="/testbed/in put", output_dir="/testbedding"
    )
    moved = prompts.under("/tmp/x/testbed")
    assert (moved.working_dir, moved.input_dir, moved.output_dir) == (
        "/tmp/x/testbed", "/tmp/x/testbed/in put", "/testbedding",
    )  # fmt: skip
    assert prompts.under("/testbed") is prompts


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no system_prompt"),
        ("just text", "no system_prompt"),
        ("- a\n- b", "no system_prompt"),
        ("instance_prompt: x", "no system_prompt"),
        ("system_prompt: [", "not valid YAML"),
        ("system_prompt: 3", "system_prompt has to be text"),
        ("system_prompt: x\noutput_dir: out", "output_dir has to be a full path"),
        ("a: !!python/object/apply:os.system ['true']", "not valid YAML"),
    ],
)
def test_bad_files_are_refused_in_a_sentence(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "prompts.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load_prompts(path)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        load_prompts(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"system_prompt: caf\xe9")
    with pytest.raises(InputError, match="cannot be read"):
        load_prompts(tmp_path / "latin.yaml")
