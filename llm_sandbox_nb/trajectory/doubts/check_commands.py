"""Recognition of commands that test, build or check a program, and of the outcomes of these commands."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import Literal

from llm_sandbox_nb.trajectory.doubts.evidence import Action, once

Family = Literal["test", "build", "lint"]
_WORDS: dict[Family, str] = {"test": "test", "build": "build", "lint": "check"}

_ALONE: dict[str, Family] = {
    "pytest": "test", "py.test": "test", "tox": "test", "nox": "test", "jest": "test", "vitest": "test",
    "mocha": "test", "ava": "test", "ctest": "test", "bats": "test", "rspec": "test", "phpunit": "test",
    "nosetests": "test", "nose2": "test", "behave": "test", "trial": "test", "prove": "test", "minitest": "test",
    "gotestsum": "test", "playwright": "test", "cypress": "test", "busted": "test", "stestr": "test", "green": "test",
    "gcc": "build", "g++": "build", "cc": "build", "c++": "build", "clang": "build", "clang++": "build",
    "rustc": "build", "javac": "build", "tsc": "build", "ninja": "build", "ghc": "build", "kotlinc": "build",
    "gfortran": "build", "pdflatex": "build", "xelatex": "build", "latexmk": "build", "vue-tsc": "build",
    "mypy": "lint", "pyright": "lint", "flake8": "lint", "pylint": "lint", "eslint": "lint", "shellcheck": "lint",
    "golangci-lint": "lint", "staticcheck": "lint", "rubocop": "lint", "yamllint": "lint", "jsonlint": "lint",
    "xmllint": "lint", "hadolint": "lint", "stylelint": "lint", "pyflakes": "lint", "pycodestyle": "lint",
    "pydocstyle": "lint", "bandit": "lint", "tflint": "lint", "htmlhint": "lint", "tidy": "lint", "biome": "lint",
}  # fmt: skip
_WITH_VERB: dict[str, dict[str, Family]] = {
    "cargo": {"test": "test", "nextest": "test", "t": "test", "build": "build", "b": "build", "check": "build",
              "clippy": "lint"},
    "go": {"test": "test", "build": "build", "vet": "lint"},
    "dotnet": {"test": "test", "build": "build"},
    "swift": {"test": "test", "build": "build"},
    "mix": {"test": "test", "compile": "build"},
    "stack": {"test": "test", "build": "build"},
    "cabal": {"test": "test", "build": "build"},
    "sbt": {"test": "test", "compile": "build"},
    "rake": {"test": "test", "spec": "test"},
    "deno": {"test": "test", "check": "build", "lint": "lint"},
    "bun": {"test": "test", "build": "build"},
    "zig": {"test": "test", "build": "build"},
    "ruff": {"check": "lint"},
    "mvn": {"test": "test", "verify": "test", "package": "build", "compile": "build", "install": "build"},
    "mvnw": {"test": "test", "verify": "test", "package": "build", "compile": "build"},
    "gradle": {"test": "test", "check": "test", "build": "build", "assemble": "build"},
    "gradlew": {"test": "test", "check": "test", "build": "build", "assemble": "build"},
    "terraform": {"validate": "lint", "plan": "lint"},
    "bazel": {"test": "test", "build": "build"},
    "hatch": {"test": "test"},
    "manage.py": {"test": "test", "check": "lint"},
    "ng": {"test": "test", "build": "build", "lint": "lint"},
    "R": {"check": "test"},
}  # fmt: skip
_RUNNERS = frozenset(
    {"npm", "yarn", "pnpm", "make", "gmake", "just", "task", "poe", "invoke", "composer", "hatch"}
)
_RUN_WORDS = frozenset({"run", "run-script", "exec", "-s", "--silent", "--prefix"})
_TARGETS: tuple[tuple[re.Pattern[str], Family], ...] = (
    (
        re.compile(r"^(?:unit[-_:]?|e2e[-_:]?)?tests?(?:$|[-_:.])|[-_:]tests?$|^check$|^ci$|^verify$|^spec$"),
        "test",
    ),
    (re.compile(r"^(?:build|compile|all|tsc|dist)(?:$|[-_:])"), "build"),
    (
        re.compile(r"^(?:lint|typecheck|type-check|types|mypy|ruff|eslint|format-check|validate)(?:$|[-_:])"),
        "lint",
    ),
)
_PROGRAM = re.compile(
    r"(?:^|/)(?:(?:run[-_]?)?(?:all[-_]?)?tests?(?:[-_]\w+)?|test[-_]\w+|\w+[-_.](?:test|spec|tests)|"
    r"verify(?:[-_]\w+)?|"
    r"(?:self[-_]?)?check(?:[-_]\w+|er)?|validate(?:[-_]\w+)?|validator|smoke(?:[-_]\w+)?|sanity(?:[-_]\w+)?|"
    r"grade(?:r|[-_]\w+)?|evaluate)\.(?:py|sh|js|mjs|ts|rb|pl|R|r|php|lua)$"
)
_INTERPRETERS = re.compile(
    r"^(?:python[\d.]*|bash|sh|node|deno|ruby|perl|Rscript|php|tsx|ts-node|bun|lua|zsh|dash)$"
)
_WRAPPERS = frozenset({"sudo", "env", "time", "nice", "xvfb-run", "command", "exec", "stdbuf", "unbuffer", "nohup",
                       "npx", "pnpx", "bunx", "uvx", "catchsegv", "coverage", "valgrind"})  # fmt: skip
_ENV_RUN = frozenset({"poetry", "uv", "pipenv", "pdm", "rye", "hatch", "conda", "micromamba", "bundle"})

_COUNT = re.compile(
    r"\b([1-9]\d*) (?:tests? |specs? |examples? |assertions? )?(?:failed|failures?|failing)\b(?! to )",
    re.IGNORECASE,
)
_FAILED = re.compile(
    r"^FAILED\b|^FAIL\b|^FAIL:|\bFAILED \((?:failures|errors)=|^--- FAIL|test result: FAILED|^not ok \d|npm ERR!|"
    r"npm error code|^make(?:\[\d+\])?: \*\*\* |^error(?:\[E\d+\])?: |: (?:fatal )?error: |error TS\d+|"
    r"^Found [1-9]\d* errors?\b|✖ [1-9]\d* problem|BUILD FAILED|BUILD FAILURE|^E {2,}\w*(?:Error|Exception|assert)|"
    r"^(?:\w+\.)*(?:AssertionError|SyntaxError)\b|^Traceback \(most recent call last\)|Tests:\s+[1-9]\d* failed|"
    r"^Failed: |[1-9]\d* errors? (?:during|in) |could not compile|^ERROR: |Segmentation fault|\bcommand not found$|"
    r"^=+ .*\b[1-9]\d* (?:failed|errors?)\b|^(?:CHECK|VERIFICATION|VALIDATION) FAILED|\bMISMATCH\b|: FAILED$",
    re.MULTILINE,
)
_PASSED = re.compile(
    r"\b(\d+) (?:tests? |specs? )?(?:passed|passing)\b|^OK\b|test result: ok|^ok\s+\S|^PASS\b|All checks passed|"
    r"Success: no issues|\b0 (?:failed|failures|failing)\b|All tests passed",
    re.MULTILINE | re.IGNORECASE,
)
_MISSING = re.compile(
    r"No module named '?(?:pytest|tox|nose2?|mypy|ruff|flake8|pylint|unittest2|coverage|nox)\b|"
    r"command not found|: not found$|"
    r"[Mm]issing script|Unknown command|No rule to make target|no test specified|could not determine executable|"
    r"No targets specified|no configuration file provided|can't open file|No such file or directory\s*$",
    re.MULTILINE,
)
_EMPTY = re.compile(
    r"\bno tests ran\b|collected 0 items|^Ran 0 tests|No tests found|no test files|running 0 tests\n\n?test result",
    re.MULTILINE,
)
_LEFT_OUT = re.compile(
    r"--ignore[= ]|--deselect\b|-k\s+[\"']?not\b|--skip\b|--exclude[= ]|testPathIgnorePatterns|--no-verify\b|"
    r"-m\s+[\"']not\b|--grep\s+\S+\s+--invert|\bSKIP="
)


_FAILED_HINTS = ("ail", "FAIL", "rror", "ERR", "not ok", "***", "problem", "MISMATCH", "raceback", "fault", "not found",
                 "issing", "No ", "no test", "Unknown", "could not", "can't")  # fmt: skip
_PASSED_HINTS = ("pass", "Pass", "PASS", "ok", "OK", "Success", " 0 fail")
_EMPTY_HINTS = ("no test", "No test", "collected 0", "Ran 0", "running 0")
"""Parts of the texts that `_FAILED`, `_PASSED` and `_EMPTY` match. To save time, an output without any of the parts is
not searched for the pattern."""


_SEARCHED_CHARACTERS = 1_000
"""Number of characters at each end of an output that are searched for the outcome of a check."""


def _has_hint(text: str, hints: tuple[str, ...]) -> bool:
    return any(hint in text for hint in hints)


@dataclass(frozen=True)
class CheckRun:
    """Test, build or other check that an action executed."""

    action: Action
    family: Family
    targets: tuple[str, ...]
    """Files and test names to which the command limited the check. Empty if the check had no such limit."""
    failed: bool
    passed: int | None
    """Number of passed tests in the output. None if the output has no such number."""
    empty: bool
    """True if no test was executed."""
    left_out: bool
    """True if the command has options that leave tests out."""

    @property
    def word(self) -> str:
        """Displayed word for the kind of the check."""
        return _WORDS[self.family]

    def covers(self, other: CheckRun) -> bool:
        """Return True if this check includes all targets of the check `other`.

        If `other` had no targets, this check must include all files that failed in `other`. A check without targets
        includes all targets.
        """
        if self.family != other.family or self.empty:
            return False
        if not self.targets:
            return True
        if other.targets:
            return all(any(target == mine or target.startswith((f"{mine.rstrip('/')}/", f"{mine}::"))
                           for mine in self.targets) for target in other.targets)  # fmt: skip
        failing = set(re.findall(r"FAILED ([\w./-]+)", other.action.output))
        mine = {target.partition("::")[0] for target in self.targets}
        return bool(failing) and all(any(name.startswith(target) for target in mine) for name in failing)


@once
def checks_of(action: Action) -> list[CheckRun]:
    """Return the checks that an action executed. The list is empty if the program of a check is not installed."""
    if action.kind != "bash" or action.result.error or action.result.exit_code is None:
        return []
    found: dict[Family, tuple[str, ...]] = {}
    for command in action.commands:
        if (known := family_of(command.words)) is not None:
            family, targets = known
            found[family] = (
                targets
                if family not in found
                else ((*found[family], *targets) if targets and found[family] else ())
            )
    if not found:
        return []
    output = (
        f"{action.output[:_SEARCHED_CHARACTERS]}\n{action.output[-_SEARCHED_CHARACTERS:]}"
        if len(action.output) > 2 * _SEARCHED_CHARACTERS
        else action.output
    )
    failures = _has_hint(output, _FAILED_HINTS)
    says_bad = failures and bool(_FAILED.search(output) or _COUNT.search(output))
    passes = _PASSED.search(output) if _has_hint(output, _PASSED_HINTS) else None
    if failures and not passes and _MISSING.search(output[:3_000]) and not _COUNT.search(output):
        return []
    bad = says_bad or (bool(action.result.exit_code) and not passes) or action.result.timed_out
    if action.result.exit_code and passes and not says_bad:
        bad = len(action.commands) == 1
    number = re.search(r"\b(\d+) (?:tests? )?(?:passed|passing)\b", output) or re.search(
        r"^Ran (\d+) tests?", output, re.MULTILINE
    )
    empty = _has_hint(output, _EMPTY_HINTS) and bool(_EMPTY.search(output))
    return [
        CheckRun(action, family, targets, bad, int(number[1]) if number else None, empty and family == "test",
              bool(_LEFT_OUT.search(action.command)))
        for family, targets in found.items()
    ]  # fmt: skip


def family_of(words: list[str]) -> tuple[Family, tuple[str, ...]] | None:
    """Return the kind and the targets of the check that a simple command executes. None for other commands."""
    words = _unwrapped(words)
    if not words:
        return None
    name, rest = posixpath.basename(words[0]), words[1:]
    if _INTERPRETERS.match(name):
        return _of_interpreter(name, rest)
    if name == "manage.py":
        return _with_verb(name, rest)
    if name in ("tsc", "gcc", "g++", "cc", "clang", "clang++", "mypy", "ruff") and {
        "--version",
        "-v",
        "--help",
    } & set(rest):
        return None
    if name in _ALONE and not {"--version", "--help", "--collect-only"} & set(rest):
        return _ALONE[name], _targets(rest) if _ALONE[name] == "test" else ()
    if name == "black" or name == "prettier":
        return ("lint", ()) if "--check" in rest or "-c" in rest else None
    if name == "cmake":
        return ("build", ()) if "--build" in rest else None
    if name in ("sha256sum", "md5sum", "sha1sum"):
        return ("lint", ()) if "-c" in rest or "--check" in rest else None
    if name in _WITH_VERB and (found := _with_verb(name, rest)):
        return found
    if name in _RUNNERS:
        return _of_runner(name, rest)
    if _PROGRAM.search(words[0]) or (
        words[0].startswith("./") and re.match(r"\./(?:run[-_]?)?tests?$", words[0])
    ):
        return "test", ()
    return None


def _unwrapped(words: list[str]) -> list[str]:
    """Return the words of a command without leading programs that only start another one, such as `sudo`."""
    for _ in range(4):
        while words and re.match(r"[A-Za-z_]\w*=", words[0]):
            words = words[1:]
        if not words:
            return words
        name = posixpath.basename(words[0])
        if name == "timeout":
            words = words[1:]
            while words and (words[0].startswith("-") or re.match(r"[\d.]+[smh]?$", words[0])):
                words = words[1:]
        elif name in _ENV_RUN and "run" in words[1:3]:
            words = words[words.index("run") + 1 :]
        elif name == "bundle" and words[1:2] == ["exec"]:
            words = words[2:]
        elif name == "coverage" and words[1:2] == ["run"]:
            words = words[2:]
            words = ["python", *words] if words else words
        elif name in _WRAPPERS:
            words = words[1:]
            while words and words[0].startswith("-"):
                words = words[1:]
        else:
            return words
    return words


def _of_interpreter(name: str, rest: list[str]) -> tuple[Family, tuple[str, ...]] | None:
    if "-m" in rest and name.startswith("python"):
        module = rest[rest.index("-m") + 1 : rest.index("-m") + 2]
        after = rest[rest.index("-m") + 2 :]
        if module and module[0] in ("unittest", "doctest", "pytest"):
            return "test", _targets([word for word in after if word != "discover"])
        if module and module[0] in ("py_compile", "compileall"):
            return "build", ()
        return family_of([*module, *after]) if module else None
    if name == "node" and "--test" in rest:
        return "test", _targets(rest)
    if name in ("bash", "sh") and "-n" in rest:
        return "build", ()
    if name == "node" and "--check" in rest:
        return "build", ()
    for place, word in enumerate(rest):
        if word.startswith("-"):
            if word == "-c" or word == "-e":
                return None
            continue
        if posixpath.basename(word) == "manage.py":
            return _with_verb("manage.py", rest[place + 1 :])
        return ("test", (word,)) if _PROGRAM.search(word) else None
    return None


def _with_verb(name: str, rest: list[str]) -> tuple[Family, tuple[str, ...]] | None:
    verbs = _WITH_VERB[name]
    for place, word in enumerate(rest):
        if word.startswith(("-", "+")):
            continue
        if word not in verbs:
            if name in ("mvn", "mvnw", "gradle", "gradlew", "sbt"):
                continue
            return None
        after = [word for word in rest[place + 1 :] if word not in ("./...", "--", ".")]
        if name == "ruff" and "--fix" in after:
            return verbs[word], ()
        return verbs[word], _targets(after) if verbs[word] == "test" and name not in ("mvn", "gradle") else ()
    return ("lint", ()) if name == "ruff" and rest[:1] and not rest[0].isalpha() else None


def _of_runner(name: str, rest: list[str]) -> tuple[Family, tuple[str, ...]] | None:
    if "-n" in rest and "make" in name:
        return None
    words = [word for word in rest if word not in _RUN_WORDS and not word.startswith("-") and "=" not in word]
    if name == "make" and not words:
        return "build", ()
    if name == "npm" and rest[:1] == ["t"]:
        return "test", ()
    for word in words[:3]:
        for pattern, family in _TARGETS:
            if pattern.search(word):
                return family, ()
        if name not in ("make", "gmake"):
            break
    return None


def _targets(words: list[str]) -> tuple[str, ...]:
    """Return the targets of a test command, which are files, folders and names of tests."""
    found: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in ("-k", "-t", "--testNamePattern", "-run", "--filter", "-p"):
            skip = word in ("-p",)
        elif word in (
            "-n",
            "-m",
            "-c",
            "--maxfail",
            "--tb",
            "--timeout",
            "-W",
            "-s",
            "--rootdir",
            "-o",
            "--reporter",
        ):
            skip = word not in ("-s",)
        elif not word.startswith("-") and word not in (
            ".",
            "./",
            "tests",
            "test",
            "tests/",
            "test/",
            "./...",
            "discover",
        ):
            found.append(word.removeprefix("./"))
    return tuple(found)
