"""The pages say what the code does: their tables are the code's own, their links lead somewhere."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from server_variants import VARIANTS

import llm_sandbox_nb
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


@pytest.mark.parametrize("name", ["notebook.md", "sandbox.md", "server.md", "training.md"])
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


def test_the_page_of_model_servers_says_how_many_there_are() -> None:
    page = (ROOT / "docs" / "model-servers.md").read_text("utf-8")
    assert f"has {len(VARIANTS)} servers" in page
    assert page.count("\n| ") > 20


def test_the_readme_shows_a_picture_that_is_there() -> None:
    pictures = re.findall(
        r'<img[^>]* src="([^"]+)"|!\[[^]]*\]\(([^)]+)\)', (ROOT / "README.md").read_text("utf-8")
    )
    assert pictures
    assert all((ROOT / (html or markdown)).stat().st_size > 2_000 for html, markdown in pictures)


EXAMPLES = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
MAGIC = re.compile(r"^[%!].*$", re.MULTILINE)


def problems_of_examples(page: str) -> Iterator[str]:
    """What Python would refuse in the examples of a page: their form, and what they import of ours."""
    for example in EXAMPLES.findall(page):
        try:
            compile(MAGIC.sub("", example), "example", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        except SyntaxError as error:
            yield f"{error.msg}: {error.text}"
            continue
        for node in ast.walk(ast.parse(MAGIC.sub("", example))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "llm_sandbox_nb":
                yield from problems_of_import(node)


def problems_of_import(node: ast.ImportFrom) -> Iterator[str]:
    try:
        module = importlib.import_module(str(node.module))
    except ImportError as error:
        yield str(error)
        return
    yield from (f"no {node.module}.{one.name}" for one in node.names if not hasattr(module, one.name))


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_the_examples_of_a_page_are_python_and_import_what_there_is(page: Path) -> None:
    text = page.read_text("utf-8")
    assert text.count("```python") == len(EXAMPLES.findall(text))
    assert list(problems_of_examples(text)) == []


def test_the_readme_and_the_pages_have_examples() -> None:
    found = {page.name: len(EXAMPLES.findall(page.read_text("utf-8"))) for page in PAGES}
    assert all(
        found[name] for name in ("README.md", "python.md", "debugger.md", "time-travel.md", "sandbox.md")
    )


@pytest.mark.parametrize(
    ("example", "problem"),
    [
        ("run = await solve('x')\n%load_ext llm_sandbox_nb", ""),
        ("from llm_sandbox_nb import solve, open_sandbox", ""),
        ("run = solve('x'", "never closed"),
        ("from llm_sandbox_nb import solve, solved", "no llm_sandbox_nb.solved"),
        ("from llm_sandbox_nb.agent.nothing import solve", "No module named"),
    ],
)
def test_a_wrong_example_is_noticed(example: str, problem: str) -> None:
    found = list(problems_of_examples(f"Text.\n\n```python\n{example}\n```\n\nText.\n"))
    assert problem in found[0] if problem else found == []


SHOWN = [*PAGES, *sorted((ROOT / "notebooks").glob("*.ipynb"))]


@pytest.mark.parametrize("page", SHOWN, ids=lambda path: path.name)
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
        page.name for page in SHOWN if re.search(r"^[<>]{7} ", page.read_text("utf-8"), re.MULTILINE)
    ] == []


def test_the_python_reference_has_every_public_name() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    public = [name for name in llm_sandbox_nb.__all__ if name != "__version__"]
    shown = re.findall(r"^\.\. auto(?:function|class):: ([\w.]+)$", page, re.MULTILINE)
    for path in shown:
        module, _, name = path.rpartition(".")
        assert hasattr(importlib.import_module(module), name), path
    assert {path.rpartition(".")[2] for path in shown} >= set(public)


def test_every_page_is_in_the_site() -> None:
    """By a table of contents; Sphinx says which pages are in none, but runs in `make docs` only."""
    contents = [
        line
        for page in PAGES
        for block in re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(), re.DOTALL)
        for line in block.splitlines()
        if line and not line.startswith(":")
    ]
    pages = {page.stem for page in (ROOT / "docs").glob("*.md")} - {"index"}
    assert sorted(contents) == sorted(pages)
