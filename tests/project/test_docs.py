"""The pages are whole: their links lead somewhere, each is in the site, and the README is short."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest
from pages import DOCS, PAGES, ROOT, anchors_of, links_of, name_of, prose_of
from server_variants import VARIANTS
from support import module_at

from llm_sandbox_nb.agent.run_options import ContextMode
from llm_sandbox_nb.benchmark.scorers import SCORERS
from llm_sandbox_nb.sandbox.contract import Checkpointing
from llm_sandbox_nb.sandbox.limits import DEFAULT_COMMAND_TIMEOUT, HISTORY_LIMIT, OUTPUT_LIMIT, Limits

SHOWN = [*PAGES, *sorted((ROOT / "notebooks").glob("*.ipynb"))]
KINDS = {"tutorial", "how-to", "reference", "explanation"}


@pytest.mark.parametrize("page", SHOWN, ids=name_of)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for path, anchor in links_of(page):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), path
        assert not anchor or anchor in anchors_of(target), f"{path}#{anchor}"


def test_every_page_is_in_the_site_once() -> None:
    """By a table of contents; Sphinx says which pages are in none, but runs in `make docs` only."""
    contents = [
        (page.parent / line).relative_to(DOCS).as_posix()
        for page in DOCS.rglob("*.md")
        for block in re.findall(r"```\{toctree\}\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
        for line in block.splitlines()
        if line and not line.startswith(":")
    ]
    pages = {page.relative_to(DOCS).with_suffix("").as_posix() for page in DOCS.rglob("*.md")} - {"index"}
    assert sorted(contents) == sorted(pages)


def test_there_are_four_kinds_of_pages() -> None:
    assert {page.parent.name for page in DOCS.rglob("*.md")} == {*KINDS, "docs"}
    assert [page.name for page in DOCS.glob("*.md")] == ["index.md"]


def test_the_readme_is_one_screen_and_shows_the_moving_picture() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(text.splitlines()) <= 60
    [picture] = re.findall(r'<img[^>]* src="([^"]+)"', text)
    assert (ROOT / picture).suffix == ".webp"
    assert (ROOT / picture).stat().st_size > 2_000


def test_the_readme_has_two_commands_to_try_it() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    [block] = re.findall(r"## Try it: two commands\n.*?```bash\n(.*?)```", text, re.DOTALL)
    targets = re.findall(r"^make (\S+)", block, re.MULTILINE)
    assert len(targets) == len(block.splitlines()) == 2
    assert all(f"\n{target}:" in (ROOT / "Makefile").read_text() for target in targets)


def test_the_page_of_model_servers_says_how_many_there_are() -> None:
    page = (DOCS / "reference" / "model-servers.md").read_text("utf-8")
    assert f"has {len(VARIANTS)} servers" in page
    assert page.count("\n| ") > 20


def test_pages_explain_each_word_of_the_options_and_each_scorer() -> None:
    pages = {page: (DOCS / page).read_text("utf-8") for page in ("explanation/run.md", "reference/python.md")}
    for word in get_args(ContextMode):
        assert f"| `{word}`" in pages["explanation/run.md"]
        assert f'`"{word}"`' in pages["reference/python.md"]
    for page in ("explanation/scores.md", "reference/benchmark.md"):
        text = (DOCS / page).read_text("utf-8")
        assert [name for name in SCORERS if f"`{name}`" not in text] == []


def test_pages_repeat_the_limits_of_a_sandbox() -> None:
    python = (DOCS / "reference" / "python.md").read_text("utf-8")
    seconds = f"{DEFAULT_COMMAND_TIMEOUT:g}"
    assert re.findall(r"await box\..*timeout=(\d+)\)`", python) == [seconds, seconds]
    assert f"| `command_timeout` | `{seconds}` |" in python
    assert f"a command has {seconds} seconds" in (
        ROOT / "notebooks" / "07-what-can-go-wrong.ipynb"
    ).read_text("utf-8")
    mebibytes = OUTPUT_LIMIT / 1024**2
    assert (
        f"at most {mebibytes:g} MiB of each; of longer output, the first {mebibytes / 2:g} MiB and the last"
        in python
    )
    limits = Limits()
    assert limits.memory_bytes
    assert limits.disk_bytes
    memory, disk = limits.memory_bytes / 1024**3, limits.disk_bytes / 1024**3
    assert f"| {memory:g} GB, {limits.pids}, {limits.cpus:g}, {disk:g} GB, {limits.files:,} |" in python
    for text in (
        *((DOCS / page).read_text("utf-8") for page in ("how-to/sandbox.md", "explanation/time-travel.md")),
        (DOCS / "advice.toml").read_text("utf-8"),
        str(Checkpointing.keep_history.__doc__),
    ):
        assert re.findall(r"\d+ GiB", text) == [f"{HISTORY_LIMIT / 1024**3:g} GiB"]


def test_the_glossary_explains_the_words_that_the_project_uses() -> None:
    page = (DOCS / "reference" / "glossary.md").read_text("utf-8")
    [rule] = re.findall(
        r"Use one word for one thing.*?docs: (.*?)\.", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL
    )
    words = [" ".join(word.split()) for word in rule.split(",")]
    assert len(words) >= 12
    assert [word for word in words if f"| **{word}** |" not in page] == []
    terms = re.findall(r"^\| \*\*(.+?)\*\*", page, re.MULTILINE)
    assert terms == sorted(terms)


def test_the_lesson_plan_has_every_notebook_of_the_course() -> None:
    plan = prose_of(DOCS / "how-to" / "teach.md")
    course = prose_of(DOCS / "tutorial" / "course.md")
    planned = re.findall(r"^\| `(\d\d-[\w-]+)`", plan, re.MULTILINE)
    assert planned == re.findall(r"^\| `(\d\d-[\w-]+)`", course, re.MULTILINE)
    assert len(planned) == 9
    for row in re.findall(r"^\| `\d\d-.*$", plan, re.MULTILINE):
        assert int(row.split("|")[2].split(",")[0]) <= 10


@pytest.mark.parametrize("page", SHOWN, ids=name_of)
def test_no_variable_that_a_page_shows_is_a_magic_of_ipython(page: Path) -> None:
    """After a restart of the kernel, a cell with only that name would call the magic: `run` means `%run`."""
    from IPython.core.interactiveshell import InteractiveShell

    magics = InteractiveShell().magics_manager.magics["line"]
    assert "run" in magics
    text = page.read_text("utf-8")
    named = re.findall(
        r"(?:-o|--out)[ =]([a-z_]\w*)|^[ \"]*([a-z_]\w*) = (?:await|asyncio\.run\()", text, re.MULTILINE
    )
    assert {name for pair in named for name in pair if name in magics} == set()


def test_the_readme_and_the_notebooks_hold_no_marks_of_a_merge() -> None:
    assert [
        name_of(page) for page in SHOWN if re.search(r"^[<>]{7} ", page.read_text("utf-8"), re.MULTILINE)
    ] == []


@pytest.fixture(scope="module")
def release() -> ModuleType:
    return module_at(DOCS / "release.py")


def test_a_release_adds_its_version_and_leads_to_the_newest(release: ModuleType, tmp_path: Path) -> None:
    for version in ("0.9.0", "0.10.0", "0.2.0", "0.10.0"):
        release.add_version(tmp_path, version)
    listed = json.loads((tmp_path / "switcher.json").read_text())
    assert [one["version"] for one in listed] == ["0.10.0", "0.9.0", "0.2.0"]
    assert [one["name"] for one in listed if "newest" in one["name"]] == ["0.10.0 (newest)"]
    assert "url=0.10.0/index.html" in (tmp_path / "index.html").read_text()
