"""The pages say what the code does: their tables are the code's own, their links lead somewhere."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from llm_sandbox_nb.benchmark.options import BENCHMARK_OPTIONS
from llm_sandbox_nb.options.table import RUN_OPTIONS

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "docs" / "reference.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["notebook.md", "server.md"])
def test_a_page_has_the_tables_of_the_code(reference: ModuleType, name: str) -> None:
    page = (ROOT / "docs" / name).read_text("utf-8")
    assert reference.filled(page) == page, "run python docs/reference.py"
    assert page.count("| `") > 5


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_to_files_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)", page.read_text("utf-8"))
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (page.parent / target).exists()] == []


def test_the_page_of_the_command_line_names_every_flag_and_variable() -> None:
    page = (ROOT / "docs" / "command-line.md").read_text("utf-8")
    assert [option.name for option in RUN_OPTIONS if f"--{option.name}" not in page] == []
    variables = [variable for option in RUN_OPTIONS for variable in option.environment]
    assert [variable for variable in variables if variable not in page] == []


def test_the_page_of_the_benchmark_names_every_flag() -> None:
    page = (ROOT / "docs" / "benchmark.md").read_text("utf-8")
    assert [option.name for option in BENCHMARK_OPTIONS if f"| `--{option.name}` |" not in page] == []


def test_the_readme_shows_a_picture_that_is_there() -> None:
    pictures = re.findall(
        r'<img[^>]* src="([^"]+)"|!\[[^]]*\]\(([^)]+)\)', (ROOT / "README.md").read_text("utf-8")
    )
    assert pictures
    assert all((ROOT / (html or markdown)).stat().st_size > 2_000 for html, markdown in pictures)
