"""Makes run folders to keep: journals that later versions must open, render and resume.

    python tests/data/journals/make.py FOLDER

Uses public names only, so that any version can run it. The folders kept here were made by version 0.1.0, before its
modules moved; `version-2` is `plain` with the events of that version. `branches` holds a run with branches and the fork
that came off it; `killed` ends within a call.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from llm_sandbox_nb import Run, solve

SUBMIT: dict[str, Any] = {"text": "Done.", "calls": [{"tool": "submit"}]}


def bash(text: str, command: str) -> dict[str, Any]:
    return {"text": text, "calls": [{"tool": "execute_bash", "arguments": {"command": command}}]}


def edit(text: str, path: str, content: str) -> dict[str, Any]:
    arguments = {"command": "create", "path": path, "file_text": content}
    return {"text": text, "calls": [{"tool": "str_replace_editor", "arguments": arguments}]}


WRITES = [
    bash("First a list.", "printf 'one\\n' > list.txt && cp list.txt output/list.txt && cat list.txt"),
    edit("Then a table.", "output/table.csv", "name,value\none,1\n"),
    bash("Now the answer.", "echo two >> list.txt; printf two > output/answer.txt; ls output; echo oh >&2"),
    SUBMIT,
]


def script(name: str, turns: list[dict[str, Any]]) -> str:
    """A scripted model in the working directory, so that its name tells no folder."""
    Path(f"{name}.yaml").write_text(yaml.safe_dump({"turns": turns}), "utf-8")
    return f"scripted/{name}.yaml"


async def play(name: str, turns: list[dict[str, Any]]) -> Run:
    """A run in a plain process, in the folder `name`."""
    model = script(name, turns)
    task = "Write a list and a table, and answer with the last line of the list."
    return await solve(task, model=model, isolation="process", output_dir="runs", name=name)


async def branches() -> None:
    run = await play("branches", WRITES)
    await run.rewind(1)
    other = [*WRITES[:1], bash("Another way.", "printf three > output/answer.txt; rm list.txt"), SUBMIT]
    await run.resume("Do it shorter.", model=script("shorter", other))
    fork = await run.fork(1)
    await fork.resume(
        "Say four.", model=script("forked", [other[0], bash("Four.", "echo four >> list.txt"), SUBMIT])
    )
    await fork.close()


def killed() -> None:
    turns = [*WRITES[:2], bash("This takes long.", "echo begun > begun.txt; sleep 600"), SUBMIT]
    child = subprocess.Popen([sys.executable, __file__, ".", json.dumps(turns)], stdout=subprocess.DEVNULL)
    try:
        while not list(Path().glob("runs/killed/*/journal.jsonl")) or not is_in_call():
            assert child.poll() is None
            os.sched_yield()
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()


def is_in_call() -> bool:
    lines = next(Path().glob("runs/killed/*/journal.jsonl")).read_text("utf-8").splitlines()
    events = [json.loads(line) for line in lines if line.endswith("}")]
    return any(one["kind"] == "call.started" and one["step"] == 3 for one in events)


if __name__ == "__main__":
    os.chdir(sys.argv[1])
    if len(sys.argv) > 2:
        asyncio.run(play("killed", json.loads(sys.argv[2])))
    else:
        asyncio.run(play("plain", WRITES))
        asyncio.run(branches())
        killed()
