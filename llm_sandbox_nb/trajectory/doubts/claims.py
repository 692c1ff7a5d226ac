"""The rule about false claims in an answer."""

from __future__ import annotations

import re
from collections.abc import Iterator

from llm_sandbox_nb.formatting import format_count
from llm_sandbox_nb.trajectory.doubts.check_commands import CheckRun, checks_of
from llm_sandbox_nb.trajectory.doubts.evidence import (
    DATA,
    MEDIA,
    PROGRAMS,
    Action,
    Evidence,
    Version,
    comes_after,
    ending_of,
    name_of,
)
from llm_sandbox_nb.trajectory.events import Doubt

_SENTENCES = re.compile(r"(?<=[.!?])\s+|\n+|;\s+")
_TESTS_PASS = re.compile(
    r"\b(?:(?:all|every|the|both|\d+)\s+)?(?:of\s+)?(?:the\s+)?(?:\d+\s+)?(?:\w+\s+)?(?:tests?|test suite|"
    r"suite|specs?|unit tests|pytest|checks?)\b[^.;:\n]{0,40}?"
    r"\b(?:pass(?:es|ed|ing)?|succeed(?:s|ed)?|green|ok)\b|\bpass(?:es|ed|ing)?\s+(?:all\s+|every\s+|"
    r"the\s+)*(?:\d+\s+)?(?:\w+\s+)?tests?\b|"
    r"\b(?:fully |thoroughly |successfully )tested\b|\b\d+ passed\b|\btests? (?:are|is) (?:green|ok)\b|"
    r"\b\d+/\d+ (?:tests? )?pass|\bran the tests?\b|"
    r"\bverified (?:with|by) (?:the )?(?:\w+ )?tests?\b",
    re.IGNORECASE,
)
_BUILDS = re.compile(
    r"\b(?:builds?|compil(?:es|ed))\b[^.;\n]{0,30}\b(?:cleanly|success\w*|without (?:errors?|warnings?)|fine|"
    r"passes|ok)\b|\b(?:lint(?:er|ing)?|mypy|ruff|eslint|"
    r"type ?check\w*|clippy|flake8|pylint)\b[^.;\n]{0,30}\b(?:pass(?:es|ed)?|clean|no (?:errors?|issues|"
    r"warnings)|ok|success\w*)\b",
    re.IGNORECASE,
)
_NOT = re.compile(
    r"\b(?:not|n't|never|fail\w*|cannot|no tests?|should|would|will|must|unless|if|once|todo|until|make|so that)\b",
    re.IGNORECASE,
)
_FILE = re.compile(r"(?<![\w/.@:-])((?:[\w.-]+/)*[\w-]+(?:\.[\w-]+)*\.(?:[a-zA-Z][a-zA-Z0-9]{0,7}))(?![\w/])")
_WROTE = re.compile(
    r"\b(?:wrote|written|writ(?:es|ing)|(?:saved|saves|saving)|creat(?:ed|es)|generated|generates|export(?:ed|s)|"
    r"stor(?:ed|es)|produc(?:ed|es)|put|added|drew|plotted|"
    r"render(?:ed)?|dumped|output to|is in|are in|can be found|find|see|in the (?:file|output)|contains?|"
    r"holds?|has been (?:made|placed)|attached|delivered)\b",
    re.IGNORECASE,
)
_ROWS = re.compile(
    r"\b(\d[\d,]*)\s+(?:(?!of\b|and\b|in\b|to\b)[\w-]+\s+){0,2}?(rows?|lines?|records?|entries|samples|"
    r"observations|data points|examples)\b",
    re.IGNORECASE,
)
_SUCCEEDED = re.compile(
    r"\b(?:runs?|works?|executes?|completed?|finish\w*|ran|executed|built|installed|deployed|converted|"
    r"downloaded)\b[^.;\n]{0,30}\b(?:without (?:any )?(?:errors?|problems?|warnings?)|with no errors?|"
    r"successfully|correctly|cleanly|no errors)\b|\bno errors?\b|\bsuccessfully (?:ran|executed|completed|"
    r"built|installed|converted|downloaded|processed|imported|migrated)\b",
    re.IGNORECASE,
)
_ENDINGS = DATA | MEDIA | PROGRAMS | {
    "md", "markdown", "html", "htm", "xhtml", "css", "tex", "rst", "docx", "pptx", "zip", "gz", "tar",
}  # fmt: skip
"""Suffixes of names of files. Words that also end other names are left out, such as `diff` in `np.diff`."""
_COMMITTED = re.compile(r"\b(?:committed|pushed|opened a pull request)\b", re.IGNORECASE)


def claim_against_evidence(evidence: Evidence) -> Iterator[Doubt]:
    """The record contradicts a claim in the answer, such as that tests pass, or that a file was written."""
    sentences = [
        sentence
        for text in dict.fromkeys((evidence.answer or "", evidence.last_words))
        for sentence in _SENTENCES.split(text[:20_000])
        if sentence.strip()
    ]
    if not sentences:
        return
    checks = [check for action in evidence.actions for check in checks_of(action)]
    seen: set[str] = set()
    for sentence in sentences[:200]:
        for kind, doubt in _claims(evidence, sentence, checks):
            if kind not in seen:
                seen.add(kind)
                yield doubt


def _claims(evidence: Evidence, sentence: str, checks: list[CheckRun]) -> Iterator[tuple[str, Doubt]]:
    version, in_answer = evidence.answer_version, sentence.strip() in (evidence.answer or "")
    step = version.step if version is not None and in_answer else evidence.last_step
    if _TESTS_PASS.search(sentence) and not _NOT.search(sentence):
        if doubt := _tests(
            evidence, sentence, [check for check in checks if check.family == "test"], checks, step
        ):
            yield "tests", doubt
    elif _BUILDS.search(sentence) and not re.search(r"\b(?:not|n't|fail\w*)\b", sentence):
        others = [check for check in checks if check.family != "test"]
        if not checks:
            yield (
                "build",
                _claim(
                    step, "the answer says that the work builds or passes a check; no such command was run"
                ),
            )
        elif others and others[-1].failed:
            yield (
                "build",
                _claim(
                    others[-1].action.step,
                    "the answer says that the work builds or passes a check; the last check failed",
                ),
            )
    elif _SUCCEEDED.search(sentence) and (failed := _last_failed(evidence)) is not None:
        yield (
            "errors",
            _claim(
                failed.step, "the answer says that all went well; this command failed, and was not run again"
            ),
        )
    if (
        _COMMITTED.search(sentence)
        and not _NOT.search(sentence)
        and not any(
            comes_after(action.command, r"\bgit\b", r"\b(?:commit|push|pr)\b")
            or re.search(r"\bgh\b", action.command)
            for action in evidence.actions
        )
    ):
        yield "commit", _claim(step, "the answer says that the work was committed; no command did this")
    yield from _files(evidence, sentence, step)


def _claim(step: int, text: str) -> Doubt:
    return Doubt(rule="claim against evidence", step=step, text=text, severity="high")


def _tests(
    evidence: Evidence, sentence: str, tests: list[CheckRun], checks: list[CheckRun], step: int
) -> Doubt | None:
    if not tests:
        if (
            any(check for check in checks if not check.failed)
            or _own_checks(evidence)
            or re.search(r"\bchecks?\b", sentence)
        ):
            return None
        return _claim(step, "the answer says that tests pass; none was run")
    last = tests[-1]
    if last.failed:
        return _claim(last.action.step, "the answer says that tests pass; the last run failed")
    if last.empty:
        return _claim(last.action.step, "the answer says that tests pass; the last run executed none")
    numbers = [
        int(number)
        for number in re.findall(r"\b(\d+)\s+(?:\w+\s+)?(?:tests?|specs?|passed|passing)\b", sentence)
    ]
    known = {check.passed for check in tests}
    if numbers and last.passed is not None and not known & set(numbers):
        return _claim(last.action.step, f"the answer says {numbers[0]} tests pass; {last.passed} did")
    return None


def _own_checks(evidence: Evidence) -> bool:
    """Return True if the run executed a program that has an assertion, and the program exited without an error."""
    return any(
        not action.failed
        and (
            re.search(r"\bassert\b", action.command)
            or any("assert" in (read.text or "") for read in action.reads if ending_of(read.path) in PROGRAMS)
        )
        for action in evidence.actions
        if action.kind == "bash"
    )


def _last_failed(evidence: Evidence) -> Action | None:
    """Return the last command that ran a program, if this command failed. Otherwise, return None."""
    runs = [
        action
        for action in evidence.actions
        if action.kind == "bash"
        and re.search(
            r"\b(?:python3?|node|bash|sh|ruby|perl|make|cargo|go|npm|java|pip|curl|wget|\./)\b",
            action.command,
        )
    ]
    if not runs or not runs[-1].failed or runs[-1].result.error:
        return None
    return runs[-1]


def _files(evidence: Evidence, sentence: str, step: int) -> Iterator[tuple[str, Doubt]]:
    names = [name for name in _FILE.findall(sentence) if _is_file(name)]
    for name in names[:10]:
        version = _find(evidence, name)
        if version is None:
            wrote = _WROTE.search(sentence) or sentence.strip().startswith(("-", "*", "|", "`"))
            if wrote and not _NOT.search(sentence) and not _mentioned(evidence, name):
                gone = any(name_of(path) == name_of(name) for path in evidence.files)
                yield (
                    f"file {name}",
                    _claim(
                        step, f"the answer names {name}; {'it was removed' if gone else 'no step wrote it'}"
                    ),
                )
        elif version.action is not None:
            yield from _rows(version, name, sentence, len(names))
    if not names:
        tables = [
            file
            for file in evidence.results
            if file.lines is not None and ending_of(file.path) in ("csv", "tsv", "jsonl", "ndjson")
        ]
        if len(tables) == 1 and _WROTE.search(sentence):
            yield from _rows(tables[0], name_of(tables[0].path), sentence, 1)


def _is_file(name: str) -> bool:
    return (
        ending_of(name) in _ENDINGS
        and not name.startswith("www.")
        and not re.fullmatch(r"[\d.]+\w?", name)
        and name.lower() not in ("node.js", "vue.js", "next.js", "three.js", "d3.js")
    )


def _find(evidence: Evidence, name: str) -> Version | None:
    last = name_of(name)
    found = [path for path in evidence.files if name_of(path) == last and evidence.newest(path) is not None]
    best = [path for path in found if path.endswith(name) or name.endswith(path)] or found
    best.sort(key=lambda path: not evidence.is_result(path))
    return evidence.newest(best[0]) if best else None


def _mentioned(evidence: Evidence, name: str) -> bool:
    """Return True if the task, an artifact or an output names the file, or if the recorded changes are incomplete."""
    last = name_of(name)
    if last in evidence.task or any(last == name_of(saved) for saved in evidence.trajectory.artifacts):
        return True
    if any(action.result.changes_incomplete for action in evidence.actions):
        return True
    return any(
        last in action.output and action.kind == "bash"
        for action in evidence.actions
        if not re.search(rf"cannot access|No such file[^\n]*|{re.escape(last)}: No such", action.output)
    )


def _rows(version: Version, name: str, sentence: str, names: int) -> Iterator[tuple[str, Doubt]]:
    lines = version.lines
    counts = _ROWS.findall(sentence)
    if (
        lines is None
        or len(counts) != 1
        or names != 1
        or ending_of(version.path) in ("json", "html", "md", "xml", "pdf", *PROGRAMS)
    ):
        return
    said = int(counts[0][0].replace(",", ""))
    if said in (lines, lines - 1) or re.search(
        r"\b(?:from|of the|out of|removed|dropped|skipped|duplicate\w+|input|original|first|about|"
        r"approximately|each|per|lost)\b",
        sentence,
        re.IGNORECASE,
    ):
        return
    have = (
        lines - 1
        if ending_of(version.path) in ("csv", "tsv")
        and counts[0][1].lower().startswith(("row", "rec", "ent", "sam", "obs", "exam", "data"))
        else lines
    )
    yield (
        "rows",
        _claim(
            version.step,
            f"the answer says {format_count(said)} {counts[0][1]}; {name_of(name)} has {format_count(have)}",
        ),
    )
