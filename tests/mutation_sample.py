"""Measure how many of a fixed sample of mutants the tests notice.

    python tests/mutation_sample.py cover             # which tests execute which line; some minutes
    python tests/mutation_sample.py run sample.json   # makes the sample if there is none, plays it, prints the rate

A mutant is one changed operator, constant, condition or left-out call on a line that a test executes in its own
process. It is killed when one of the tests of its line fails: the quickest of them, at most BUDGET seconds together.
A time-out counts for nothing, because a busy machine makes it too: play these mutants again, alone.
A sample names a mutant by file, function and source, so that the same one is found again after other changes.
"""

from __future__ import annotations

import ast
import json
import os
import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("sandbox", "agent", "trajectory", "runs", "server", "model")
EACH = 35
"""Mutants of each package: 210 in all, within five percentage points of the rate of all mutants."""
BUDGET = 15.0
"""Seconds of tests for a mutant; most that are killed are killed by the quickest test."""
SEED = 20260116
TESTS = ["tests/unit", "tests/contract", "tests/integration/sandbox", "tests/integration/server",
         "tests/integration/agent", "tests/integration/runs", "tests/integration/model"]  # fmt: skip
OTHER = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.In: "not in",
    ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is", ast.Add: "-", ast.Sub: "+", ast.Mult: "+",
    ast.And: "or", ast.Or: "and",
}  # fmt: skip


def cover() -> None:
    """Run the tests that need no engine, and keep in .coverage which test executes which line."""
    folders = [folder for folder in TESTS if (ROOT / folder).exists()]
    rc = ROOT / ".cache" / "mutation.rc"
    rc.parent.mkdir(exist_ok=True)
    rc.write_text("[run]\nsource = llm_sandbox_nb\n")
    command = [
        sys.executable, "-m", "pytest", "-n2", "--dist=loadfile", "-q",
        "-m", "not campaign and not docker and not bubblewrap",
        "--cov=llm_sandbox_nb", f"--cov-config={rc}", "--cov-context=test",
        "--cov-report=", "--durations=0", "--durations-min=0",
        *folders,
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    times: dict[str, float] = defaultdict(float)
    for line in done.stdout.splitlines():
        words = line.split(maxsplit=2)
        if len(words) == 3 and words[0].endswith("s") and words[1] in ("setup", "call", "teardown"):
            times[words[2].strip()] += float(words[0][:-1])
    (ROOT / ".cache" / "mutation-times.json").write_text(json.dumps(times))
    print(done.stdout.splitlines()[-1])


def tests_of_lines() -> dict[str, dict[int, list[str]]]:
    """File -> line -> tests that execute it."""
    from coverage import CoverageData

    data = CoverageData(str(ROOT / ".coverage"))
    data.read()
    found = {}
    for file in data.measured_files():
        lines = data.contexts_by_lineno(file)
        found[str(Path(file).relative_to(ROOT))] = {
            line: sorted({context.split("|")[0] for context in contexts if "::" in context})
            for line, contexts in lines.items()
        }
    return found


def mutants(source: str) -> Iterator[dict[str, Any]]:
    """Each way to change one thing: where (function, line, columns), and the text before and after."""
    tree = ast.parse(source)
    lines = source.splitlines(keepends=True)

    def text(node: ast.AST) -> str:
        written = ast.get_source_segment(source, node) or ""
        return f"({written})" if isinstance(node, ast.NamedExpr) else written

    def visit(node: ast.AST, function: str) -> Iterator[dict[str, Any]]:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            function = f"{function}.{node.name}".lstrip(".")
        new: str | None = None
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in OTHER:
                new = f"{text(left)} {OTHER[type(op)]} {text(right)}"
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OTHER and not isinstance(
                left, (ast.Constant, ast.JoinedStr)
            ):
                new = f"{text(left)} {OTHER[type(op)]} {text(right)}"
            case ast.BoolOp(op=op, values=values):
                new = f" {OTHER[type(op)]} ".join(f"({text(value)})" for value in values)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                new = f"({text(operand)})"
            case ast.Constant(value=bool() as value):
                new = str(not value)
            case ast.Constant(value=int() as value) if function:
                new = str(value + 1)
            case ast.Expr(value=ast.Call()) | ast.Expr(value=ast.Await(value=ast.Call())):
                new = "pass"
            case ast.Return(value=ast.Constant(value=None)) | ast.Return(value=None):
                new = None
            case ast.Return():
                new = "return None"
            case ast.Continue():
                new = "break"
        old = text(node) if new is not None else ""
        if new is not None and function and node.lineno == node.end_lineno and old:
            yield {"function": function, "line": node.lineno, "start": node.col_offset, "end": node.end_col_offset,
                   "old": old, "new": new, "whole": lines[node.lineno - 1].strip()}  # fmt: skip
        for child in ast.iter_child_nodes(node):
            yield from visit(child, function)

    yield from visit(tree, "")


def make_sample() -> list[dict[str, Any]]:
    """EACH mutants of each package, on covered lines, always the same for the same code."""
    covered, sample = tests_of_lines(), []
    for package in PACKAGES:
        places = []
        for file in sorted(covered):
            if file.startswith(f"llm_sandbox_nb/{package}/"):
                for mutant in mutants((ROOT / file).read_text("utf-8")):
                    if covered[file].get(mutant["line"]):
                        places.append({"file": file, **mutant})
        sample += random.Random(SEED).sample(places, EACH)
    return sample


def find(entry: dict[str, Any]) -> dict[str, Any] | None:
    """The mutant in the code of now; None when its line or function is gone."""
    path = ROOT / entry["file"]
    same = [
        mutant for mutant in (mutants(path.read_text("utf-8")) if path.exists() else [])
        if all(mutant[key] == entry[key] for key in ("function", "old", "new", "whole"))
    ]  # fmt: skip
    return min(same, key=lambda mutant: abs(mutant["line"] - entry["line"]), default=None)


def play(entry: dict[str, Any], covered: dict[str, dict[int, list[str]]], times: dict[str, float]) -> str:
    """'killed', 'survived', 'gone', 'timeout' (play it again alone), or 'broken': the tests could not be started."""
    mutant = find(entry)
    if mutant is None:
        return "gone"
    chosen: list[str] = []
    spent = 0.0
    for test in sorted(
        covered.get(entry["file"], {}).get(mutant["line"], []), key=lambda test: times.get(test, 1.0)
    ):
        spent += times.get(test, 1.0)
        if chosen and spent > BUDGET:
            break
        chosen.append(test)
    if not chosen:
        return "survived"
    path = ROOT / entry["file"]
    before = path.read_bytes()
    lines = before.splitlines(keepends=True)
    line = lines[mutant["line"] - 1]
    lines[mutant["line"] - 1] = line[: mutant["start"]] + mutant["new"].encode() + line[mutant["end"] :]
    path.write_bytes(b"".join(lines))
    names = ROOT / ".cache" / "mutation-tests.txt"
    names.write_text("\n".join(chosen))
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--timeout=90", f"@{names}"],
            cwd=ROOT, capture_output=True, text=True, timeout=240, env=environment,
        )  # fmt: skip
        if done.returncode == 1 and "Timeout (>" in done.stdout:
            return "timeout"
        return {0: "survived", 1: "killed"}.get(done.returncode, "broken")
    except subprocess.TimeoutExpired:
        return "timeout"
    finally:
        path.write_bytes(before)


def main() -> None:
    """Play the sample named on the command line, and print the share of killed mutants."""
    if sys.argv[1:2] == ["cover"]:
        return cover()
    file = Path(sys.argv[2])
    if not file.exists():
        file.write_text(json.dumps(make_sample(), indent=1))
    sample = json.loads(file.read_text())
    covered = tests_of_lines()
    times = json.loads((ROOT / ".cache" / "mutation-times.json").read_text())
    results = []
    for number, entry in enumerate(sample, 1):
        results.append({**entry, "result": play(entry, covered, times)})
        change = f"{entry['old']!r} -> {entry['new']!r}"
        print(f"{number:3} {results[-1]['result']:8} {entry['file']}:{entry['line']} {change}", flush=True)
        file.with_suffix(".results.json").write_text(json.dumps(results, indent=1))
    for package in (*PACKAGES, ""):
        own = [
            result["result"] for result in results if result["file"].startswith(f"llm_sandbox_nb/{package}")
        ]
        killed, played = own.count("killed"), own.count("killed") + own.count("survived")
        others = ", ".join(f"{own.count(one)} {one}" for one in ("timeout", "gone", "broken"))
        print(f"{package or 'all'}: {killed} of {played} killed; {others}")
    return None


if __name__ == "__main__":
    main()
