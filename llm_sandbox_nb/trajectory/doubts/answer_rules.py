"""Rules about the answer: what it claims, what it was made from, when it was written, and its numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from llm_sandbox_nb.formatting import format_count
from llm_sandbox_nb.trajectory.doubts.check_commands import Check
from llm_sandbox_nb.trajectory.doubts.command_rules import checks_of_action, says_failure
from llm_sandbox_nb.trajectory.doubts.evidence import DATA, PROGRAMS, Action, Evidence, Version, ending_of, name_of
from llm_sandbox_nb.trajectory.events import Doubt

_SENTENCES = re.compile(r"(?<=[.!?])\s+|\n+|;\s+")
_TESTS_PASS = re.compile(
    r"\b(?:(?:all|every|the|both|\d+)\s+)?(?:of\s+)?(?:the\s+)?(?:\d+\s+)?(?:\w+\s+)?(?:tests?|test suite|suite|specs?|unit tests|pytest|checks?)\b[^.;:\n]{0,40}?"
    r"\b(?:pass(?:es|ed|ing)?|succeed(?:s|ed)?|green|ok)\b|\bpass(?:es|ed|ing)?\s+(?:all\s+|every\s+|the\s+)*(?:\d+\s+)?(?:\w+\s+)?tests?\b|"
    r"\b(?:fully |thoroughly |successfully )tested\b|\b\d+ passed\b|\btests? (?:are|is) (?:green|ok)\b|\b\d+/\d+ (?:tests? )?pass|\bran the tests?\b|"
    r"\bverified (?:with|by) (?:the )?(?:\w+ )?tests?\b",
    re.IGNORECASE,
)
_BUILDS = re.compile(
    r"\b(?:builds?|compil(?:es|ed))\b[^.;\n]{0,30}\b(?:cleanly|success\w*|without (?:errors?|warnings?)|fine|passes|ok)\b|\b(?:lint(?:er|ing)?|mypy|ruff|eslint|"
    r"type ?check\w*|clippy|flake8|pylint)\b[^.;\n]{0,30}\b(?:pass(?:es|ed)?|clean|no (?:errors?|issues|warnings)|ok|success\w*)\b",
    re.IGNORECASE,
)
_NOT = re.compile(r"\b(?:not|n't|never|fail\w*|cannot|no tests?|should|would|will|must|unless|if|once|todo|until|make|so that)\b", re.IGNORECASE)
_FILE = re.compile(r"(?<![\w/.@:-])((?:[\w.-]+/)*[\w-]+(?:\.[\w-]+)*\.(?:[a-zA-Z][a-zA-Z0-9]{0,7}))(?![\w/])")
_WROTE = re.compile(
    r"\b(?:wrote|written|writ(?:es|ing)|sav(?:ed|es|ing)|creat(?:ed|es)|generat(?:ed|es)|export(?:ed|s)|stor(?:ed|es)|produc(?:ed|es)|put|added|drew|plotted|"
    r"render(?:ed)?|dumped|output to|is in|are in|can be found|find|see|in the (?:file|output)|contains?|holds?|has been (?:made|placed)|attached|delivered)\b",
    re.IGNORECASE,
)
_ROWS = re.compile(r"\b(\d[\d,]*)\s+(?:(?!of\b|and\b|in\b|to\b)[\w-]+\s+){0,2}?(rows?|lines?|records?|entries|samples|observations|data points|examples)\b", re.IGNORECASE)
_SUCCEEDED = re.compile(r"\b(?:runs?|works?|executes?|completed?|finish\w*|ran|executed|built|installed|deployed|converted|downloaded)\b[^.;\n]{0,30}\b(?:without (?:any )?(?:errors?|problems?|warnings?)|with no errors?|"
                        r"successfully|correctly|cleanly|no errors)\b|\bno errors?\b|\bsuccessfully (?:ran|executed|completed|built|installed|converted|downloaded|processed|imported|migrated)\b", re.IGNORECASE)  # fmt: skip
_COMMITTED = re.compile(r"\b(?:committed|pushed|opened a pull request)\b", re.IGNORECASE)


def claim_against_evidence(evidence: Evidence) -> Iterator[Doubt]:
    """The answer says that tests pass, a file was written or has N rows, or nothing failed; the record says otherwise."""
    sentences = [one for text in dict.fromkeys((evidence.answer or "", evidence.last_words)) for one in _SENTENCES.split(text[:20_000]) if one.strip()]
    if not sentences:
        return
    checks = [check for action in evidence.actions for check in checks_of_action(evidence, action)]
    seen: set[str] = set()
    for sentence in sentences[:200]:
        for kind, doubt in _claims(evidence, sentence, checks):
            if kind not in seen:
                seen.add(kind)
                yield doubt


def _claims(evidence: Evidence, sentence: str, checks: list[Check]) -> Iterator[tuple[str, Doubt]]:
    step = _said_at(evidence, sentence)
    if _TESTS_PASS.search(sentence) and not _NOT.search(sentence):
        if doubt := _tests(evidence, sentence, [one for one in checks if one.family == "test"], checks, step):
            yield "tests", doubt
    elif _BUILDS.search(sentence) and not re.search(r"\b(?:not|n't|fail\w*)\b", sentence):
        others = [one for one in checks if one.family != "test"]
        if not checks:
            yield "build", _claim(step, "the answer says that it builds or passes a check; no such command was run")
        elif others and others[-1].failed:
            yield "build", _claim(others[-1].action.step, "the answer says that it builds or passes a check; the last one failed")
    elif _SUCCEEDED.search(sentence) and (failed := _last_failed(evidence)) is not None:
        yield "errors", _claim(failed.step, "the answer says that all went well; this command failed, and was not run again")
    if _COMMITTED.search(sentence) and not _NOT.search(sentence) and not any(re.search(r"\bgit\b[^\n;|]*\b(?:commit|push|pr)\b|\bgh\b", action.command) for action in evidence.actions):
        yield "commit", _claim(step, "the answer says that it was committed; no command did")
    yield from _files(evidence, sentence, step)


def _claim(step: int, text: str) -> Doubt:
    return Doubt(rule="claim against evidence", step=step, text=text, severity="high")


def _tests(evidence: Evidence, sentence: str, tests: list[Check], checks: list[Check], step: int) -> Doubt | None:
    if not tests:
        if any(one for one in checks if not one.failed) or _own_checks(evidence) or re.search(r"\bchecks?\b", sentence):
            return None
        return _claim(step, "the answer says that tests pass; none was run")
    last = tests[-1]
    if last.failed:
        return _claim(last.action.step, "the answer says that tests pass; the last run failed")
    if last.empty:
        return _claim(last.action.step, "the answer says that tests pass; the last run executed none")
    numbers = [int(one) for one in re.findall(r"\b(\d+)\s+(?:\w+\s+)?(?:tests?|specs?|passed|passing)\b", sentence)]
    known = {one.passed for one in tests}
    if numbers and last.passed is not None and not known & set(numbers):
        return _claim(last.action.step, f"the answer says {numbers[0]} tests pass; {last.passed} did")
    return None


def _own_checks(evidence: Evidence) -> bool:
    """Whether a program of the run asserted something and ended well."""
    return any(
        not action.failed and (re.search(r"\bassert\b", action.command) or any("assert" in (read.text or "") for read in action.reads if ending_of(read.path) in PROGRAMS))
        for action in evidence.actions
        if action.kind == "bash"
    )


def _last_failed(evidence: Evidence) -> Action | None:
    """The last command that ran a program and failed, unless it was run again with success."""
    runs = [action for action in evidence.actions if action.kind == "bash" and re.search(r"\b(?:python3?|node|bash|sh|ruby|perl|make|cargo|go|npm|java|pip|curl|wget|\./)\b", action.command)]
    if not runs or not runs[-1].failed or runs[-1].result.error:
        return None
    return runs[-1]


def _said_at(evidence: Evidence, sentence: str) -> int:
    """The step that wrote a sentence of the answer."""
    version = evidence.answer_version
    return version.step if version is not None and sentence.strip() in (evidence.answer or "") else evidence.last_step


def _files(evidence: Evidence, sentence: str, step: int) -> Iterator[tuple[str, Doubt]]:
    names = [name for name in _FILE.findall(sentence) if _is_file(name)]
    for name in names[:10]:
        version = _find(evidence, name)
        if version is None:
            wrote = _WROTE.search(sentence) or sentence.strip().startswith(("-", "*", "|", "`"))
            if wrote and not _NOT.search(sentence) and not _mentioned(evidence, name):
                gone = any(name_of(path) == name_of(name) for path in evidence.files)
                yield f"file {name}", _claim(step, f"the answer names {name}; {'it was removed' if gone else 'no step wrote it'}")
        elif version.action is not None:
            yield from _rows(version, name, sentence, len(names))
    if not names:
        tables = [one for one in evidence.results if one.lines is not None and ending_of(one.path) in ("csv", "tsv", "jsonl", "ndjson")]
        if len(tables) == 1 and _WROTE.search(sentence):
            yield from _rows(tables[0], name_of(tables[0].path), sentence, 1)


def _is_file(name: str) -> bool:
    ending = ending_of(name)
    known = ending in DATA or ending in PROGRAMS or ending in (
        "md", "html", "htm", "pdf", "png", "jpg", "jpeg", "svg", "gif", "wav", "mp3", "mp4", "mid", "docx", "pptx", "zip", "gz", "tar", "css", "tex", "webp", "webm", "ogg", "rst")  # fmt: skip
    return known and not name.startswith("www.") and not re.fullmatch(r"[\d.]+\w?", name) and name.lower() not in ("node.js", "vue.js", "next.js", "three.js", "d3.js")


def _find(evidence: Evidence, name: str) -> Version | None:
    last = name_of(name)
    found = [path for path in evidence.files if name_of(path) == last and evidence.newest(path) is not None]
    best = [path for path in found if path.endswith(name) or name.endswith(path)] or found
    best.sort(key=lambda path: not evidence.is_result(path))
    return evidence.newest(best[0]) if best else None


def _mentioned(evidence: Evidence, name: str) -> bool:
    """Whether anything else in the record has such a file: the task, a listing, a part of a pattern."""
    last = name_of(name)
    if last in evidence.task or any(last == name_of(saved) for saved in evidence.trajectory.artifacts):
        return True
    if any(action.result.changes_incomplete for action in evidence.actions):
        return True
    return any(last in action.output and action.kind == "bash" for action in evidence.actions if not re.search(rf"cannot access|No such file[^\n]*|{re.escape(last)}: No such", action.output))


def _rows(version: Version, name: str, sentence: str, names: int) -> Iterator[tuple[str, Doubt]]:
    lines = version.lines
    counts = _ROWS.findall(sentence)
    if lines is None or len(counts) != 1 or names != 1 or ending_of(version.path) in ("json", "html", "md", "xml", "pdf", *PROGRAMS):
        return
    said = int(counts[0][0].replace(",", ""))
    if said in (lines, lines - 1) or re.search(r"\b(?:from|of the|out of|removed|dropped|skipped|duplicat\w+|input|original|first|about|approximately|each|per|lost)\b", sentence, re.IGNORECASE):
        return
    have = lines - 1 if ending_of(version.path) in ("csv", "tsv") and counts[0][1].lower().startswith(("row", "rec", "ent", "sam", "obs", "exam", "data")) else lines
    yield "rows", _claim(version.step, f"the answer says {format_count(said)} {counts[0][1]}; {name_of(name)} has {format_count(have)}")


_VERSIONED = re.compile(r"(?:[-_ .]?(?:v?\d+|new|old|fixed|final|clean(?:ed)?|corrected|updated|latest|raw|tmp|draft|copy|backup|full|all|filtered|sorted|dedup\w*|processed|better|good|right|utc|rounded))+$", re.IGNORECASE)
_SHARED_WORDS = re.compile(r"[-_. ]+")


def stale_read(evidence: Evidence) -> Iterator[Doubt]:
    """The results were made from a file that is older than one made later from the same source, or than the program that makes it."""
    done: set[str] = set()
    used = {read.path for action in evidence.chain for read in action.reads}
    for action in evidence.chain:
        for read in action.reads:
            if read.path in done or read.action is None or ending_of(read.path) not in DATA:
                continue
            text = _newer_sibling(evidence, action, read, used) or _changed_program(evidence, action, read)
            if text:
                done.add(read.path)
                yield Doubt(rule="stale read", step=action.step, text=text, severity="high")


def _newer_sibling(evidence: Evidence, action: Action, read: Version, used: set[str]) -> str:
    """A later file from the same source that nothing uses, though the results were made after it."""
    maker = read.action
    assert maker is not None
    sources = {one.path for one in maker.reads if ending_of(one.path) not in PROGRAMS}
    for path, versions in evidence.files.items():
        earlier = [one for one in versions if one.action and one.action.number < action.number]
        newer = earlier[-1] if earlier else None
        if newer is None or newer.deleted or newer.action is None or path == read.path:
            continue
        other = newer.action
        if other.number <= maker.number or newer.change is None:
            continue
        if ending_of(path) not in DATA or ending_of(path) == "log" or path in used or evidence.is_result(path):
            continue
        named = [one.path for one in other.reads]
        same = read.path in named or bool(sources & {one for one in named if ending_of(one) not in PROGRAMS})
        same = same or bool({one.path for one in maker.reads} & set(named))
        if same and ending_of(path) == ending_of(read.path) and _alike(path, read.path, direct=read.path in named):
            return f"{name_of(read.path)} of step {read.step} was used; {name_of(path)} of step {other.step} is newer, and nothing uses it"
    return ""


def _alike(one: str, other: str, *, direct: bool) -> bool:
    """Whether two names are those of versions of one thing."""
    first, second = (name_of(path).rpartition(".")[0].lower() for path in (one, other))
    stems = {_VERSIONED.sub("", first), _VERSIONED.sub("", second)}
    if len(stems) == 1 or direct:
        return True
    words = [set(filter(None, _SHARED_WORDS.split(name))) for name in (first, second)]
    shared = {word for word in words[0] & words[1] if len(word) > 2}
    return bool(shared) and bool(_VERSIONED.search(first) or _VERSIONED.search(second))


def _changed_program(evidence: Evidence, action: Action, read: Version) -> str:
    """A program that made the file, and was changed since without being run again."""
    maker = read.action
    assert maker is not None
    for program in maker.reads:
        if ending_of(program.path) not in PROGRAMS or program.path in {one.path for one in maker.writes}:
            continue
        between = [one for one in evidence.files[program.path] if one.action and maker.number < one.action.number < action.number]
        if not between or between[-1].deleted or not _runs(maker, program.path):
            continue
        changed = between[-1]
        assert changed.action is not None
        again = any(_runs(other, program.path) and not other.failed for other in evidence.actions[changed.action.number + 1 : action.number + 1])
        if not again:
            return f"{name_of(read.path)} of step {read.step} was used; {name_of(program.path)}, which makes it, was changed at step {changed.step} and not run again"
    return ""


def _runs(action: Action, path: str) -> bool:
    """Whether an action executed a program, itself or through another."""
    if action.kind != "bash":
        return False
    name, stem = name_of(path), name_of(path).rpartition(".")[0]
    if any(any(word == name or word.endswith(f"/{name}") or word == stem for word in command.words) and command.words[0] not in ("cat", "head", "sed", "less", "wc", "cp", "mv", "grep", "git", "ls", "tail", "rm", "diff", "chmod") for command in action.commands if command.words):
        return True
    programs = [one for one in action.reads if ending_of(one.path) in PROGRAMS and one.path != path]
    return any(re.search(rf"\b{re.escape(stem)}\b", one.text or "") for one in programs) and any(one.path == path for one in action.reads)


def answer_too_early(evidence: Evidence) -> Iterator[Doubt]:
    """The answer, or a result, was written before the last result that bears on it, or before the last change of what it is made from."""
    reported: set[int] = set()
    for version in sorted(evidence.results, key=lambda one: (one is not evidence.answer_version, one.path)):
        action = version.action
        if action is None or action.step in reported:
            continue
        if (elsewhere := _written_elsewhere(evidence, version, action)) is not None:
            reported.add(action.step)
            text = f"{version.path} was written at step {version.step}; {elsewhere.path} of step {elsewhere.step} is newer"
            yield Doubt(rule="answer too early", step=elsewhere.step, text=text, severity="high")
        elif text := _source_changed(evidence, version, action):
            reported.add(action.step)
            yield Doubt(rule="answer too early", step=action.step, text=text, severity="high")
    version = evidence.answer_version
    if version is not None and version.action is not None and version.action.step not in reported and (text := _later_result(evidence, version)):
        yield Doubt(rule="answer too early", step=version.action.step, text=text, severity="high")
    elif evidence.answer is not None and not reported and (found := _other_output(evidence)):
        step, text = found
        yield Doubt(rule="answer too early", step=step, text=text, severity="high")


def _written_elsewhere(evidence: Evidence, version: Version, action: Action) -> Version | None:
    """A file of the same name that was made later in another folder, of other content, and that nothing uses."""
    name = name_of(version.path)
    for path, versions in evidence.files.items():
        other = versions[-1]
        if name_of(path) != name or path == version.path or evidence.is_result(path) or other.action is None or other.deleted:
            continue
        if other.action.number <= action.number or ending_of(path) in PROGRAMS or _same_text(version, other):
            continue
        if name not in ("README.md", "notes.md") and not any(other in one.reads for one in evidence.actions if one.writes):
            return other
    return None


def _source_changed(evidence: Evidence, version: Version, action: Action) -> str:
    """A file that a result was made from and that changed afterwards, with the step."""
    if action.edited:
        return ""
    for read in action.reads:
        if read.path == version.path or evidence.is_result(read.path) and name_of(read.path) == "answer.txt":
            continue
        later = [one for one in evidence.files[read.path] if one.action and one.action.number > action.number]
        if not later or later[-1].deleted:
            continue
        changed = later[-1]
        if ending_of(read.path) in PROGRAMS and (not _runs(action, read.path) or _comment_change(changed)):
            continue
        if ending_of(read.path) not in PROGRAMS and ending_of(read.path) not in DATA or _same_text(read, changed):
            continue
        if ending_of(read.path) not in PROGRAMS and len(action.commands) > 0 and re.search(rf">>\s*\S*{re.escape(name_of(read.path))}", changed.action.command if changed.action else ""):
            continue
        return f"{name_of(version.path)} was written at step {version.step}; {name_of(read.path)}, which it is made from, changed at step {changed.step}"
    return ""


def _same_text(one: Version, other: Version) -> bool:
    return one.text is not None and one.text == other.text


def _comment_change(version: Version) -> bool:
    diff = (version.change.diff or "") if version.change else ""
    rows = [row[1:].strip() for row in diff.split("\n") if row[:1] in "+-" and row[:4] not in ("+++ ", "--- ") and row]
    return bool(rows) and all(not row or row.startswith(("#", "//", '"""')) for row in rows)


_VALUE = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?")


def _later_result(evidence: Evidence, version: Version) -> str:
    """A short result that a later step wrote into a file and that is not in the answer."""
    number = version.action.number if version.action else 0
    answer = _numbers_of(evidence.answer or version.text or "")
    for path, versions in evidence.files.items():
        later = versions[-1]
        if later.action is None or later.action.number <= number or later.deleted or path == version.path or later.action.kind == "submit":
            continue
        if ending_of(path) not in ("txt", "csv", "json", "") or later.change is None or later.change.size > 400 or later.change.kind != "added":
            continue
        values = _numbers_of(later.text or "")
        if values and not values & answer and re.search(r"total|result|sum|answer|final|mean|count|value|score|average|median|number|max|min", name_of(path), re.IGNORECASE):
            return f"{name_of(version.path)} was written at step {version.step}; {name_of(path)} of step {later.step} is not in it"
    return _rerun_differs(evidence, number, answer, name_of(version.path), version.step)


def _numbers_of(text: str) -> set[str]:
    return {_plain(one) for one in _VALUE.findall(text[:20_000])}


def _plain(number: str) -> str:
    text = number.replace(",", "").lstrip("+")
    if "." in text and "e" not in text.lower():
        text = text.rstrip("0").rstrip(".")
    return text


def _rerun_differs(evidence: Evidence, number: int, answer: set[str], name: str, step: int) -> str:
    """A later run of a command whose earlier output has the answer's number, and whose new output has not."""
    key = {one for one in answer if len(one.lstrip("-")) > 1}
    if not key or len(key) > 6:
        return ""
    by_command: dict[str, Action] = {}
    for action in evidence.actions:
        if action.kind != "bash" or action.failed or not action.stdout.strip() or len(action.stdout) > 4_000:
            continue
        command = " ".join(action.command.split())
        before = by_command.get(command)
        by_command[command] = action
        if before is None or action.number <= number or before.stdout == action.stdout:
            continue
        old, new = _numbers_of(before.stdout), _numbers_of(action.stdout)
        if key & old and not key & new and new:
            return f"{name} was written at step {step}; the same command gave another result at step {action.step}"
    return ""


def _other_output(evidence: Evidence) -> tuple[int, str] | None:
    """For an answer that is only said: the newest run of the command that it comes from gave something else."""
    if evidence.answer_version is not None:
        return None
    answer = _numbers_of(evidence.answer or "")
    text = _rerun_differs(evidence, -1, answer, "", 0)
    if not text:
        return None
    step = int(text.rpartition(" ")[2])
    return step, "this run of the command gave another result than the one in the answer"


_UNITS: dict[str, tuple[str, ...]] = {
    "length": ("km", "kilometres", "kilometers", "m", "metres", "meters", "cm", "mm", "miles", "mi", "feet", "ft", "inches", "nautical miles", "nm", "yards"),
    "mass": ("kg", "kilograms", "g", "grams", "lb", "lbs", "pounds", "ounces", "oz", "tonnes", "tons", "mg"),
    "time": ("seconds", "s", "minutes", "min", "hours", "h", "days", "ms", "milliseconds", "weeks", "years"),
    "temperature": ("°c", "celsius", "°f", "fahrenheit", "kelvin", "k"),
    "money": ("usd", "eur", "gbp", "dollars", "euros", "pounds", "cents", "$", "€", "£", "yen"),
    "speed": ("km/h", "kmh", "mph", "m/s", "knots", "kph"),
    "volume": ("litres", "liters", "l", "ml", "gallons", "cubic metres"),
    "size": ("bytes", "kb", "mb", "gb", "kib", "mib", "gib", "bits"),
    "power": ("w", "kw", "mw", "kwh", "mwh", "wh", "joules", "kj", "kcal", "cal"),
}  # fmt: skip
_SAME_UNIT = ({"km", "kilometres", "kilometers"}, {"m", "metres", "meters"}, {"miles", "mi"}, {"feet", "ft"}, {"kg", "kilograms"}, {"g", "grams"},
              {"lb", "lbs", "pounds"}, {"seconds", "s"}, {"minutes", "min"}, {"hours", "h"}, {"°c", "celsius"}, {"°f", "fahrenheit"}, {"kelvin", "k"},
              {"usd", "dollars", "$"}, {"eur", "euros", "€"}, {"gbp", "pounds", "£"}, {"km/h", "kmh", "kph"}, {"litres", "liters", "l"}, {"ounces", "oz"},
              {"ms", "milliseconds"}, {"nautical miles", "nm"})  # fmt: skip
_UNIT_WORDS = sorted({unit for units in _UNITS.values() for unit in units if len(unit) > 1 or unit in "$€£"}, key=len, reverse=True)
_WITH_UNIT = re.compile(rf"(?<![\w.])([-+]?\d[\d,]*(?:\.\d+)?)\s?({'|'.join(map(re.escape, _UNIT_WORDS))}|[mgshklw])(?![\w/])", re.IGNORECASE)
_ASKED_UNIT = re.compile(rf"\b(?:in|as)\s+(?:whole\s+|full\s+)?({'|'.join(map(re.escape, [unit for unit in _UNIT_WORDS if len(unit) > 2]))})\b", re.IGNORECASE)
_SEARCHED = 3_000_000
"""Characters of outputs that are searched for numbers of the answer."""
_NUMBERS_MOST = 8


def units_and_numbers(evidence: Evidence) -> Iterator[Doubt]:
    """A number of the answer appears in no output or file of the run, or with another unit than asked or printed. A mild doubt."""
    answer = (evidence.answer or "").strip()
    if not answer or len(answer) > 4_000 or not evidence.actions or says_failure(answer):
        return
    step = evidence.answer_step
    if text := _other_unit(evidence, answer):
        yield Doubt(rule="units and numbers", step=step, text=text, severity="low")
        return
    bare = bool(re.fullmatch(r"[\s$€£]*[-+]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?\s*(?:%|[^\s\d]{1,12})?\s*\.?", answer))
    wanted = [one for one in dict.fromkeys(_VALUE.findall(answer)) if bare or _is_telling(one)]
    if not wanted or len(wanted) > _NUMBERS_MOST:
        return
    missing = [one for one in wanted if not _appears(evidence, one)]
    if missing:
        text = f"{missing[0]} of the answer is in no output of the run"
        yield Doubt(rule="units and numbers", step=step, text=text, severity="low")


def _is_telling(number: str) -> bool:
    digits = re.sub(r"\D", "", number.partition("e")[0]).lstrip("0")
    if re.fullmatch(r"(?:19|20)\d\d", number):
        return False
    return len(digits) >= 3


def _other_unit(evidence: Evidence, answer: str) -> str:
    found = [(_plain(value), unit.lower()) for value, unit in _WITH_UNIT.findall(answer)]
    asked = _ASKED_UNIT.findall(evidence.task)
    for value, unit in found[:_NUMBERS_MOST]:
        for want in {one.lower() for one in asked}:
            if len({one.lower() for one in asked}) == 1 and _dimension(want) & _dimension(unit) and not _same_units(want, unit):
                return f"the answer is in {unit}, and the task asks for {want}"
    if not found:
        return ""
    for action in reversed(evidence.actions[-60:]):
        for value, unit in _WITH_UNIT.findall(action.output[:8_000]):
            for mine, own in found:
                if mine == _plain(value) and len(mine) > 2 and _dimension(own) & _dimension(unit.lower()) and not _same_units(own, unit.lower()):
                    return f"the answer says {value} {own}; step {action.step} printed {value} {unit}"
    return ""


def _dimension(unit: str) -> set[str]:
    return {name for name, units in _UNITS.items() if unit in units}


def _same_units(one: str, other: str) -> bool:
    return one == other or any(one in group and other in group for group in _SAME_UNIT)


def _appears(evidence: Evidence, number: str) -> bool:
    """Whether a number, as it is written or before it was rounded, is in an output, a file or the task."""
    plain = _plain(number)
    forms = {number, plain} | ({f"{int(plain):,}"} if plain.lstrip("-").isdigit() else set())
    if any(form in evidence.task for form in forms):
        return True
    room = _SEARCHED
    texts: list[str] = []
    for action in reversed(evidence.actions):
        if action.kind == "submit":
            continue
        text = action.output
        if any(_has(text, form) for form in forms):
            return True
        texts.append(text)
        room -= len(text)
        if room < 0:
            return True
    value = _float(plain)
    if value is None:
        return True
    places = len(plain.partition(".")[2])
    for text in texts[:200]:
        for found in _VALUE.findall(text[-6_000:])[:400]:
            other = _float(_plain(found))
            if other is not None and (round(other, places) == value or (100 * other != 0 and abs(round(100 * other, places) - value) < 1e-9)):
                return True
    return any(_in_file(version, forms) for version in evidence.results if version is not evidence.answer_version) or _in_inputs(evidence, forms)


def _in_file(version: Version, forms: set[str]) -> bool:
    return any(_has(version.text or "", form) for form in forms)


def _in_inputs(evidence: Evidence, forms: set[str]) -> bool:
    """Whether a program printed it into the answer's file itself, so that no output needs to have it."""
    version = evidence.answer_version
    action = version.action if version is not None else None
    if action is None or action.kind != "bash":
        return False
    return not any(form in action.command for form in forms)


def _has(text: str, form: str) -> bool:
    start = text.find(form)
    while start >= 0:
        before, after = text[start - 1 : start], text[start + len(form) : start + len(form) + 1]
        if not (before.isdigit() or before == ".") and not after.isdigit():
            return True
        start = text.find(form, start + 1)
    return False


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
