"""Rules about outcomes of commands: failed checks, repeated commands, and hidden errors."""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterator

from llm_sandbox_nb.formatting import format_count, plural
from llm_sandbox_nb.trajectory.doubts.check_commands import CheckRun, checks_of
from llm_sandbox_nb.trajectory.doubts.evidence import (
    PROGRAMS,
    Action,
    Evidence,
    comes_after,
    ending_of,
    is_aside,
    name_of,
    once,
)
from llm_sandbox_nb.trajectory.events import Doubt
from llm_sandbox_nb.trajectory.step_line import one_line

_FAILURE_WORDS = re.compile(
    r"\b(?:fail(?:s|ed|ing)?|failures?|could not|couldn't|cannot|can't|unable|did(?: not|n't) (?:pass|work|"
    r"build|compile)|"
    r"do(?:es)?(?: not|n't) (?:pass|work|build|compile)|not passing|broken|still (?:red|errors?)|"
    r"errors? remain\w*|unresolved|"
    r"without (?:running|testing)|not (?:tested|verified|run)|untested|unverified)\b",
    re.IGNORECASE,
)
_NO_FAILURE = re.compile(
    r"\b(?:no|0|zero|without(?: any)?|not? longer|never|fix\w*(?: the| all| a)?(?: \w+)?) (?:\w+ )?fail\w*|"
    r"\bfail\w* (?:test\w* )?(?:now|is fixed|are fixed)\b|"
    r"\bpreviously fail\w*|\bcannot fail",
    re.IGNORECASE,
)


def says_failure(text: str) -> bool:
    """Return True if a text admits that something failed."""
    return bool(_FAILURE_WORDS.search(_NO_FAILURE.sub("", text)))


def failed_check(evidence: Evidence) -> Iterator[Doubt]:
    """The last test, build or check of the run failed, or a program was changed after it."""
    checks = [check for action in evidence.actions for check in checks_of(action)]
    if not checks:
        return
    told = says_failure(f"{evidence.answer or ''}\n{evidence.last_words}")
    failing = [] if told else list(_failing(checks))
    for check in failing:
        later = [
            other
            for other in checks
            if other.action.number > check.action.number and other.family == check.family and not other.failed
        ]
        if later and later[-1].targets:
            text = f"a {check.word} failed, and only {name_of(later[-1].targets[0])} was run again"
        elif check.family == "build":
            text = "the last build failed"
        else:
            text = f"the last {check.word} failed"
        yield Doubt(rule="failed check", step=check.action.step, text=text, severity="high")
    last = checks[-1]
    if last.empty and not failing:
        yield Doubt(
            rule="failed check",
            step=last.action.step,
            text="the last test run executed no test",
            severity="medium",
        )
    elif last.left_out and not last.failed and not failing and any(check.failed for check in checks[:-1]):
        yield Doubt(
            rule="tests or checks changed",
            step=last.action.step,
            text="the last test run left tests out",
            severity="high",
        )
    elif not failing and not told and (changed := _changed_after(evidence, last)):
        path, step = changed
        text = f"{name_of(path)} was changed after the last {last.word}, which was at step {last.action.step}"
        yield Doubt(rule="failed check", step=step, text=text, severity="medium")


def _failing(checks: list[CheckRun]) -> Iterator[CheckRun]:
    """Yield the last failed check of each family, unless a later check of the family passed.

    A later test counts only if it covers the failed test.
    """
    for family in dict.fromkeys(check.family for check in checks):
        mine = [check for check in checks if check.family == family]
        for place in range(len(mine) - 1, -1, -1):
            check = mine[place]
            if not check.failed:
                continue
            later = mine[place + 1 :]
            passed = any(other.covers(check) and not other.failed for other in later)
            if not passed and not (later and not later[-1].failed and family != "test"):
                yield check
            break


def _changed_after(evidence: Evidence, last: CheckRun) -> tuple[str, int] | None:
    """Return the path and the step of the newest change of a program after the last check. None if there is none."""
    for action in reversed(evidence.actions[last.action.number + 1 :]):
        if re.search(
            r"\b(?:ruff format|black|prettier|gofmt|go fmt|cargo fmt|isort|clang-format|autopep8|ruff check --fix)\b",
            action.command,
        ):
            continue
        for version in action.writes:
            code = ending_of(version.path) in PROGRAMS and not is_aside(version.path)
            if (
                code
                and version.change
                and version.change.kind == "modified"
                and not evidence.is_result(version.path)
            ):
                if only_comments(version.change.diff or ""):
                    continue
                return version.path, action.step
    return None


def only_comments(diff: str) -> bool:
    rows = [
        row[1:].strip()
        for row in diff.split("\n")
        if row[:1] in "+-" and row[:4] not in ("+++ ", "--- ") and row
    ]
    return bool(rows) and all(not row or row.startswith(("#", "//", "/*", "*", '"""', "'''")) for row in rows)


_LOOP_FAILURES = 3
_LOOP_RESULTS = 4
_LOOP_WAITS = 10
MORE_STEPS = "; more steps will not help"
"""Words that end the text about a loop if a limit has ended the run."""
_LIMITS = ("steps", "tokens", "total_tokens", "cost", "time", "repeated")
_TIMES = re.compile(
    r"\b\d+(?:\.\d+)?\s?(?:ms|µs|us|s|sec|secs|seconds)\b|\b\d\d:\d\d:\d\d(?:\.\d+)?\b|\b0x[0-9a-f]+\b|"
    r"/tmp/[\w.-]+|\bpid \d+"
)


def loop(evidence: Evidence) -> Iterator[Doubt]:
    """The same command had the same error three times, or it had the same result four times and changed no file."""
    streak: list[list[Action]] = []
    for action in [*evidence.actions, None]:
        if action is not None and action.kind == "submit":
            continue
        known = next((loop for loop in streak if action is not None and _same(loop[-1], action)), None)
        if known is not None and action is not None and (action.failed or not action.writes):
            known.append(action)
            continue
        if (
            action is not None
            and len(streak) < 3
            and not action.writes
            and (not streak or all(len(loop) == 1 for loop in streak))
        ):
            streak.append([action])
            continue
        yield from _looped(evidence, streak)
        streak = [[action]] if action is not None else []


def _same(earlier: Action, later: Action) -> bool:
    if (
        earlier.call.tool != later.call.tool
        or earlier.failed != later.failed
        or earlier.result.exit_code != later.result.exit_code
    ):
        return False
    if earlier.call.arguments != later.call.arguments or (
        earlier.call.arguments is None and earlier.call.raw_arguments != later.call.raw_arguments
    ):
        return False
    first, second = earlier.result.body, later.result.body
    return first == second or (len(first) < 20_000 and _TIMES.sub("", first) == _TIMES.sub("", second))


def _looped(evidence: Evidence, streak: list[list[Action]]) -> Iterator[Doubt]:
    same = [loop for loop in streak if len(loop) >= _loop_length(loop[0])]
    if not same:
        return
    times = max(len(loop) for loop in same)
    first = min(loop[0].step for loop in same)
    last = max(loop[-1].step for loop in same)
    what = (
        "same command"
        if len(same) == 1 and same[0][0].kind == "bash"
        else "same call"
        if len(same) == 1
        else "same commands"
    )
    result = "same error" if any(loop[0].failed for loop in same) else "same result"
    text = f"{what}, {result}, {format_count(times)} times"
    if evidence.stop_reason in _LIMITS and last >= evidence.last_step - 1:
        text = f"{text}{MORE_STEPS}"
    yield Doubt(rule="loop", step=first, until=last, text=text, severity="medium")


def _loop_length(action: Action) -> int:
    """Return the minimum number of equal calls that form a loop. A call that waits may be repeated more often."""
    if re.search(r"\bsleep\b|\bwait\b", action.command):
        return _LOOP_WAITS
    return _LOOP_FAILURES if action.failed else _LOOP_RESULTS


_TRACEBACK = re.compile(
    r"^Traceback \(most recent call last\)|^(?:\w+\.)*\w*(?:Error|Exception): |^panic: |^thread '.*' panicked|"
    r"^Uncaught |^Unhandled|"
    r"^Exception in thread|^(?:fatal|FATAL|ERROR|Error|error)\b ?[:\[]|Segmentation fault|core dumped|"
    r": command not found$|"
    r": No such file or directory$|^npm ERR!|^\s+at [\w.$<>]+ \(.*:\d+:\d+\)$|^Caused by: |"
    r": Permission denied$|^awk: .*error|"
    r"^sqlite3?: |^Parse error|^Runtime error|^\S+: line \d+: ",
    re.MULTILINE,
)
_WARNING = re.compile(
    r"^.*\b(?:warn(?:ing)?|skip(?:ped|ping)|ignor(?:ed|ing)|could not|couldn't|failed to|unable to|cannot|"
    r"invalid|malformed|corrupt\w*|"
    r"dropp(?:ed|ing)|(?:truncated|truncating|truncates)|overflow|divide by zero|bad (?:line|row|record)|"
    r"not found|missing)\b.*$",
    re.IGNORECASE | re.MULTILINE,
)
_NO_WARNING = re.compile(
    r"Deprecat|FutureWarning|UserWarning: Matplotlib|\bpip\b|notice|npm warn|\b0 (?:\w+ )?(?:skipped|"
    r"warnings?|missing|invalid|ignored|dropped)|"
    r"\bno (?:\w+ )?(?:missing|invalid|warnings?|bad)|font|(?:skipped|warnings?|missing|invalid|dropped|"
    r"ignored|malformed)\W+0\b|\bpassed\b|root user|"
    r"debconf|grep:|find:|xpassed|collected|"
    r"(?:missing|invalid|bad)[^\n]{0,20}: ?\[\]|nothing",
    re.IGNORECASE,
)
_DIGITS = re.compile(r"\d+")
_WEAK = frozenset(
    {
        "rm",
        "mkdir",
        "kill",
        "pkill",
        "pip",
        "pip3",
        "apt",
        "apt-get",
        "which",
        "command",
        "type",
        "test",
        "[",
        "ls",
        "cd",
        "rmdir",
        "touch",
        "chmod",
        "git",
        "killall",
        "diff",
        "cmp",
        "npm",
        "true",
        "echo",
        "printf",
        "hash",
        "stat",
        "file",
        "conda",
        "ln",
        "unset",
        "source",
        ".",
        "set",
        "export",
        "wait",
        "sleep",
        "du",
        "df",
        "nproc",
        "free",
        "uname",
        "id",
        "locale",
    }
)
_LOOKS = frozenset({"grep", "egrep", "fgrep", "find", "rg", "head", "tail", "cat", "wc", "sort"})
_READ_ONLY = _LOOKS | _WEAK
_QUIET = re.compile(
    r"(?P<before>[^\n;]{0,400}?)(?P<mark>2>\s*/dev/null|&>\s*/dev/null|\|\|\s*(?:true|:)(?=\s|$|;|\))|"
    r"\|\|\s*echo\s+[\"']?(?:0|none|null|nan|\[\]|\{\})?[\"']?\s*(?:>|$))(?P<after>(?:\s*\|\|\s*)?[^\n;]*)"
)
_SWALLOWS = re.compile(
    r"except(?:\s++(?:Exception|BaseException))?(?:\s++as\s++\w++)?\s*+:\s*+(?:#[^\n]*+\s*+)?(?:pass|continue|"
    r"return(?:\s++(?:None|0|0\.0|\[\]|\{\}|''|\"\"|False))?|\w++\s*+=\s*+(?:0|None|0\.0))[^\S\n]*+(?:#[^\n]*+)?"
    r"(?:\n|$|;)"
    r"|on_bad_lines\s*=\s*[\"']skip[\"']|error_bad_lines\s*=\s*False|"
    r"catch\s*+(?:\(\s*+\w*+\s*+\)\s*+)?\{\s*+(?://[^\n]*+\s*+)?\}|"
    r"contextlib\.suppress\(Exception\)|\bsuppress\((?:Base)?Exception\)|"
    r"rescue(?:\s*+=>\s*+\w++)?[^\S\n]*+\n\s*+(?:nil|next)|\bset \+e\b"
)


def error_swallowed(evidence: Evidence) -> Iterator[Doubt]:
    """A command exited with 0 in spite of an error, warned about ignored data, or hid errors."""
    for action in evidence.actions:
        yield from swallowed(evidence, action)
        if text := _without_effect(evidence, action):
            yield _doubt(action, text, "medium")


def _without_effect(evidence: Evidence, action: Action) -> str:
    """Describe a refused edit, or a `sed -i` without effect. Empty if there is neither, or the file changed later."""
    if action.kind != "edit" and "sed" not in action.command:
        return ""
    later = {version.path for other in evidence.actions[action.number + 1 :] for version in other.writes}
    if action.kind == "edit":
        command = (action.call.arguments or {}).get("command")
        refused = action.failed and command != "view" and action.edited and action.edited not in later
        same = any(name_of(path) == name_of(action.edited) for path in later)
        return (
            f"the edit of {name_of(action.edited)} was refused, and none was made later"
            if refused and not same
            else ""
        )
    if action.failed or action.writes or not comes_after(action.command, r"\bsed\b", r"\s-i"):
        return ""
    if action.result.changes_incomplete or comes_after(
        action.command, r"\bsed\b", r"/(?:tmp|etc|usr|home|root)/"
    ):
        return ""
    files = [
        read.path for read in action.reads if not evidence.is_result(read.path) or read.action is not None
    ]
    if not files or any(path in later for path in files):
        return ""
    return f"`sed -i` changed nothing in {name_of(files[0])}"


def swallowed(evidence: Evidence, action: Action) -> Iterator[Doubt]:
    """Yield doubts about errors that an action hid, unless the same program later ran without an error."""
    found = list(_hid(evidence, action))
    if found and not _recovered(evidence, action):
        yield from found


def _hid(evidence: Evidence, action: Action) -> Iterator[Doubt]:
    if action.kind != "bash" or action.result.exit_code is None:
        return
    if action.result.exit_code != 0 or action.result.timed_out:
        if evidence.stop_reason and action.writes and _left_broken(evidence, action):
            yield _doubt(action, f"the command failed, and {_made(evidence, action)} is used", "high")
        return
    if checks_of(action):
        return
    handled = "||" in action.command
    if not handled and not _only_looks(action) and (found := _printed(action)):
        yield _doubt(action, f"exit code 0, but it printed {found}", "high")
        return
    if text := _hidden(evidence, action):
        yield _doubt(action, text, "medium")
        return
    if text := _in_program(evidence, action):
        yield _doubt(action, text, "medium")
        return
    yield from _warnings(evidence, action)


def _doubt(action: Action, text: str, severity: str) -> Doubt:
    return Doubt.model_validate(
        {"rule": "error swallowed", "step": action.step, "text": text, "severity": severity}
    )


_ERROR_HINTS = ("rror", "xception", "raceback", "panic", "fatal", "FATAL", "ERR", "fault", "dumped", "not found",
                "No such", "denied", "Unhandled", "Uncaught", "Caused by", ": line ", "   at ")  # fmt: skip
"""Parts of known error messages. To save time, a text without any of these parts is not searched."""
_WARNING_HINTS = ("warn", "skip", "ignor", "could", "failed", "unable", "cannot", "invalid", "malform", "corrupt",
                  "dropp", "truncate", "overflow", "divide", "bad ", "not found", "missing")  # fmt: skip


_BEGINNING_HINTS = ("arn", "kip", "ould not", "ailed", "rror", "nvalid")


@once
def _printed(action: Action) -> str:
    """Return the error that a command printed in spite of exit code 0. Empty if the command printed no error."""
    for text in (action.stderr, action.stdout):
        if text is action.stdout and "2>&1" not in action.command and "Traceback" not in text:
            continue  # printed data may contain such words
        if not any(hint in text for hint in _ERROR_HINTS):
            continue
        found = list(_TRACEBACK.finditer(text))
        if not found:
            continue
        if "Traceback" in found[0][0]:
            last = [
                line
                for line in text[found[0].start() :].splitlines()
                if re.match(r"^(?:\w+\.)*\w*(?:Error|Exception|Warning|Exit)\b", line)
            ]
            return f"a traceback: {one_line(last[0], 90)}" if last else "a traceback"
        line = text[text.rfind("\n", 0, found[0].start()) + 1 :].partition("\n")[0]
        return f"an error: {one_line(line, 90)}"
    return ""


def _only_looks(action: Action) -> bool:
    """Return True if the command only shows text. An error message in its output is then a part of the shown text."""
    if action.writes:
        return False
    names = {posixpath.basename(command.words[0]) for command in action.commands if command.words}
    return bool(names) and names <= _READ_ONLY


def _program_of(action: Action) -> str:
    """Return the name of the program that an action ran. Later runs of the program are found by this name."""
    for command in action.commands:
        name = posixpath.basename(command.words[0]) if command.words else ""
        if name in _WEAK or not name or name in _LOOKS:
            continue
        file = next((word for word in command.words if ending_of(word) in PROGRAMS), "")
        return name_of(file) or name
    return ""


def _recovered(evidence: Evidence, action: Action) -> bool:
    """Return True if the same program, or a program that wrote the same files, ran later without an error."""
    program = _program_of(action)
    paths = {version.path for version in action.writes}
    for other in evidence.actions[action.number + 1 :]:
        if other.kind != "bash" or other.failed:
            continue
        same = program and program == _program_of(other) and program not in ("python3", "python", "node")
        again = paths and paths <= {version.path for version in other.writes}
        warnings = _WARNING.finditer(other.stderr[:4_000])
        noisy = any(not _NO_WARNING.search(warning[0]) for warning in warnings)
        if (same or again) and not _printed(other) and not noisy and not _QUIET.search(other.command):
            return True
    return False


def _left_broken(evidence: Evidence, action: Action) -> bool:
    """Return True if the results are, or were made from, files that a failed command wrote."""
    paths = {
        version.path
        for version in action.writes
        if ending_of(version.path) not in PROGRAMS and version.change and version.change.size
    }
    if not paths or checks_of(action):
        return False
    used = {version.path for version in evidence.results if version.action is action}
    used |= {read.path for other in evidence.chain for read in other.reads if read.action is action}
    return bool(paths & used)


def _made(evidence: Evidence, action: Action) -> str:
    names = [name_of(version.path) for version in action.writes if ending_of(version.path) not in PROGRAMS]
    return names[0] if names else "what it wrote"


def _hidden(evidence: Evidence, action: Action) -> str:
    """Describe a program whose errors a command hid although its result is used. Empty if there is no such program."""
    if "||" not in action.command and "/dev/null" not in action.command:
        return ""
    made = [version for version in action.writes if ending_of(version.path) not in PROGRAMS]
    for found in _QUIET.finditer(_without_here(action)):
        mark = " ".join(found["mark"].split()).rstrip("> ").strip()
        mark = "2>/dev/null" if "/dev/null" in found["mark"] else mark
        segment = re.split(r"&&|\|\|", found["before"])[-1]
        name = _first_program(segment)
        if not name or name in _WEAK:
            continue
        if mark == "2>/dev/null" and re.match(r"\s*\|\|\s*(?!true\b|:(?:\s|$))\S", found["after"]):
            continue  # `||` starts another command after a failure
        if name in ("cp", "mv", "tar", "unzip", "rsync", "install"):
            if not made:
                return f"`{mark}` hides whether {name} did anything"
            continue
        if name in _LOOKS and not (
            made and mark == "2>/dev/null" and name in ("cat", "wc", "sort", "head", "tail")
        ):
            continue
        if made:
            return f"`{mark}` hides errors of {name}, and {name_of(made[0].path)} is made with it"
        if (
            evidence.stop_reason
            and name not in _LOOKS
            and _runs_program(segment)
            and not action.output.strip()
        ):
            return f"`{mark}` hides errors of {name}, which printed nothing"
    return ""


def _without_here(action: Action) -> str:
    """Return the command without its here-documents."""
    text = action.command
    for command in action.commands:
        if command.here and len(command.here) > 1:
            text = text.replace(command.here.rstrip("\n"), "", 1)
    return text


def _first_program(segment: str) -> str:
    words = re.findall(
        r"[^\s|()<>$`\"']+", segment.split("|")[0].replace("$(", " ").replace("if ", " ").replace("do ", " ")
    )
    words = [
        word
        for word in words
        if "=" not in word and word not in ("sudo", "then", "!", "{", "time", "for", "in", "done", "else")
    ]
    while words and words[0] in ("timeout", "nohup", "env"):
        words = [word for word in words[1:] if not re.match(r"[\d.]+[smh]?$", word)]
    return posixpath.basename(words[0]) if words else ""


def _runs_program(segment: str) -> bool:
    return bool(re.search(r"\b(?:python3?|node|ruby|perl|Rscript|bash|sh|java|\./\S+)\b", segment))


def _in_program(evidence: Evidence, action: Action) -> str:
    """Describe a program that ignores errors and made a file or a part of a result. Empty if there is none."""
    if not (action.writes or evidence.stop_reason):
        return ""
    texts: list[tuple[str, str]] = [
        ("the program", command.here)
        for command in action.commands
        if command.here
        and command.words
        and re.match(r"(?:python|node|ruby|perl|bash|sh)", posixpath.basename(command.words[0]))
    ]
    texts += [
        (name_of(read.path), read.text or "")
        for read in action.reads
        if read.action is not None and ending_of(read.path) in PROGRAMS and _executes(action, read.path)
    ]
    for name, text in texts:
        if text and (found := _SWALLOWS.search(text[:32_000])):
            made = [version for version in action.writes if ending_of(version.path) not in PROGRAMS]
            used = bool(made) or action in evidence.chain if evidence.stop_reason else bool(made)
            if used:
                line = one_line(" ".join(found[0].split()), 40)
                return f"{name} passes over errors (`{line}`)"
    return ""


def _executes(action: Action, path: str) -> bool:
    name = name_of(path)
    return any(
        any(word == name or word.endswith(f"/{name}") for word in command.words[:4])
        for command in action.commands
    )


@once
def _may_warn(action: Action) -> bool:
    merged = "2>&1" in action.command
    text = (action.output if merged else action.stderr).lower()
    if any(hint in text for hint in _WARNING_HINTS):
        return True
    return not merged and any(hint in action.stdout for hint in _BEGINNING_HINTS)


def _warnings(evidence: Evidence, action: Action) -> Iterator[Doubt]:
    """Yield a doubt about printed warnings. Warnings that differ only in numbers are counted as the same warning."""
    if _only_looks(action) or not (_runs_program(action.command) or action.writes):
        return
    if not _may_warn(action):
        return
    source = action.stderr if "2>&1" not in action.command else f"{action.stderr}\n{action.stdout}"
    lines = [found[0].strip() for found in _WARNING.finditer(source)]
    lines += [
        line
        for line in (found[0].strip() for found in _WARNING.finditer(action.stdout))
        if re.match(r"(?:warn|skip|could not|failed|error|invalid)", line, re.IGNORECASE)
    ]
    lines = [line for line in lines if not _NO_WARNING.search(line)]
    if not lines or _admitted(evidence, action):
        return
    counts = Counter(_DIGITS.sub("#", line)[:80] for line in lines)
    key, times = counts.most_common(1)[0]
    shown = one_line(next(line for line in lines if _DIGITS.sub("#", line)[:80] == key), 90)
    text = f"{shown} (x{times})" if times > 1 else shown
    others = len(counts) - 1
    yield _doubt(action, f"{text} and {plural(others, 'other warning')}" if others else text, "medium")


def _admitted(evidence: Evidence, action: Action) -> bool:
    """Return True if the model uses a word such as "skipped" at one of the next two actions or at the end."""
    words = re.compile(
        r"\bwarn\w*|\bskip\w*|\bignor\w*|\binvalid|\bmalformed|\bmissing|\bbad\b|\bbroken|\bcould not|"
        r"\bdropp\w*|\berrors?\b|\bcorrupt\w*",
        re.IGNORECASE,
    )
    later = [
        other.said
        for other in evidence.actions[action.number + 1 : action.number + 3]
        if other.step != action.step
    ]
    return any(
        words.search(text)
        for text in (*later, evidence.answer or "", *([evidence.last_words] if evidence.stop_reason else []))
    )
