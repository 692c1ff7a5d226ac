"""Software tasks: what a reply's patch is, what decides about it, and what it cannot decide itself."""

from __future__ import annotations

import json
import py_compile
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchmark_models import FunctionModel, says
from support import run

from llm_sandbox_nb.benchmark import swe
from llm_sandbox_nb.benchmark.attempt import HowToAsk, with_one_reply
from llm_sandbox_nb.benchmark.data import SAMPLE, load_rows
from llm_sandbox_nb.benchmark.rows import DataError, Row
from llm_sandbox_nb.benchmark.swe import collect_patch, prepare_repository, score_patch
from llm_sandbox_nb.benchmark.task import load_task, task_names
from llm_sandbox_nb.benchmark.text_scorers import Score
from llm_sandbox_nb.sandbox.contract import CommandResult, Sandbox
from llm_sandbox_nb.sandbox.open import open_sandbox

Files = Mapping[str, str | bytes | None]
PYTEST_WITH_PLUGINS = f"{sys.executable} -m pytest -q -x -p no:cacheprovider {{test}}"
PYTEST = f"PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 {PYTEST_WITH_PLUGINS}"
"""Runs pytest without the installed plugins, whose imports take longer than pytest's own."""
UNITTEST = f"{sys.executable} -m unittest -q {{test}}"
WRONG, RIGHT = "def total(n):\n    return n[0]\n", "def total(n):\n    return sum(n)\n"
TEST = "from total import total\n\n\ndef test_total():\n    assert total([1, 2]) == 3\n"
CASE = """import unittest

import total


class Total(unittest.TestCase):
    def test_total(self):
        self.assertEqual(total.total([1, 2]), 3)
"""
FREE = CASE.replace("total.total([1, 2])", "3")
BASE: Files = {
    "total.py": WRONG,
    "pyproject.toml": '[project]\nname = "total"\n',
    "tests/conftest.py": "",
    "tests/test_total.py": TEST,
    "test_case.py": CASE,
}


def write(folder: Path, files: Files) -> None:
    for name, content in files.items():
        path = folder / name
        if content is None:
            path.unlink()
            if not any(path.parent.iterdir()):
                path.parent.rmdir()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)


def git(folder: Path, *words: str) -> bytes:
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@localhost", *words]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True).stdout


def commit(folder: Path, files: Files) -> Path:
    folder.mkdir(exist_ok=True)
    write(folder, files)
    git(folder, "init", "-q")
    git(folder, "add", "-A", "--force", ".")
    git(folder, "commit", "-qm", "base")
    return folder


def patch_of(folder: Path, base: Files, changed: Files) -> str:
    """What turns `base` into it with the changes."""
    work = commit(folder, base)
    write(work, changed)
    git(work, "add", "-A", "--force", ".")
    return git(work, "diff", "--cached", "--binary", "HEAD").decode("utf-8", "surrogateescape")


def scored(
    folder: Path,
    patch: str,
    tests: list[str],
    command: str,
    opener: Any = None,
    timeout: float = 100,
    **more: Any,
) -> Score:
    """A score of a patch to the repository in `folder`. Commands that run no tests are judged by their exit code."""
    evidence = "report" if f"{sys.executable} -m" in command else "exit_code"
    extra = {
        "repository": str(folder),
        "FAIL_TO_PASS": tests,
        "test_command": command,
        "test_evidence": evidence,
    }
    extra |= more
    row = Row("r", "p", "", extra=extra)
    opener = opener or (lambda row: open_sandbox("process"))
    return run(score_patch(patch, row, opener, folder, timeout=timeout), 120)


def attacked(tmp_path: Path, changed: Files, test: str, command: str, **more: Any) -> Score:
    write(tmp_path / "repository", BASE)
    patch = patch_of(tmp_path / "work", BASE, changed)
    return scored(tmp_path / "repository", patch, [test], command, **more)


ENDS = "import os\nos._exit(0)\n"
COLLECTS = "addopts = --collect-only\n"
METADATA = "Metadata-Version: 2.1\nName: evil\nVersion: 1\n"
PYTEST_CHANGES: dict[str, Files] = {
    "settings in each place": {
        **dict.fromkeys(["pytest.ini", "tests/pytest.ini", ".pytest.ini", "tox.ini"], f"[pytest]\n{COLLECTS}"),
        "setup.cfg": f"[tool:pytest]\n{COLLECTS}",
        "pyproject.toml": '[project]\nname = "total"\n[tool.pytest.ini_options]\naddopts = "--collect-only"\n',
        "tests/pyproject.toml": '[tool.pytest.ini_options]\naddopts = "--collect-only"\n',
    },
    "code in each place": {
        "conftest.py": ENDS, "tests/conftest.py": ENDS, "pluggy.py": ENDS, "_pytest/__init__.py": ENDS,
        "pytest/__init__.py": "", "pytest/__main__.py": ENDS, "tests/test_total.py": "def test_total(): pass\n",
        "evil-1.dist-info/METADATA": METADATA, "evil-1.dist-info/entry_points.txt": "[pytest11]\nevil = evil\n",
        "evil.py": ENDS,
    },
    "the runner as one file": {"pytest.py": ENDS},
    "no tests": {"tests/test_total.py": None, "tests/conftest.py": None, "tests": "x"},
}  # fmt: skip
"""What is left of such a change would end the run, or leave the test out."""
UNITTEST_CHANGES: dict[str, Files] = {
    "files": {"unittest.py": ENDS, "test_case.py": FREE},
    "packages": {"unittest/__init__.py": "", "unittest/__main__.py": ENDS, "test_case/__init__.py": FREE},
}


@pytest.mark.parametrize("changed", PYTEST_CHANGES.values(), ids=PYTEST_CHANGES)
def test_a_patch_cannot_change_how_pytest_decides(changed: Files, tmp_path: Path) -> None:
    plugin = "evil-1.dist-info/entry_points.txt" in changed
    command = PYTEST_WITH_PLUGINS if plugin else PYTEST
    score = attacked(tmp_path, changed, "tests/test_total.py::test_total", command)
    assert (score.value, score.detail) == (0.0, "1 of 1 tests fail: tests/test_total.py::test_total")


@pytest.mark.parametrize("changed", UNITTEST_CHANGES.values(), ids=UNITTEST_CHANGES)
def test_a_patch_cannot_change_how_unittest_decides(changed: Files, tmp_path: Path) -> None:
    score = attacked(tmp_path, changed, "test_case.Total.test_total", UNITTEST)
    assert score.value == 0, score


def test_a_patch_cannot_hide_what_it_changes(tmp_path: Path) -> None:
    write(tmp_path / "repository", BASE)
    hides = patch_of(tmp_path / "a", BASE, {".gitattributes": "*.none working-tree-encoding=none\n"})
    parts = [
        patch_of(tmp_path / "b", BASE, {"test_case.py": FREE}),
        patch_of(tmp_path / "c", BASE, {"x.none": "x\n"}),
        hides,
    ]
    score = scored(tmp_path / "repository", "".join(parts), ["test_case.Total.test_total"], UNITTEST)
    assert score.value == 0, score


def test_a_runner_is_not_replaced_where_its_settings_are_in_the_base(tmp_path: Path) -> None:
    base = {**BASE, "pytest.ini": "[pytest]\n"}
    write(tmp_path / "repository", base)
    patch = patch_of(tmp_path / "work", base, {"pytest.py": ENDS})
    assert scored(tmp_path / "repository", patch, ["tests/test_total.py::test_total"], PYTEST).value == 0


def test_a_patch_cannot_bring_compiled_tests(tmp_path: Path) -> None:
    source = tmp_path / "test_case.py"
    source.write_text(FREE)
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    made = Path(py_compile.compile(str(source), doraise=True, invalidation_mode=mode) or "")
    changed = {f"__pycache__/{made.name}": made.read_bytes()}
    assert attacked(tmp_path, changed, "test_case.Total.test_total", UNITTEST).value == 0


def test_a_patch_cannot_stand_in_the_way_of_the_tests(tmp_path: Path) -> None:
    """Else it would be counted apart instead of as wrong."""
    tests = patch_of(tmp_path / "tests", BASE, {"more/test_more.py": TEST})
    more = {"test_patch": tests}
    for number, changed in enumerate([{"more": "x"}, {"more/test_more.py/x": "x"}]):
        folder = tmp_path / str(number)
        folder.mkdir()
        score = attacked(folder, changed, "more/test_more.py::test_total", PYTEST, **more)
        assert score.value == 0, score


def test_changes_that_do_not_affect_tests_are_kept(tmp_path: Path) -> None:
    """Code, and a project's own description; and the tests' own patch has the last word."""
    project = '[project]\nname = "total"\nversion = "2"\n'
    changed = {
        "total.py": RIGHT,
        "pyproject.toml": project,
        "tests/conftest.py": ENDS,
        "pytest.ini": "broken",
    }
    tests = patch_of(
        tmp_path / "tests", BASE, {"tests/conftest.py": "LOADED = 1\n", "tests/test_new.py": TEST}
    )
    command = f"grep -q version pyproject.toml && grep -q LOADED tests/conftest.py && {PYTEST}"
    names = "tests/test_new.py::test_total"
    assert attacked(tmp_path, changed, names, command, test_patch=tests) == Score(1.0, "1 tests pass")


def test_a_repository_of_the_test_runner_itself_can_be_mended(tmp_path: Path) -> None:
    base = {"_pytest/old.py": "x = 1\n", "pluggy.py": "x = 1\n"}
    write(tmp_path / "repository", base)
    patch = patch_of(tmp_path / "work", base, {"_pytest/new.py": "x = 2\n", "pluggy.py": "x = 2\n"})
    command = "grep -q 2 _pytest/new.py pluggy.py && grep -q 2 pluggy.py && true {test}"
    assert scored(tmp_path / "repository", patch, ["t"], command).value == 1


def test_bytes_beyond_utf_8_are_kept(tmp_path: Path) -> None:
    base = {"a.txt": b"caf\xe9\n1\n"}
    write(tmp_path / "repository", base)
    patch = patch_of(tmp_path / "work", base, {"a.txt": b"caf\xe9\n2\n"})
    assert scored(tmp_path / "repository", patch, ["t"], "grep -aq 2 a.txt && true {test}").value == 1


@pytest.mark.parametrize("patch", ["no patch \ud800", "\udfff"], ids=ascii)
def test_a_lone_surrogate_is_not_a_patch(patch: str, tmp_path: Path) -> None:
    write(tmp_path, {"a": "1\n"})
    assert scored(tmp_path, patch, ["t"], "true {test}") == Score(0.0, "the patch does not apply")


def test_half_a_character_in_a_patch_becomes_a_mark(tmp_path: Path) -> None:
    write(tmp_path / "repository", {"a": "1\n"})
    patch = "--- a/a\n+++ b/a\n@@ -1 +1 @@\n-1\n+\ud800\n"
    assert scored(tmp_path / "repository", patch, ["t"], "grep -q \ufffd a && true {test}").value == 1


async def collected(repository: Path, command: str) -> str | None:
    row = Row("r", "p", "", extra={"repository": str(repository)})
    async with open_sandbox("process") as box:
        base = await prepare_repository(box, row, repository)
        done = await box.run(command)
        assert done.exit_code == 0, done.text
        return await collect_patch(box, base)


@pytest.mark.parametrize(
    "left",
    [
        "git config diff.noprefix true; git config color.ui always; git config diff.context 0",
        "git init -q trial; touch trial/file",
        "git init -q trial; cd trial; touch file; git add file; git -c user.name=a -c user.email=a commit -qm a",
    ],
    ids=["settings", "empty repository", "repository"],
)
def test_what_a_model_leaves_in_git_does_not_spoil_its_patch(left: str, tmp_path: Path) -> None:
    repository = commit(tmp_path / "repository", {"a.py": "1\n2\n3\n"})
    patch = run(collected(repository, f"sed -i s/2/two/ a.py; {left}"))
    assert patch is not None
    again = tmp_path / "again"
    write(again, {"a.py": "1\n2\n3\n"})
    git(again, "init", "-q")
    (tmp_path / "patch").write_text(patch)
    git(again, "apply", str(tmp_path / "patch"))
    assert (again / "a.py").read_text() == "1\ntwo\n3\n"


def test_a_patch_has_every_change_but_new_files_that_git_ignores(tmp_path: Path) -> None:
    write(tmp_path, {".gitignore": "*.log\n", "old.log": "1\n", "a.txt": "1\n", "b.txt": "1\n"})
    change = "echo 2 | tee old.log new.log new.txt a.txt; rm b.txt; echo 2 > forced.log; git add --force forced.log"
    patch = (
        run(collected(tmp_path, f"{change} a.txt && git -c user.name=t -c user.email=t@t commit -qm x")) or ""
    )
    assert re.findall(r"^diff --git a/(\S+)", patch, re.MULTILINE) == [
        "a.txt", "b.txt", "forced.log", "new.txt", "old.log"
    ]  # fmt: skip


REPLIED = (
    """diff --git a/a.txt b/a.txt
--- a/a.txt
+++ b/a.txt
@@ -1,2 +1,2 @@
-1
+2
 """
    + "\n"
)


@pytest.mark.parametrize(
    "reply",
    [
        REPLIED,
        REPLIED.removesuffix("\n"),
        f"\n\n{REPLIED}\n\n",
        f"```diff\n{REPLIED}```",
        f"Here:\n\n{REPLIED}",
    ],
    ids=["whole", "without the last line end", "blank lines", "fenced", "words"],
)
def test_a_patch_in_a_reply_is_left_as_it_is(reply: str, tmp_path: Path) -> None:
    """Its last line may be a blank one of context."""
    write(tmp_path / "repository", {"a.txt": "1\n\n"})
    model = FunctionModel(lambda messages: says(reply))
    attempt = run(with_one_reply(load_task("swe"), Row("r", "p", ""), HowToAsk(model), tmp_path / "runs"))
    assert attempt.answer
    score = scored(tmp_path / "repository", attempt.answer, ["t"], "grep -q 2 a.txt && true {test}")
    assert score.value == 1, score


def test_an_empty_reply_is_not_a_patch_and_other_answers_are_trimmed(tmp_path: Path) -> None:
    def said(task: str, text: str) -> str | None:
        model = FunctionModel(lambda messages: says(text))
        return run(with_one_reply(load_task(task), Row("r", "p", ""), HowToAsk(model), tmp_path)).answer

    assert said("swe", " \n\n") is None
    assert said("demo", " C \n") == "C"


IDS = ['t.py::a["x"]', "t.py::a[$HOME-y]", "t.py::a[`id -u`]", "t.py::a[$(id -u)]", "t.py::a['q']", "t.py::a[b c]",
       "t.py::a[b\\c]", "t.py::a[!x;&|*?]", "t.py::a[é]"]  # fmt: skip


def commands() -> set[str]:
    tasks = [load_task(name) for name in task_names()]
    rows = [row for task in tasks for row in load_rows(task, SAMPLE)]
    return {task.test_command for task in tasks} | {
        str(row.extra["test_command"]) for row in rows if row.extra.get("test_command")
    }


@pytest.mark.parametrize("command", sorted(commands()))
def test_names_of_tests_reach_the_test_runner_unchanged(command: str, tmp_path: Path) -> None:
    out = tmp_path / "names"
    said = f"() {{ printf '%s\\n' \"$@\" >> {out}; }}"
    functions = {f"BASH_FUNC_{name}%%": said for name in ("python", "python3")}  # a login shell keeps these
    (tmp_path / "repository").mkdir()
    (tmp_path / "repository" / "x").write_text("x\n")
    patch = patch_of(tmp_path / "work", {"x": "x\n"}, {"x": "y\n"})
    exported = "; ".join(f"{name.removeprefix('BASH_FUNC_')[:-2]} {text}" for name, text in functions.items())
    names = " ".join(name.removeprefix("BASH_FUNC_")[:-2] for name in functions)
    score = scored(tmp_path / "repository", patch, IDS, f"{exported}; export -f {names}; {command}")
    assert score.value == 1, score
    assert out.read_text().splitlines()[-len(IDS) :] == IDS


def counted(tmp_path: Path, tests: list[str], opener: Any = None) -> tuple[Score, list[list[str]]]:
    """The score of tests, and the names of each run of a command that passes at once."""
    write(tmp_path / "repository", {"x": "x\n"})
    patch = patch_of(tmp_path / "work", {"x": "x\n"}, {"x": "y\n"})
    log = f"printf '%s ' {{test}} >> {tmp_path}/log; echo >> {tmp_path}/log"
    score = scored(tmp_path / "repository", patch, tests, log, opener, timeout=1000)
    return score, [line.split() for line in (tmp_path / "log").read_text().splitlines()]


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], Any]:
    """Opens sandboxes whose commands with a time-out take so many seconds of a clock that stands still, or are cut."""
    now = [0.0]
    monkeypatch.setattr(swe, "time", SimpleNamespace(monotonic=lambda: now[0]))

    @asynccontextmanager
    async def opened(seconds: float) -> AsyncIterator[Sandbox]:
        async with open_sandbox("process") as box:
            execute = box.exec

            async def slowly(*words: Any, timeout: float | None = None, **more: Any) -> CommandResult:
                done = await execute(*words, **more)
                if timeout is None:
                    return done
                now[0] += min(seconds, timeout)
                return replace(done, timed_out=seconds > timeout)

            monkeypatch.setattr(box, "exec", slowly)
            yield box

    return lambda seconds: lambda row: opened(seconds)


def test_tests_that_take_too_long_together_are_not_tried_alone(tmp_path: Path, slow: Any) -> None:
    score, runs = counted(tmp_path, ["a", "b", "c"], slow(1001))
    assert score == Score(0.0, "the 3 tests do not end within 1000 s")
    assert runs == [["a", "b", "c"]]


MANY = [f"tests/test_{n}.py::test_{'x' * 60}" for n in range(4000)]


def test_one_deadline_is_for_all_runs(tmp_path: Path, slow: Any) -> None:
    score, runs = counted(tmp_path, MANY, slow(400))
    assert score == Score(0.0, "the 4000 tests do not end within 1000 s")
    assert len(runs) == 3


def test_of_the_tests_that_fail_five_are_named(tmp_path: Path) -> None:
    text = "import pytest\n@pytest.mark.parametrize('n', range(12))\ndef test_n(n): assert n > 9\n"
    tests = [f"tests/test_n.py::test_n[{n}]" for n in range(12)]
    more = {
        "FAIL_TO_PASS": tests,
        "test_patch": patch_of(tmp_path / "tests", BASE, {"tests/test_n.py": text}),
    }
    score = attacked(tmp_path, {"total.py": RIGHT}, "", PYTEST.replace(" -x", ""), **more)
    assert score == Score(0.0, f"10 of 12 tests fail: {', '.join(tests[:5])}")


def test_any_number_of_tests_fits_into_command_lines(tmp_path: Path) -> None:
    score, runs = counted(tmp_path, MANY)
    assert score == Score(1.0, "4000 tests pass")
    assert [name for names in runs for name in names] == MANY
    assert len(runs) < 20


@pytest.mark.parametrize("column", ["FAIL_TO_PASS", "PASS_TO_PASS"])
def test_tests_that_are_no_list_are_one_sentence_before_anything_is_asked(
    column: str, tmp_path: Path
) -> None:
    file, row = tmp_path / "rows.jsonl", {"instance_id": "a__b-1", "problem_statement": "p"}
    for value in ("tests/a.py::b", '"tests/a.py::b"', '{"a": 1}', "[", 3, {"a": 1}, [["a"]]):
        file.write_text(json.dumps({**row, column: value}) + "\n")
        with pytest.raises(
            DataError, match=f"{column} of the row 'a__b-1' must be a list of tests"
        ) as caught:
            load_rows(load_task("swe"), str(file))
        assert len(str(caught.value).splitlines()) == 1
        asked = Row("a__b-1", "p", "", extra={column: value})
        with pytest.raises(DataError, match="list of tests"):
            run(score_patch("x", asked, lambda row: open_sandbox("process"), tmp_path))
    for usable in (None, "", " ", "[]", [], '["a"]', ["a"]):
        file.write_text(json.dumps({**row, column: usable}) + "\n")
        assert len(load_rows(load_task("swe"), str(file))) == 1


def test_a_repository_with_a_link_to_the_outside_is_refused_in_one_sentence(tmp_path: Path) -> None:
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "link").symlink_to("/etc/passwd")
    commit(folder, {"x": "x\n"})
    with pytest.raises(DataError, match="cannot be unpacked") as caught:
        scored(folder, "x", ["t"], "true {test}", base_commit="HEAD")
    assert len(str(caught.value).splitlines()) == 1
