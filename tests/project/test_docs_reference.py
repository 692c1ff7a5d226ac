"""The reference says what the code does: its tables are the code's own, and nothing is missing."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest
from pages import DOCS, PAGES, ROOT, name_of
from support import module_at

import llm_sandbox_nb
from llm_sandbox_nb.agent.control.frontends import COMMANDS
from llm_sandbox_nb.cli.parser import make_parser
from llm_sandbox_nb.notebook.magics import SandboxMagics
from llm_sandbox_nb.notebook.settings import SandboxSettings
from llm_sandbox_nb.options.table import NOTEBOOK_OPTIONS, RUN_OPTIONS
from llm_sandbox_nb.runs.solve import solve
from llm_sandbox_nb.sandbox.open import open_sandbox
from llm_sandbox_nb.server.card_handlers import card_routes
from llm_sandbox_nb.server.handlers import rest_routes
from llm_sandbox_nb.server.history_handlers import history_routes
from llm_sandbox_nb.server.manager import SandboxManager
from llm_sandbox_nb.server.mcp_handlers import mcp_token_routes
from llm_sandbox_nb.server.policy import SandboxPolicy
from llm_sandbox_nb.server.run_handlers import run_routes
from llm_sandbox_nb.server.runs import RunRegistry
from llm_sandbox_nb.server.sockets import socket_routes
from llm_sandbox_nb.trajectory import events

PACKAGE = ROOT / "llm_sandbox_nb"
WITH_BLOCKS = [
    page
    for page in PAGES
    if re.search(r"^<!-- (?!table)\w+: begin -->", page.read_text("utf-8"), re.MULTILINE)
]


def page(name: str) -> str:
    return (DOCS / "reference" / name).read_text("utf-8")


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    return module_at(DOCS / "reference.py")


@pytest.mark.parametrize("shown", WITH_BLOCKS, ids=name_of)
def test_a_page_has_the_tables_of_the_code(reference: ModuleType, shown: Path) -> None:
    text = shown.read_text("utf-8")
    assert reference.filled(text) == text, "run python docs/reference.py"


def test_every_generated_block_is_on_a_page(reference: ModuleType) -> None:
    texts = "".join(shown.read_text("utf-8") for shown in WITH_BLOCKS)
    assert sorted(re.findall(r"<!-- (?!table)(\w+): begin -->", texts)) == sorted(reference.BLOCKS)


def test_every_command_has_its_heading_and_every_flag_a_row() -> None:
    text, (_, parsers) = page("cli.md"), make_parser()
    parts = dict(re.findall(r"^## ([a-z ]+)\n(.*?)(?=^## )", text, re.MULTILINE | re.DOTALL))
    for name, parser in parsers.items():
        if not name:
            continue
        for action in parser._actions:
            if action.option_strings and action.dest not in ("help", "version"):
                shown = [
                    flag
                    for flag in action.option_strings
                    if re.search(rf"`{re.escape(flag)}[ `]", parts[name])
                ]
                assert shown, f"{name} {action.option_strings}"


def test_every_variable_and_every_setting_of_a_file_is_named() -> None:
    variables = {variable for option in (*RUN_OPTIONS, *NOTEBOOK_OPTIONS) for variable in option.environment}
    assert [variable for variable in sorted(variables) if variable not in page("settings.md")] == []
    names = SandboxSettings.class_own_traits(config=True)
    assert [name for name in names if f"`SandboxMagics.{name}`" not in page("settings.md")] == []


def test_every_option_and_subcommand_of_the_magics_is_named() -> None:
    text = page("magics.md")
    options = [
        flag
        for action in SandboxMagics.sandbox_cell.parser._actions
        if action.dest != "help"
        for flag in action.option_strings
    ]
    assert len(options) > 20
    assert [flag for flag in options if f"`{flag}`" not in text] == []
    words = re.sub(r"[|]", " ", text)
    assert [
        name for name in SandboxMagics.subcommands if not re.search(rf"(?:%sandbox|  ) ?{name}\b", words)
    ] == []
    assert [
        name for name in COMMANDS if name != "help" and not re.search(rf"^{name}\b", text, re.MULTILINE)
    ] == []


def test_every_trait_of_the_server_is_named() -> None:
    text = page("server.md")
    for owner in (SandboxPolicy, SandboxManager, RunRegistry):
        for name in owner.class_own_traits(config=True):
            assert f"`{owner.__name__}.{name}`" in text


def test_every_route_of_the_server_is_there() -> None:
    """The routes as tornado knows them, not those of the OpenAPI file that the page is made from."""
    headings = re.findall(r"^### (?:GET|POST|PUT|DELETE) (/\S*)$", page("rest.md"), re.MULTILINE)
    shown = {re.sub(r"\{\w+\}", "*", path) for path in headings}
    routes = [*rest_routes, *socket_routes, *run_routes, *history_routes, *card_routes, *mcp_token_routes]
    known = {
        re.sub(r"\(\?P<\w+>.*?\)(?=/|$)", "*", route[0]).partition("/llm-sandbox/api")[2] for route in routes
    }
    assert len(known) > 20
    assert shown == known


def test_every_event_has_its_heading_and_every_field_a_row() -> None:
    text = page("events.md")
    parts = dict(re.findall(r"^### (\S+)\n(.*?)(?=^##)", text, re.MULTILINE | re.DOTALL))
    shared = {"id", "parent", "time", "kind"}
    for event in get_args(events.KnownEvent):
        part = parts[event.model_fields["kind"].default]
        assert [name for name in set(event.model_fields) - shared if f"| `{name}` |" not in part] == []
    assert all(reason in text for reason in ("`submitted`", "`sandbox_lost`", "`interrupted`"))


def test_every_public_name_has_its_docstring_on_the_page() -> None:
    public = [name for name in llm_sandbox_nb.__all__ if name != "__version__"]
    shown = re.findall(r"^\.\. auto(?:function|class|exception):: ([\w.]+)$", page("api.md"), re.MULTILINE)
    for path in shown:
        module, _, name = path.rpartition(".")
        assert hasattr(importlib.import_module(module), name), path
    assert {path.rpartition(".")[2] for path in shown} >= set(public)


@pytest.mark.parametrize(("function", "heading"), [(solve, "solve"), (open_sandbox, "open_sandbox")])
def test_every_argument_of_a_function_is_in_its_table(function: object, heading: str) -> None:
    [part] = re.findall(rf"^## {heading}\n(.*?)^## ", page("python.md"), re.MULTILINE | re.DOTALL)
    names = inspect.signature(function).parameters  # type: ignore[arg-type]
    assert [name for name in names if not re.search(rf"^\| .*`{name}`.* \|", part, re.MULTILINE)] == []


@pytest.mark.parametrize(("function", "heading"), [(solve, "solve"), (open_sandbox, "open_sandbox")])
def test_defaults_in_the_tables_are_those_of_the_function(function: object, heading: str) -> None:
    """Defaults that the table writes as literals; it describes others in words or as a call."""
    [part] = re.findall(rf"^## {heading}\n(.*?)^## ", page("python.md"), re.MULTILINE | re.DOTALL)
    written = re.findall(r"^\| `(\w+)` \| `([^`{(]+)` \|", part, re.MULTILINE)
    parameters = inspect.signature(function).parameters  # type: ignore[arg-type]
    assert len(written) >= 2
    assert [name for name, text in written if ast.literal_eval(text) != parameters[name].default] == []


def shown_sentences() -> str:
    """The pages of errors as a person searches them: without what Markdown needs."""
    return re.sub(r"\\(.)", r"\1", page("errors.md") + page("all-errors.md"))


def raised_texts() -> list[tuple[str, str]]:
    """Where an exception of ours is raised with a text: the file, and the longest piece of it without a value.

    Read straight from the raise statements, so that it does not share what `docs/error_sentences.py` may get wrong.
    """
    found = []
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if not isinstance(node, ast.Raise) or not isinstance(node.exc, ast.Call) or not node.exc.args:
                continue
            name = getattr(node.exc.func, "id", "")
            if not name.endswith("Error") or name in ("AssertionError", "NotImplementedError"):
                continue
            text = node.exc.args[0]
            pieces = text.values if isinstance(text, ast.JoinedStr) else [text]
            texts = [str(p.value) for p in pieces if isinstance(p, ast.Constant) and isinstance(p.value, str)]
            longest = max(texts, key=len, default="")
            if len(longest.split()) > 2:
                found.append((file.relative_to(PACKAGE).as_posix(), " ".join(longest.split())))
    return found


def test_every_sentence_that_is_raised_is_on_the_page_of_errors() -> None:
    shown, raised = shown_sentences(), raised_texts()
    assert len(raised) > 350
    assert [(file, text) for file, text in raised if text not in shown] == [], "run python docs/reference.py"


@pytest.mark.parametrize(
    "sentence",
    [
        "Another run uses this sandbox: wait until it has ended, or stop it.",  # a constant of another module
        "The run used up its budget before the model submitted: allow more with --budget.",  # of a table
        "bubblewrap is not installed (`apt install bubblewrap`)",  # returned by a function
        "Interrupted; results so far are in …. The same command resumes there.",  # printed to stderr
        "Unknown option …; did you mean …? see `…`",  # of the parser: only its beginning is fixed
        "No API key: …",
        "it did not answer within … seconds",  # why a sandbox was lost
    ],
)
def test_sentences_are_found_however_they_are_written(sentence: str) -> None:
    beginning = sentence.partition("…")[0]
    assert beginning.strip()
    assert beginning in shown_sentences()


def rows_of(name: str) -> list[tuple[str, str]]:
    found = [
        line.removeprefix("| ").removesuffix(" |")
        for line in page(name).splitlines()
        if line.startswith("| ")
    ]
    return [
        (sentence, advice)
        for sentence, _, advice in (row.rpartition(" | ") for row in found)
        if sentence != "sentence"
    ]


def test_every_sentence_of_an_error_has_advice() -> None:
    assert len(rows_of("all-errors.md")) > 500
    without = [
        sentence
        for name in ("errors.md", "all-errors.md")
        for sentence, advice in rows_of(name)
        if len(advice) < 8
    ]
    assert without == []


def test_the_first_page_of_errors_is_short_and_the_second_repeats_none() -> None:
    first, others = (dict(rows_of(name)) for name in ("errors.md", "all-errors.md"))
    assert 38 <= len(first) <= 44
    assert first.keys() & others.keys() == set()


def test_a_beginning_that_is_no_sentence_is_an_error(
    reference: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        reference, "collected", lambda: {"notebook/cell.py": ["Something else has gone wrong."]}
    )
    with pytest.raises(KeyError, match="No sentence begins like this any more"):
        reference.errors(first=True)


def test_every_public_name_is_in_a_table_of_the_python_page() -> None:
    text = page("python.md")
    public = [name for name in llm_sandbox_nb.__all__ if name != "__version__"]
    assert [name for name in public if not re.search(rf"`{name}\b|^## {name}$", text, re.MULTILINE)] == []
