"""Publishes the pages under the package's version: `make docs-release OUT=site`.

`OUT/VERSION/` gets the pages, `OUT/switcher.json` the versions that the menu of each page offers, newest first,
and `OUT/index.html` leads to the newest. What earlier releases left in OUT stays: keep that folder for the next.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from packaging.version import Version

from llm_sandbox_nb.version import __version__

HERE = Path(__file__).parent
REDIRECT = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>llm_sandbox_nb</title>
<meta http-equiv="refresh" content="0; url={newest}/index.html"></head>
<body><a href="{newest}/index.html">llm_sandbox_nb {newest}</a></body></html>
"""


def add_version(out: Path, version: str) -> None:
    """List a version in `switcher.json`, and let `index.html` lead to the newest one that is listed."""
    listed = out / "switcher.json"
    known = {one["version"] for one in json.loads(listed.read_text("utf-8"))} if listed.exists() else set()
    versions = sorted({*known, version}, key=Version, reverse=True)
    entries = [
        {"name": f"{one} (newest)" if one == versions[0] else one, "version": one, "url": f"../{one}/"}
        for one in versions
    ]
    listed.write_text(json.dumps(entries, indent=2) + "\n", "utf-8")
    (out / "index.html").write_text(REDIRECT.format(newest=versions[0]), "utf-8")


def main() -> int:
    """Build the pages into the folder that the command line names. Returns Sphinx's exit code."""
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    add_version(out, __version__)
    words = ["-W", "--keep-going", "-q", "-b", "html", "-t", "release", str(HERE), str(out / __version__)]
    return subprocess.run([sys.executable, "-m", "sphinx", *words]).returncode


if __name__ == "__main__":
    sys.exit(main())
