"""Files of a run: inputs, artifacts, answers, diffs, folders of one's own, and a sandbox used again."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from agent_scripts import SUBMIT, bash, edit, outputs, results, solved, turn
from support import run
from talking_model import TalkingModel

from llm_sandbox_nb.agent.artifacts import CollectLimits
from llm_sandbox_nb.agent.errors import InputError
from llm_sandbox_nb.model.contract import Reply
from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.runs.solve import solve
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.open import open_sandbox
from llm_sandbox_nb.trajectory import events as ev


def artifacts(result: Run) -> dict[str, bytes]:
    return {name: bytes(file) for name, file in result.files.items()}


# --- inputs ---


@pytest.mark.alike
def test_files_and_folders_are_handed_in(tmp_path: Path, isolation: str) -> None:
    folder = tmp_path / "data"
    (folder / "sub dir").mkdir(parents=True)
    (folder / "sub dir" / "ü.txt").write_bytes(b"nested")
    (folder / "b.bin").write_bytes(b"\x00\xff")
    (tmp_path / "a 'b'.csv").write_text("1,2\n")
    command = "cd input && find . -type f | LC_ALL=C sort && od -An -tx1 b.bin && cat \"a 'b'.csv\""
    inputs: Any = [folder, tmp_path / "a 'b'.csv"]
    result = run(solved(tmp_path, turn(bash(command)), SUBMIT, inputs=inputs, isolation=isolation))
    assert "./a 'b'.csv\n./b.bin\n./sub dir/ü.txt\n 00 ff\n1,2" in outputs(result)[0]
    assert results(result)[0].changes == []
    assert result.trajectory.start is not None
    assert result.trajectory.start.inputs == ["a 'b'.csv", "b.bin", "sub dir/ü.txt"]
    inputs = {"frame.csv": b"a,b\n", "deep/er.txt": tmp_path / "a 'b'.csv"}
    by_name = run(
        solved(tmp_path, turn(bash("cat input/frame.csv input/deep/er.txt")), SUBMIT, inputs=inputs)
    )
    assert "a,b\n1,2" in outputs(by_name)[0]


def test_inputs_of_the_same_name_are_refused(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same.txt").write_text("x")
    with pytest.raises(InputError, match="same name"):
        run(solved(tmp_path, SUBMIT, inputs=[tmp_path / "a", tmp_path / "b"]))


# --- artifacts ---


@pytest.mark.alike
def test_artifacts_are_taken_as_they_come_and_follow_the_folder(tmp_path: Path, isolation: str) -> None:
    seen: list[tuple[str, str]] = []

    def listen(event: ev.Event) -> None:
        if isinstance(event, ev.ArtifactSaved | ev.ArtifactRemoved):
            seen.append((event.kind, event.path))

    turns = [
        turn(
            bash(
                "cd output && mkdir -p 'my maps' && echo '<b>' > 'my maps/tökyo.html' && printf x > gone.txt"
            )
        ),
        turn(bash("rm gone.txt; printf y > 'a file'; printf longer > 'my maps/tökyo.html'")),
        turn(
            bash(
                "mkdir was_dir && touch was_dir/x; rm 'a file'; mkdir 'a file'; printf z >'a file/inner.json'"
            )
        ),
        turn(
            bash(
                "rm -r was_dir; printf f > was_dir; (printf late > ../l; mv ../l late.csv) &"
                " until [ -e late.csv ]; do sleep 0.05; done"
            )
        ),
    ]
    result = run(solved(tmp_path, *turns, SUBMIT, listeners=[listen], isolation=isolation))
    assert artifacts(result) == {
        "my maps/tökyo.html": b"longer",
        "a file/inner.json": b"z",
        "was_dir": b"f",
        "late.csv": b"late",
    }
    assert set(result.trajectory.artifacts) == set(artifacts(result))
    assert ("artifact.removed", "gone.txt") in seen
    assert seen.index(("artifact", "gone.txt")) < seen.index(("artifact.removed", "gone.txt"))
    for name, event in result.trajectory.artifacts.items():
        data = artifacts(result)[name]
        assert (event.size, event.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert result.trajectory.artifacts["my maps/tökyo.html"].mime == "text/html"
    assert result.trajectory.artifacts["a file/inner.json"].mime == "application/json"
    assert result.trajectory.artifacts["my maps/tökyo.html"].step == 2


def test_links_and_special_files_never_reach_the_host(tmp_path: Path, isolation: str) -> None:
    """The canaries: a host secret that a followed link would copy, a host folder that one would write to."""
    secret = tmp_path / "secret.txt"
    secret.write_text("CANARY-SECRET")
    target = tmp_path / "overwritten"
    target.mkdir()
    turns = [
        turn(
            bash(
                f"cd output; ln -s {secret} answer.txt; ln -s {target} out; mkfifo pipe; ln -s / r; touch ok"
            )
        ),
        turn(bash(f"cd output; rm out ok; ln -s {target} ok; mkdir out; printf attack > out/x")),
        turn(bash(f"cd output; rm -r out; ln -s {target} out; printf a > ../out_x; ln ../out_x hard")),
    ]
    result = run(solved(tmp_path, *turns, SUBMIT, isolation=isolation))
    folder = result.folder / "files"
    assert not [
        path for path in folder.rglob("*") if path.is_symlink() or not (path.is_file() or path.is_dir())
    ]
    for path in result.folder.rglob("*"):
        if path.is_file() and path.name != "journal.jsonl" and path.name != "trajectory.json":
            assert b"CANARY" not in path.read_bytes()
    assert list(target.iterdir()) == []
    assert secret.read_text() == "CANARY-SECRET"
    assert {"answer.txt", "pipe", "r"} <= {reason.split(" ")[0] for reason in result.trajectory.skipped}
    if isolation != "process":
        assert result.answer != "CANARY-SECRET"


def test_what_is_too_much_is_left_out_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CollectLimits, "__init__", lambda self: None)
    for name, value in (("files", 3), ("file_bytes", 1000), ("all_bytes", 2500)):
        monkeypatch.setattr(CollectLimits, name, value, raising=False)
    commands = [
        "cd output; head -c 1001 /dev/zero > large",
        "head -c 900 /dev/zero > 1; head -c 900 /dev/zero > 2; head -c 900 /dev/zero > 3",
        "for n in a b c d; do printf $n > $n; done",
    ]
    result = run(solved(tmp_path, *(turn(bash(command)) for command in commands), SUBMIT))
    assert len(result.files) == 3
    assert sum(file.size for file in result.files.values()) <= 2500
    said = " ".join(result.trajectory.skipped)
    assert "large was not taken: it is larger than" in said
    assert "all files together" in said
    assert "No more than 3 files" in said


@pytest.mark.parametrize(
    "command",
    [
        "head -c 1001 /dev/zero > f",
        "ln -sf /etc/hostname f",
        "rm f; mkfifo f",
        "rm f; mkdir f",
    ],
)
def test_no_old_copy_stays_of_a_file_that_cannot_be_taken_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr(CollectLimits, "__init__", lambda self: None)
    monkeypatch.setattr(CollectLimits, "file_bytes", 1000)
    result = run(
        solved(tmp_path, turn(bash("echo 1 > output/f")), turn(bash(f"cd output; {command}")), SUBMIT)
    )
    assert artifacts(result) == result.trajectory.artifacts == {}
    assert not (result.folder / "files" / "f").exists()


def test_a_large_file_can_be_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CollectLimits, "__init__", lambda self: None)
    monkeypatch.setattr(CollectLimits, "all_bytes", 1500)
    turns = [turn(bash(f"head -c 1000 /dev/zero | tr '\\0' {letter} > output/f")) for letter in "ab"]
    result = run(solved(tmp_path, *turns, SUBMIT))
    assert artifacts(result) == {"f": b"b" * 1000}
    assert result.trajectory.skipped == []


def test_files_of_a_run_never_lead_outside(tmp_path: Path) -> None:
    result = run(solved(tmp_path, turn(bash("mkdir output/d; echo x > output/d/f")), SUBMIT))
    (result.folder / "files" / "link").symlink_to("/etc/passwd")
    (result.folder / "files" / "dirlink").symlink_to("/etc")
    for name in (
        "../journal.jsonl",
        "/etc/passwd",
        "link",
        "dirlink/passwd",
        "d",
        "none",
        "",
        "d/../../journal.jsonl",
    ):
        with pytest.raises(KeyError):
            result.files[name]
    assert list(result.files) == ["d/f"]
    file = result.files["d/f"]
    assert Path(file).read_text() == file.read_text() == "x\n"
    assert (bytes(file), file.size, os.fspath(file)) == (b"x\n", 2, str(file.path))


# --- diffs ---


@pytest.mark.alike
def test_each_call_has_the_diffs_of_what_it_changed(tmp_path: Path, isolation: str) -> None:
    turns = [
        turn(edit("create", "a b.txt", file_text="one\ntwo\nthree"), bash("printf 'x\\000y' > bin; mkdir d")),
        turn(
            edit("str_replace", "a b.txt", old_str="two", new_str="2"),
            bash("rm bin; seq 1 200000 > long.txt"),
        ),
    ]
    result = run(solved(tmp_path, *turns, SUBMIT, isolation=isolation))
    first, second, third, fourth = (
        {Path(one.path).name: one for one in found.changes} for found in results(result)[:4]
    )
    assert first["a b.txt"].kind == "added"
    assert "+three\n\\ No newline at end of file" in (first["a b.txt"].diff or "")
    assert second["bin"].diff is None
    assert second["bin"].note
    assert third["a b.txt"].kind == "modified"
    assert "-two\n+2\n" in (third["a b.txt"].diff or "")
    assert fourth["bin"].kind == "deleted"
    assert len(fourth["long.txt"].diff or "") <= 64 * 1024
    assert fourth["long.txt"].note


# --- answers ---


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("printf ' 42\\n' > output/answer.txt", "42"),
        ("echo 41 > answer.txt", "41"),
        ("echo 41 > answer.txt; echo 42 > output/answer.txt", "42"),
        ("mkdir output/answer.txt; echo 41 > answer.txt", "41"),
        ("printf 'caf\\351' > answer.txt", "caf\ufffd"),
        ("true", "I am done."),
        ("head -c 2000000 /dev/zero > answer.txt", "I am done."),
    ],
)
def test_the_answer(tmp_path: Path, command: str, answer: str) -> None:
    result = run(
        solved(tmp_path, turn(bash(command), text="I work."), turn({"tool": "submit"}, text="I am done.\n"))
    )
    assert result.answer == answer


# --- folders and sandboxes of one's own ---


def test_folders_of_ones_own(tmp_path: Path) -> None:
    """As in the paper's example prompts: everything below the working directory is the output."""
    config = tmp_path / "prompts.yaml"
    config.write_text("system_prompt: s {output_dir}\nworking_dir: /testbed/work\noutput_dir: /testbed\n")
    (tmp_path / "in.txt").write_text("in")
    turns = [
        turn(
            bash(
                "pwd; echo made > made.txt; mkdir -p ../.git; echo x > ../.git/config; echo 5 > ../answer.txt"
            )
        )
    ]
    result = run(solved(tmp_path, *turns, SUBMIT, prompt_config=config, inputs=[tmp_path / "in.txt"]))
    root = result.messages[0]["content"].removeprefix("s ")
    assert f"{root}/work" in outputs(result)[0]
    assert artifacts(result) == {"work/made.txt": b"made\n", "answer.txt": b"5\n"}
    assert result.answer == "5"


def test_a_sandbox_used_again_keeps_files_and_each_run_takes_only_its_own(tmp_path: Path) -> None:
    async def both() -> tuple[Run, Run, Run]:
        async with open_sandbox("process") as box:
            options: dict[str, Any] = {"sandbox": box}
            first = await solved(
                tmp_path, turn(bash("cd output; echo 1 > one; echo A > answer.txt; X=5")), SUBMIT, **options
            )
            second = await solved(
                tmp_path, turn(bash("pwd; echo $X; cat one; echo 2 > two")), SUBMIT, **options
            )

            async def later() -> Sandbox:
                await asyncio.sleep(0)
                return box

            third = await solved(
                tmp_path, turn(bash("echo 11 > one; echo A > answer.txt")), SUBMIT, sandbox=later()
            )
            assert (await box.run("echo still there")).stdout == b"still there\n"
            return first, second, third

    first, second, third = run(both())
    assert artifacts(first) == {"one": b"1\n", "answer.txt": b"A\n"}
    assert artifacts(second) == {"two": b"2\n"}
    assert artifacts(third) == {"one": b"11\n", "answer.txt": b"A\n"}
    assert "/output\n5\n1" in outputs(second)[0]
    assert [one.answer for one in (first, second, third)] == ["A", None, "A"]
    assert len({one.folder for one in (first, second, third)}) == 3


def test_files_that_a_run_begins_with_are_not_its_results(tmp_path: Path) -> None:
    first = run(solved(tmp_path, turn(bash("cd output; echo Paris > answer.txt; echo 1 > one")), SUBMIT))
    more = turn(bash("cd output; cat answer.txt > seen"))
    second = run(solved(tmp_path, more, SUBMIT, files_of=(first, 1)))
    assert (second.answer, artifacts(second)) == (None, {"seen": b"Paris\n"})
    same = turn(bash("cd output; echo Paris > answer.txt"))
    third = run(solved(tmp_path, same, SUBMIT, files_of=(first, 1)))
    assert (third.answer, artifacts(third)) == ("Paris", {"answer.txt": b"Paris\n"})


@pytest.mark.bubblewrap
def test_the_sandbox_opens_while_the_model_thinks(tmp_path: Path, bubblewrap_engine: str) -> None:
    """A model that replies only when the sandbox is there: who opened it after the reply would wait for ever."""

    class Waiting(TalkingModel):
        async def reply(self, *given: Any, **more: Any) -> Reply:
            asked.set()
            await there.wait()
            return await super().reply(*given, **more)

    asked, there = asyncio.Event(), asyncio.Event()
    opened: list[Sandbox] = []

    async def opening() -> Sandbox:
        await asked.wait()
        opened.append(await open_sandbox(bubblewrap_engine))
        there.set()
        return opened[0]

    async def work() -> Run:
        options: dict[str, Any] = {"sandbox": opening(), "isolation": bubblewrap_engine}
        result = await solve("A task.", model=Waiting(1), output_dir=tmp_path, **options)
        await opened[0].close()
        return result

    assert run(work()).stop_reason == "submitted"


def test_a_run_as_a_table(tmp_path: Path) -> None:
    turns = [turn(bash("echo 1; false"), edit("view", "."), text="hm"), turn(text="only words")]
    frame = run(solved(tmp_path, *turns, SUBMIT)).to_dataframe()
    assert list(frame["step"]) == [1, 1, 2, 3]
    assert list(frame["tool"])[:2] == ["execute_bash", "str_replace_editor"]
    assert frame.loc[0, "exit_code"] == 1
    assert frame.loc[2, "thought"] == "only words"


def test_load_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"journal\.jsonl"):
        Run.load(tmp_path)
    with pytest.raises(FileNotFoundError):
        Run.load(tmp_path / "none")
