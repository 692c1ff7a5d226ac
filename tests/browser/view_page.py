"""The trajectory view in a bare page: the same TypeScript as everywhere, bundled with a run into one HTML file."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from programs import require_program

from llm_sandbox_nb.trajectory import events as ev

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "labextension"


def build(
    folder: Path, replaced: Mapping[str, str] | None = None, package: Path = PACKAGE
) -> tuple[str, str]:
    """The script (it sets `window.lsn`) and the style sheet. `replaced` are other contents for files of `src`.

    `package` may be the `labextension` of another commit; the modules that it needs are those of this one.
    """
    node = require_program("node")
    source = folder / "src"
    shutil.copytree(package / "src", source)
    shutil.copytree(package / "style", folder / "style")
    for name, text in (replaced or {}).items():
        assert (source / name).exists(), f"{name} has another name now"
        (source / name).write_text(text, encoding="utf-8")
    (folder / "tests").mkdir()
    shutil.copy(package / "tests" / "entry.ts", folder / "tests")
    command = [
        node,
        str(PACKAGE / "node_modules" / "esbuild" / "bin" / "esbuild"),
        "tests/entry.ts",
        "style/page.css",
    ]
    command += ["--bundle", "--outdir=out", "--outbase=.", "--format=iife", "--log-level=warning"]
    command += ["--loader:.svg=dataurl"]
    environment = {**os.environ, "NODE_PATH": str(PACKAGE / "node_modules")}
    subprocess.run(command, cwd=folder, env=environment, check=True, timeout=120)
    script, style = folder / "out/tests/entry.js", folder / "out/style/page.css"
    return script.read_text(encoding="utf-8"), style.read_text(encoding="utf-8")


def bundle(events: Iterable[ev.Event], files: Mapping[str, bytes]) -> dict[str, Any]:
    return {
        "schema_version": ev.SCHEMA_VERSION,
        "run_id": "r1",
        "events": [json.loads(ev.dump_event(event)) for event in events],
        "text_limit": None,
        "artifacts": {
            path: {"mime": "", "size": len(data), "data": base64.b64encode(data).decode("ascii")}
            for path, data in files.items()
        },
    }


def page_html(script: str, style: str, extra: str = "") -> str:
    """A page with a place for the view; `extra` is a script that runs after the bundle."""
    return (
        f"<!doctype html><meta charset='utf-8'><title>run</title><style>{style}</style>"
        f"<div id='view'></div><script>{_inline(script)}</script><script>{_inline(extra)}</script>"
    )


def _inline(script: str) -> str:
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")
