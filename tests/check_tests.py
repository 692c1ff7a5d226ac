"""Refuse habits that make tests fail, or pass, by chance: `python tests/check_tests.py [FILE or FOLDER ...]`.

Each finding is a line, `file:line: problem; cure`. A comment on the statement, or on the line above it, allows an
exception and says why: `# a time-out is what is tested`, or `# on purpose: ...` with the reason.
"""

from __future__ import annotations

import ast
import itertools
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

TESTS = Path(__file__).parent
SHORT = 5.0
"""Seconds in which a busy machine may not have begun yet."""
FOREVER = 60.0
"""A sleep of at least so many seconds stands for work that does not end: no test waits for its end."""
MOST_SLEEPS = 3
"""Real sleeps that all of tests/unit may hold."""

HEAVY_IMPORTS = {
    "inspect_ai", "litellm", "matplotlib", "numpy", "openai", "pandas", "peft", "torch", "transformers", "trl",
}  # fmt: skip
"""Packages whose import takes half a second to ten seconds of processor time."""
CAMPAIGNS_ONLY = re.compile(r"^pytestmark = (\[[^\]]*)?pytest\.mark\.campaign\b", re.MULTILINE)
"""The mark of a file all of whose tests are campaigns."""

TIME_OUT_TESTED = re.compile(r"#.*\btime-out is what is tested")
ON_PURPOSE = re.compile(r"#.*\bon purpose: \S+ \S+ \S+")
CONSTANT_MARK = re.compile(r"\bsleep +\d{2,}")
MACHINE_WIDE = re.compile(
    r"\bp(?:grep|kill)\b|/cmdline\b.*\bgrep\b|\bps +(?:-?[aefux]{2,}|-e)\b.*\bgrep\b", re.DOTALL
)
TIMED_CALLS = {
    "acquire", "call", "check_call", "check_output", "communicate", "connect", "create_connection", "delete", "exec",
    "execute", "get", "join", "post", "put", "request", "result", "run", "send", "urlopen", "wait", "wait_for",
}  # fmt: skip
BROWSER_CALLS = re.compile(
    r"(?:not_)?to_\w+|wait_for(?!_ready)\w*|expect_\w+|click|dblclick|fill|goto|press|check|reload|hover"
)
WAITS = re.compile(
    r"until|eventually|expect|join|communicate|gather|wait|wait_\w+|\w+_wait|\w*until\w*|wait\w*"
)
ENDS = re.compile(r"(?:cancel|kill|terminate|send_signal|interrupt)\w*")
ASSERTING = re.compile(
    r"(?:\w*_)?(?:check|assert|validate|expect|verify|raises|warns|fail|until|eventually|wait_for)(?:s|ed)?(?:_\w*)?"
)

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, order=True)
class Finding:
    """A place and the sentence about it."""

    file: Path
    line: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}"


@dataclass
class Module:
    """A file of tests, with what the rules ask about it."""

    file: Path
    source: str
    tree: ast.Module = field(init=False)
    lines: list[str] = field(init=False)
    parents: dict[ast.AST, ast.AST] = field(init=False)
    constants: set[str] = field(init=False)
    imported: dict[str, tuple[str, str]] = field(init=False)
    """Names that come from other modules, and the module and name there."""

    def __post_init__(self) -> None:
        self.tree = ast.parse(self.source)
        self.lines = self.source.splitlines()
        self.parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}
        self.constants = {
            target.id
            for node in self.tree.body
            if isinstance(node, ast.Assign) and is_constant_text(node.value)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        self.imported = {
            one.asname or one.name: (str(node.module).rpartition(".")[2], one.name)
            for node in ast.walk(self.tree)
            if isinstance(node, ast.ImportFrom)
            for one in node.names
        }

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """The node and all that hold it, from the inside out."""
        while node in self.parents:
            yield node
            node = self.parents[node]

    def comments(self, node: ast.AST) -> str:
        """The comments of the statement that holds a node, and of the lines directly above it."""
        statement = next((one for one in self.above(node) if isinstance(one, ast.stmt)), node)
        last = (
            statement.body[0].lineno - 1
            if isinstance(getattr(statement, "body", None), list)
            else statement.end_lineno
        )
        first = statement.lineno - 1
        while first and self.lines[first - 1].lstrip().startswith("#"):
            first -= 1
        return "\n".join(line[line.index("#") :] for line in self.lines[first:last] if "#" in line)

    def virtual(self, node: ast.AST) -> bool:
        """Whether the outermost function around a node runs in virtual time."""
        outer = [one for one in self.above(node) if isinstance(one, Function)]
        return bool(outer) and any(
            "virtualtime" in name.lower().replace("_", "") for name in names_in(outer[-1])
        )


def names_in(node: ast.AST) -> Iterator[str]:
    for one in ast.walk(node):
        if isinstance(one, ast.Name):
            yield one.id
        elif isinstance(one, ast.Attribute):
            yield one.attr


def called(node: ast.AST) -> str:
    """The last name of what is called; empty when this is no call."""
    function = node.func if isinstance(node, ast.Call) else None
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def number(node: ast.AST | None) -> float | None:
    """A number that the source states."""
    if (
        isinstance(node, ast.Constant)
        and isinstance(node.value, int | float)
        and not isinstance(node.value, bool)
    ):
        return float(node.value)
    return None


def is_constant_text(node: ast.AST) -> bool:
    if isinstance(node, ast.JoinedStr):
        return not any(isinstance(one, ast.FormattedValue) for one in node.values)
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def inside(node: ast.AST) -> Iterator[ast.AST]:
    """A node and all in it that is executed with it: no bodies of functions that it defines."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, Function | ast.Lambda):
            yield from inside(child)


def real_sleep(node: ast.AST) -> float | None:
    """Seconds that a call sleeps: None when it is no sleep, 1 when a variable says how long."""
    if called(node) not in ("sleep", "wait_for_timeout") or not isinstance(node, ast.Call) or not node.args:
        return None
    function = node.func
    if called(node) == "wait_for_timeout":
        return (number(node.args[0]) or 1000) / 1000
    if (
        isinstance(function, ast.Attribute)
        and isinstance(function.value, ast.Name)
        and function.value.id in ("time", "asyncio")
    ):
        seconds = number(node.args[0])
        return 1.0 if seconds is None else seconds
    return None


def constant_marks(module: Module) -> Iterator[tuple[ast.AST, str, str]]:
    """Processes that are known by a word which another checkout's tests use too."""
    cure = "a foreign process may have the same word; use support.own_mark()"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if isinstance(module.parents.get(node), ast.Expr):
                continue  # a docstring
            if match := CONSTANT_MARK.search(node.value):
                yield node, "mark", f"`{match.group()}` is a constant mark of a process: {cure}"
            elif MACHINE_WIDE.search(node.value) and not isinstance(module.parents.get(node), ast.JoinedStr):
                yield node, "mark", f"a constant is searched for among all processes: {cure}"
        elif isinstance(node, ast.List | ast.Tuple):
            words = [one.value if isinstance(one, ast.Constant) else None for one in node.elts]
            for first, second in itertools.pairwise(words):
                if first == "sleep" and isinstance(second, str) and CONSTANT_MARK.match(f"sleep {second}"):
                    yield node, "mark", f"`sleep {second}` is a constant mark of a process: {cure}"
        elif called(node) == "processes_with" and isinstance(node, ast.Call) and node.args:
            word = node.args[0]
            if is_constant_text(word) or (isinstance(word, ast.Name) and word.id in module.constants):
                yield node, "mark", f"a constant is searched for among all processes: {cure}"


def blocks(tree: ast.AST) -> Iterator[tuple[ast.AST, list[ast.stmt]]]:
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                yield node, block


def slept(statement: ast.stmt) -> float | None:
    """Seconds of a statement that does nothing but sleep."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    return real_sleep(value.value if isinstance(value, ast.Await) else value) if value else None


def is_wait(statement: ast.stmt) -> bool:
    """Whether a statement waits until something is so, or for a task."""
    return any(
        (WAITS.fullmatch(called(node)) and real_sleep(node) is None)
        or (isinstance(node, ast.Await) and isinstance(node.value, ast.Name))
        for node in inside(statement)
    ) or any(isinstance(node, ast.While) for node in inside(statement))


def sleeps_before(module: Module) -> Iterator[tuple[ast.AST, str, str]]:
    """Sleeps in the hope that something has happened meanwhile."""
    for holder, block in blocks(module.tree):
        if isinstance(holder, ast.While):
            continue  # it polls
        for place, statement in enumerate(block):
            if not (seconds := slept(statement)) or seconds >= FOREVER or module.virtual(statement):
                continue
            for after in block[place + 1 :]:
                if is_wait(after):
                    break
                if isinstance(after, ast.Assert) or any(
                    isinstance(node, ast.Assert) or called(node) == "raises" for node in inside(after)
                ):
                    yield (
                        statement,
                        "sleep",
                        "sleeps, then asserts: wait with support.until() or eventually(), or in virtual time",
                    )
                    break
                if ends := next((called(node) for node in inside(after) if ENDS.fullmatch(called(node))), ""):
                    yield (
                        statement,
                        "sleep",
                        f"sleeps, then calls {ends}(): wait for the output or the mark that shows it began",
                    )
                    break


def short_time_outs(module: Module) -> Iterator[tuple[ast.AST, str, str]]:
    """Time-outs that a busy machine reaches before the work has begun."""
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.Call) or not (name := called(node)):
            continue
        stated = next((number(word.value) for word in node.keywords if word.arg == "timeout"), None)
        owner = (
            node.func.value.id
            if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name)
            else ""
        )
        if name in ("timeout", "timeout_at", "wait_for") and owner == "asyncio":
            place = 1 if name == "wait_for" else 0
            stated = stated if stated is not None or len(node.args) <= place else number(node.args[place])
        elif not isinstance(node.func, ast.Attribute):
            continue  # support.run() and the like give BUSY times as long
        elif BROWSER_CALLS.fullmatch(name) and stated is not None and stated > FOREVER:
            stated /= 1000
        elif name in ("join", "wait") and stated is None and len(node.args) == 1 and not node.keywords:
            stated = number(node.args[0])
        elif name not in TIMED_CALLS and not BROWSER_CALLS.fullmatch(name):
            continue
        if stated is None or not 0 < stated <= SHORT or module.virtual(node):
            continue
        around = list(module.above(node))
        statement = next(one for one in around if isinstance(one, ast.stmt))
        expects_it = any(
            isinstance(one, ast.With | ast.AsyncWith)
            and any(
                "raises" in names_in(item) and re.search(r"time_?d?_?out", " ".join(names_in(item)), re.I)
                for item in map(ast_of, one.items)
            )
            for one in around
        )
        if expects_it or (isinstance(statement, ast.Assert) and "timed_out" in names_in(statement.test)):
            continue
        yield (
            node,
            "time-out",
            (
                f"a time-out of {stated:g} s around {name}(): allow a minute, and wait for the output before acting;"
                " if it is the subject, say `# a time-out is what is tested`"
            ),
        )


def ast_of(item: ast.withitem) -> ast.AST:
    return item.context_expr


def sleeps_in_unit_tests(module: Module) -> Iterator[tuple[ast.AST, str, str]]:
    """Real sleeps; all are counted, and those without a comment are refused at once."""
    for node in ast.walk(module.tree):
        seconds = real_sleep(node)
        polls = any(isinstance(one, ast.While) for one in module.above(node))
        if seconds and seconds < FOREVER and not polls and not module.virtual(node):
            yield (
                node,
                "unit sleep",
                "a real sleep in a unit test: move a clock, use virtual time, or say in a comment why it must be real",
            )


def heavy_imports(module: Module) -> Iterator[tuple[ast.AST, str, str]]:
    """Imports that each worker would execute, since all of them collect all files."""
    if CAMPAIGNS_ONLY.search(module.source) or "performance" in module.file.parts:
        return  # tests/conftest.py leaves the file out where no campaign is wanted
    for node in module.tree.body:
        names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            if (package := name.partition(".")[0]) in HEAVY_IMPORTS:
                yield (
                    node,
                    "import",
                    f"each worker imports {package} here: import it in the function that needs it",
                )


Known = dict[tuple[str, str], bool]
"""Whether a function asserts; its key is the module's name (empty for a method) and its own."""


def asserts(module: Module, function: Function, known: Known) -> bool:
    """Whether a function asserts, or uses a helper or a fixture that does."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assert | ast.Raise) or ASSERTING.fullmatch(called(node)):
            return True
        used = None
        if isinstance(node, ast.Name):
            used = module.imported.get(node.id, (module.file.stem, node.id))
        elif isinstance(node, ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else "?"
            used = ("", node.attr) if ("", node.attr) in known else (owner, node.attr)
        if used and used != (module.file.stem, function.name) and known.get(used):
            return True
    names = [argument.arg for argument in function.args.args]
    return any(known.get((stem, name)) for name in names for stem in (module.file.stem, "conftest"))


def asserting_functions(modules: list[Module]) -> Known:
    """The functions of all modules, and whether they assert or call one that does."""
    functions = [
        (module, one) for module in modules for one in ast.walk(module.tree) if isinstance(one, Function)
    ]
    known = {(module.file.stem, one.name): False for module, one in functions}
    changed = True
    methods = {id(one) for module, one in functions if isinstance(module.parents[one], ast.ClassDef)}
    while changed:
        changed = False
        for module, one in functions:
            key = (module.file.stem, one.name)
            if not known[key] and asserts(module, one, known):
                known[key] = changed = True
                if id(one) in methods and "_" in one.name.strip("_"):
                    known["", one.name] = (
                        True  # a method: which class it is of is not known where it is called
                    )
    return known


def tests_without_assertion(module: Module, known: Known) -> Iterator[tuple[ast.AST, str, str]]:
    """Tests that fail by an error on their way only."""
    for function in module.tree.body:
        if (
            isinstance(function, Function)
            and function.name.startswith("test_")
            and not asserts(module, function, known)
        ):
            yield (
                function,
                "no assertion",
                f"{function.name} asserts nothing: assert what it promises, or delete it",
            )


PLANTED = "test_check_tests.py"


def read(paths: list[Path]) -> list[Module]:
    """The files of tests at these paths; sample data and the planted examples of the checker's own test are none."""
    files = [file for path in paths for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]
    return [
        Module(file, file.read_text("utf-8"))
        for file in files
        if "data" not in file.parts and file.name != PLANTED
    ]


def findings(modules: list[Module], known: list[Module] | None = None) -> list[Finding]:
    """All that is refused in these modules; `known` are all modules that helpers may lie in."""
    asserting = asserting_functions(known or modules)
    found = []
    unit_sleeps = []
    for module in modules:
        rules = [constant_marks(module), sleeps_before(module), short_time_outs(module)]
        if module.file.name.startswith("test_"):
            rules += [tests_without_assertion(module, asserting), heavy_imports(module)]
        for rule in rules:
            for node, kind, text in rule:
                comments = module.comments(node)
                allowed = ON_PURPOSE.search(comments) or (
                    kind == "time-out" and TIME_OUT_TESTED.search(comments)
                )
                if not allowed:
                    found.append(Finding(module.file, node.lineno, kind, text))  # type: ignore[attr-defined]
        if "unit" in module.file.parts:
            for node, kind, text in sleeps_in_unit_tests(module):
                unit_sleeps.append(Finding(module.file, node.lineno, kind, text))  # type: ignore[attr-defined]
                if not module.comments(node):
                    found.append(unit_sleeps[-1])
    if len(unit_sleeps) > MOST_SLEEPS:
        count = len(unit_sleeps)
        text = f"one of {count} real sleeps in tests/unit; {MOST_SLEEPS} are allowed: move a clock or use virtual time"
        found += [Finding(one.file, one.line, "unit sleeps", text) for one in unit_sleeps if one not in found]
    return sorted(set(found))


def main(words: list[str]) -> int:
    """Print the findings; the exit code is 1 when there are any."""
    paths = [Path(word) for word in words] or [TESTS]
    modules = read(paths)
    root = next(
        (
            parent
            for path in paths
            for parent in [path.resolve(), *path.resolve().parents]
            if parent.name == "tests"
        ),
        None,
    )
    found = findings(modules, read([root]) if root else modules)
    for one in found:
        print(one)
    kinds = {kind: sum(one.kind == kind for one in found) for kind in sorted({one.kind for one in found})}
    counted = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    print(f"{len(modules)} files of tests: {counted or 'no habit that is refused'}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
