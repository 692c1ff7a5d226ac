"""Every fenced example of every page is checked: no kind of example, and no program, goes unchecked.

What can be executed with a scripted model is executed by tests/integration/project/test_docs_pages.py.
"""

from __future__ import annotations

import ast
import importlib
import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from pages import PAGES, ROOT, Example, examples_in, examples_of, name_of, prose_of
from traitlets import HasTraits
from traitlets.config import Config, LazyConfigValue

from llm_sandbox_nb.benchmark.task import load_task
from llm_sandbox_nb.cli.parser import command_words, make_parser
from llm_sandbox_nb.model.scripted import parse_script
from llm_sandbox_nb.notebook.errors import SandboxUsageError
from llm_sandbox_nb.notebook.magic_line import parse_line
from llm_sandbox_nb.notebook.magics import SandboxMagics
from llm_sandbox_nb.options.settings_files import read_settings_file
from llm_sandbox_nb.options.table import UsageError
from llm_sandbox_nb.server.manager import SandboxManager
from llm_sandbox_nb.server.policy import SandboxPolicy
from llm_sandbox_nb.server.runs import RunRegistry
from llm_sandbox_nb.training.config import config_names, load_config

EXAMPLES = [example for page in PAGES for example in examples_of(page)]
MAGIC = re.compile(r"^[%!].*$", re.MULTILINE)
PLACEHOLDERS = re.compile(r"\bRUN\b|THE-REPOSITORY")


def problems_of_python(text: str) -> Iterator[str]:
    """What Python would refuse: the form, and what an example imports of ours. Its magics are checked too."""
    for line in MAGIC.findall(text):
        yield from problems_of_magic(line)
    try:
        code = MAGIC.sub("", text)
        compile(code, "example", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except SyntaxError as error:
        yield f"{error.msg}: {error.text}"
        return
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "llm_sandbox_nb":
            yield from problems_of_import(node)
    if "c = get_config()" in text:
        yield from problems_of_traits(code)


def problems_of_import(node: ast.ImportFrom) -> Iterator[str]:
    try:
        module = importlib.import_module(str(node.module))
    except ImportError as error:
        yield str(error)
        return
    yield from (f"no {node.module}.{one.name}" for one in node.names if not hasattr(module, one.name))


def problems_of_traits(code: str) -> Iterator[str]:
    """A configuration of the server sets traits that exist, to values that they take."""
    given = Config()
    exec(code, {"get_config": lambda: given})  # what traitlets does with such a file
    owners = {owner.__name__: owner for owner in (SandboxPolicy, SandboxManager, RunRegistry)}
    for owner, values in given.items():
        traits = owners[owner].class_traits(config=True)
        for name, value in values.items():
            if name not in traits or isinstance(value, LazyConfigValue):
                yield f"there is no {owner}.{name}"
            else:
                traits[name].validate(HasTraits(), value)


def problems_of_magic(text: str) -> Iterator[str]:
    """What `%%sandbox`, `%sandbox` and the other magics of an example would refuse."""
    first, *rest = text.strip().splitlines()
    word, _, line = first.partition(" ")
    try:
        if word == "%%sandbox":
            parse_line(SandboxMagics.sandbox_cell.parser, line)
            if not rest:
                yield "the task is missing"
        elif word == "%config":
            name, value = (part.strip() for part in line.split("=", 1))
            owner, _, trait = name.partition(".")
            if owner != "SandboxMagics" or trait not in SandboxMagics.class_trait_names(config=True):
                yield f"there is no setting {name}"
            else:
                SandboxMagics.class_traits()[trait].validate(HasTraits(), ast.literal_eval(value))
        elif word == "%sandbox":
            for one in (first, *rest):
                yield from problems_of_subcommand(one.removeprefix("%sandbox").split())
        elif word not in ("%load_ext", "%pip"):
            yield f"{word} is not checked"
    except SandboxUsageError as error:
        yield str(error)


def problems_of_subcommand(words: list[str]) -> Iterator[str]:
    if words[0] not in SandboxMagics.subcommands:
        yield f"there is no %sandbox {words[0]}"
    elif words[0] in ("benchmark", "train"):
        yield from problems_of_command(words)


def problems_of_command(words: list[str]) -> Iterator[str]:
    """What the parser of `llm-sandbox-nb` would refuse."""
    try:
        parsed, unknown = make_parser()[0].parse_known_args(command_words(words))
    except UsageError as error:
        yield str(error)
        return
    except SystemExit:
        return  # --help and --version end the program
    if unknown or not parsed.command:
        yield f"{shlex.join(words)}: {unknown}"
    elif parsed.command == "train" and getattr(parsed, "set", None):
        named = parsed.config if parsed.config in config_names() else "qwen3-4b.yaml"
        load_config(named, dict(one.split("=", 1) for one in parsed.set))


def problems_of_shell(text: str) -> Iterator[str]:
    """What bash would refuse, and of the programs that are ours what they would refuse."""
    checked = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
    if checked.returncode:
        yield checked.stderr
        return
    for line in re.sub(r"\\\n", " ", text).splitlines():
        words = shlex.split(line, comments=True)
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            del words[0]
        if words:
            yield from problems_of_words(words)


def problems_of_words(words: list[str]) -> Iterator[str]:
    program, rest = words[0], words[1:]
    if program not in PROGRAMS:
        yield f"{program} is not checked: say in PROGRAMS how"
    else:
        yield from PROGRAMS[program](rest)


def problems_of_make(words: list[str]) -> Iterator[str]:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    yield from (
        f"there is no target {word}"
        for word in words
        if word[0] != "-" and "=" not in word and word not in targets
    )


def problems_of_pip(words: list[str]) -> Iterator[str]:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for word in words:
        if re.match(r"llm[-_]sandbox[-_]nb(\[.*\])?$", word):
            yield f"{word} is on no package index: install '.' in a checkout, or the wheel"
        for extra in re.findall(r"^(?:\.|llm_sandbox_nb-\S+\.whl)\[(.*)\]$", word):
            yield from (f"there is no extra {one}" for one in extra.split(",") if one not in extras)


def problems_of_files(words: list[str]) -> Iterator[str]:
    """Files of ours that a program is given exist. The course is written notebook by notebook."""
    for word in words:
        if word.startswith(("notebooks/", "docs/", "tests/")) and not list(ROOT.glob(word)):
            yield f"there is no {word}"


def nothing(words: list[str]) -> Iterator[str]:
    return iter(())


def problems_of_accelerate(words: list[str]) -> Iterator[str]:
    yield from problems_of_command(words[words.index("llm-sandbox-nb") + 1 :])


PROGRAMS: dict[str, Callable[[list[str]], Iterator[str]]] = {
    "llm-sandbox-nb": problems_of_command,
    "make": problems_of_make,
    "pip": problems_of_pip,
    "python": problems_of_files,
    "jupyter": problems_of_files,
    "papermill": problems_of_files,
    "accelerate": problems_of_accelerate,
    **dict.fromkeys(
        (
            "cd",
            "curl",
            "docker",
            "export",
            "git",
            "harbor",
            "inspect",
            "llama-server",
            "llm-in-sandbox",
            "ollama",
            "podman",
            "ray",
            "vllm",
            "zip",
        ),
        nothing,
    ),
}


def problems_of_settings(text: str, folder: Path) -> Iterator[str]:
    path = folder / "llm-sandbox-nb.toml"
    path.write_text(text)
    try:
        read_settings_file(path)
    except UsageError as error:
        yield str(error)


ACCELERATE_KEYS = {
    "compute_environment", "distributed_type", "num_processes", "num_machines", "machine_rank", "mixed_precision",
    "fsdp_config", "deepspeed_config",
}  # fmt: skip
"""Some of the keys that `accelerate config` writes."""


def problems_of_yaml(text: str, folder: Path) -> Iterator[str]:
    """A script of a model, a task of a benchmark, or a configuration of a training."""
    content = yaml.safe_load(text)
    if "turns" in content:
        parse_script(text)
    elif "instance_prompt" in content:
        (folder / "task.yaml").write_text(text)
        (folder / "scorer.py").write_text("def score(answer, gold, **row):\n    return 0.0\n")
        load_task(str(folder))
    elif "steps" in content:
        (folder / "training.yaml").write_text(text)
        load_config(folder / "training.yaml")
    elif "compute_environment" in content:
        yield from sorted(content.keys() - ACCELERATE_KEYS)
    else:
        yield "this YAML is not checked"


def problems_of_json(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if not isinstance(json.loads(line), dict):
            yield f"{line} is no object"


def problems(example: Example, folder: Path) -> list[str]:
    """What is wrong with an example, or that nothing checks it."""
    text, kind = PLACEHOLDERS.sub("run", example.text), example.kind
    if kind.startswith("{") or kind == "text":
        return []  # directives are Sphinx's; text is no example: formulas, drawings, output of programs
    checks: dict[str, Callable[[], Iterator[str]]] = {
        "python": lambda: problems_of_python(text),
        "bash": lambda: problems_of_shell(text),
        "toml": lambda: problems_of_settings(text, folder),
        "yaml": lambda: problems_of_yaml(text, folder),
        "json": lambda: problems_of_json(text),
        "": lambda: problems_of_magic(text),
    }
    if kind in checks:
        return list(checks[kind]())
    if kind == "output" and example.page.parent.name == "tutorial":
        return []  # compared by the test that executes the tutorial
    if kind == "dockerfile":
        return [] if text.startswith("FROM ") else ["it has no FROM"]
    return [f"examples of the kind {kind} are not checked"]


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_an_example_is_valid(example: Example, tmp_path: Path) -> None:
    assert problems(example, tmp_path) == []


INLINE = sorted(
    {
        (name_of(page), code)
        for page in PAGES
        if page.name not in ("CHANGELOG.md", "errors.md", "all-errors.md")
        for code in re.findall(r"`(llm-sandbox-nb [^`]+)`", prose_of(page))
        if not re.search(r"[…]|COMMAND|\.\.\.", code)
    }
)


@pytest.mark.parametrize(("page", "code"), INLINE)
def test_a_command_in_a_sentence_is_valid(page: str, code: str) -> None:
    incomplete = "ollowing arguments are required"
    problems = problems_of_shell(code.replace(" | ", " "))
    assert [problem for problem in problems if incomplete not in problem] == []


@pytest.mark.parametrize("page", [*PAGES, *sorted(ROOT.glob("notebooks/*.ipynb"))], ids=name_of)
def test_an_installation_in_a_sentence_is_valid(page: Path) -> None:
    if page.name in (
        "errors.md",
        "all-errors.md",
    ):  # it lists what the package says when it is installed, and then pip finds it
        return
    text = page.read_text("utf-8") if page.suffix == ".ipynb" else prose_of(page)
    # Tables that code makes quote what a model wrote.
    text = re.sub(r"<!-- (table\S*): begin -->.*?<!-- \1: end -->", "", text, flags=re.DOTALL)
    words = [word for found in re.findall(r"\b(pip install [^`\\\n#]+)", text) for word in shlex.split(found)]
    assert list(problems_of_pip(words)) == []


def test_every_fence_of_a_page_was_read() -> None:
    for page in PAGES:
        fences = re.findall(r"^ *```", page.read_text("utf-8"), re.MULTILINE)
        assert len(fences) == 2 * len(examples_of(page)), page
        assert not re.search(
            r"^\n    \S", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE
        )


def test_text_is_no_way_around_the_checks() -> None:
    """Nothing that a reader would type stands in a block of text, but a command with its output: `$ ...`."""
    for example in EXAMPLES:
        if example.kind != "text":
            continue
        typed = [line[2:] for line in example.text.splitlines() if line.startswith("$ ")]
        assert [problem for line in typed for problem in problems_of_shell(line)] == []
        rest = [line for line in example.text.splitlines() if line not in {f"$ {one}" for one in typed}]
        begins = re.compile(r"llm-sandbox-nb |%%sandbox|from llm_sandbox_nb|import |pip |make ")
        assert not [line for line in rest if begins.match(line)], example


@pytest.mark.parametrize(
    ("kind", "text", "problem"),
    [
        ("python", "run = await solve('x')\n%load_ext llm_sandbox_nb", ""),
        ("python", "run = solve('x'", "never closed"),
        ("python", "from llm_sandbox_nb import solve, solved", "no llm_sandbox_nb.solved"),
        ("python", "from llm_sandbox_nb.agent.nothing import solve", "No module named"),
        (
            "python",
            "c = get_config()\nc.SandboxPolicy.allowed_isolation = []",
            "there is no SandboxPolicy.allowed_isolation",
        ),
        ("python", "%config SandboxMagics.stepz = 3", "there is no setting SandboxMagics.stepz"),
        ("bash", "llm-sandbox-nb run --modle x", "--modle"),
        ("bash", "llm-sandbox-nb run 'open", "unexpected EOF"),
        ("bash", "make everything", "there is no target everything"),
        ("bash", "pip install '.[everything]'", "there is no extra everything"),
        ("bash", "pip install 'x-1.0.whl' 'llm-sandbox-nb[rl]'", "is on no package index"),
        ("bash", "jupyter execute notebooks/none.ipynb", "there is no notebooks/none.ipynb"),
        ("bash", "frobnicate --all", "frobnicate is not checked"),
        ("toml", "modle = 'x'", "unknown key 'modle'"),
        ("yaml", "turnz: []", "this YAML is not checked"),
        ("", "%%sandbox --stepz 3\nTask", "Unknown option --stepz"),
        ("", "%sandbox frob", "there is no %sandbox frob"),
        ("", "%sandbox benchmark run --modle x", "--modle"),
        ("rust", "fn main() {}", "are not checked"),
    ],
)
def test_a_wrong_example_is_noticed(kind: str, text: str, problem: str, tmp_path: Path) -> None:
    [example] = examples_in(f"Text.\n\n```{kind}\n{text}\n```\n\nText.\n", ROOT / "README.md")
    found = problems(example, tmp_path)
    assert problem in found[0] if problem else found == []
