"""Print the slowest files and tests of the last `make quick`, `make test` or `make test-all`, from its JUnit XML."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

MOST = 25


def main(folder: Path) -> str:
    """The report, or one sentence when nothing has run yet."""
    reports = sorted(folder.glob("*.xml"), key=lambda path: path.stat().st_mtime)
    if not reports:
        return f"{folder} holds no results yet: call make test first."
    files: Counter[str] = Counter()
    tests: Counter[str] = Counter()
    for case in ElementTree.parse(reports[-1]).iter("testcase"):
        file, seconds = case.get("classname", ""), float(case.get("time", 0))
        files[file] += seconds  # type: ignore[assignment]
        tests[f"{file}::{case.get('name')}"] += seconds  # type: ignore[assignment]
    lines = [f"{reports[-1]}: {len(tests)} tests, {files.total():.0f} s"]
    for what, counted in (("files", files), ("tests", tests)):
        lines += ["", f"the slowest {what}"]
        lines += [f"{seconds:8.1f} s  {name}" for name, seconds in counted.most_common(MOST)]
    return "\n".join(lines)


if __name__ == "__main__":
    print(main(Path(sys.argv[1])))
