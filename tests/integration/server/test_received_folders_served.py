"""Run folders that a stranger made, beside notebooks of a real server: lists, routes, uploads, its end are quick."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from agent_scripts import SUBMIT, bash, script, turn
from jupyter_process import STUB, JupyterProcess, jupyter
from received_folders import PLACES, SECRET, SPOILED
from support import require, run
from tornado.websocket import websocket_connect

from llm_sandbox_nb.notebook.server_client.address import ServerAddress
from llm_sandbox_nb.runs.solve import solve

API = "llm-sandbox/api"
SOON = 60.0
"""Seconds in which an answer must come; it takes one, on a machine that does much else ten."""
IN_A_LIST = 25
"""Run folders of one notebook: fewer than a list shows."""
MORE_PIPES = 40
"""Folders whose journal is a pipe: more than the server has threads."""
PIPE = re.compile(r"\d+-pipe-\d+")
SPECIAL = {
    name: spoil
    for name, spoil in SPOILED.items()
    if any(name.startswith(f"{place} is a ") for place in PLACES)
    or name.startswith(("a pack is", "a blob is"))
}


def slug(name: str) -> str:
    """A name that a run may have."""
    return re.sub(r"\W+", "-", name).strip("-")


def device_as_a_journal(folder: Path, outside: Path) -> None:
    """The device without an end, not a link to it; whoever is not root has a pipe."""
    journal = folder / "journal.jsonl"
    journal.unlink()
    try:
        os.mknod(journal, 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    except PermissionError:
        os.mkfifo(journal)


def pipe_as_a_journal(folder: Path, outside: Path) -> None:
    (folder / "journal.jsonl").unlink()
    os.mkfifo(folder / "journal.jsonl")


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require("process")
    folder = tmp_path_factory.mktemp("honest")
    model = script(folder, turn(bash("echo one > output/result.txt; seq 40000")), SUBMIT)
    return run(solve("A task.", model=model, isolation="process", output_dir=folder)).folder


class Received:
    """A server whose notebooks have spoiled run folders beside them, and a folder of the host that they name."""

    def __init__(self, server: JupyterProcess, honest: Path) -> None:
        self.server = server
        self.outside = server.folder / "outside"
        self.outside.mkdir()
        for name in ("id_rsa", "result.txt", "journal.jsonl", "lock"):
            (self.outside / name).write_bytes(SECRET)
        shutil.copy(honest / "history/index.sqlite", self.outside / "index.sqlite")
        spoils = [*SPECIAL.items(), ("a device", device_as_a_journal)]
        spoils += [(f"pipe {number}", pipe_as_a_journal) for number in range(MORE_PIPES)]
        self.folders: dict[str, list[Path]] = {}
        for number, (name, spoil) in enumerate(spoils):
            notebook = f"n{number // IN_A_LIST}"
            parent = server.root / "sandbox-runs" / notebook
            copy = parent / f"{number:03}-{slug(name)}"
            shutil.copytree(honest, copy)
            spoil(copy, self.outside)
            shutil.rmtree(parent / "taken-away", ignore_errors=True)
            self.folders.setdefault(notebook, []).append(copy)
        for notebook, folders in self.folders.items():
            good = folders[0].parent / "999-honest"
            shutil.copytree(honest, good)
            (server.root / f"{notebook}.ipynb").write_text(
                json.dumps({"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
            )
        for path in self.outside.rglob("*"):
            os.utime(path, (1000, 2000))
        self.before = self.state()

    def state(self) -> dict[str, tuple[object, ...]]:
        """All that can be seen of the host's files without reading them; reading changes the time of it."""
        return {
            path.name: (info.st_size, info.st_ino, info.st_atime, info.st_mtime)
            for path in sorted(self.outside.iterdir())
            for info in [path.lstat()]
        }

    def ask(self, path: str, method: str = "GET", body: Any = None) -> tuple[int, Any]:
        return self.server.ask(path, method, body, timeout=SOON)


@pytest.fixture(scope="module")
def received(tmp_path_factory: pytest.TempPathFactory, honest: Path) -> Iterator[Received]:
    """Pipes that nobody writes to would hold a server up for ever, also at its end: it is killed then."""
    with jupyter(tmp_path_factory.mktemp("received")) as server:
        yield Received(server, honest)


@pytest.mark.timeout(600)
def test_the_lists_of_runs_have_the_honest_one_and_come_soon(received: Received) -> None:
    for notebook in received.folders:
        status, answer = received.ask(f"{API}/notebook-runs?path={notebook}.ipynb")
        assert status == 200
        listed = {one["id"] for one in answer["runs"]}
        assert "999-honest" in listed
        assert not [name for name in listed if PIPE.search(name)]
    assert received.state() == received.before


async def look(received: Received, folder: Path, kernel: str) -> list[tuple[str, int, Any]]:
    """Publish a folder as a kernel does, and ask for all that the routes of its history give."""
    id = folder.name
    address = ServerAddress(received.server.url, received.server.token)
    socket = await websocket_connect(address.channel(f"runs/{id}/publish"))
    hello = {"type": "hello", "kernel_id": kernel, "owner": "mine", "folder": str(folder)}
    await socket.write_message(json.dumps(hello))
    assert await asyncio.wait_for(socket.read_message(), SOON)
    found = []

    async def get(path: str) -> Any:
        status, answer = await asyncio.to_thread(received.ask, f"{API}/runs/{id}/history{path}")
        found.append((path, status, answer))
        return answer if status == 200 else {}

    await get("/journal")
    checkpoints = [one["id"] for one in (await get("")).get("checkpoints", [])]
    for one in checkpoints[:2]:
        files = (await get(f"/{one}/files")).get("files", [])
        for file in [file for file in files if file["path"].endswith(".txt")]:
            await get(f"/{one}/files/content?path={quote(file['path'])}")
        await get(f"/{one}/changes?since={checkpoints[-1]}")
    socket.close()
    return found


@pytest.mark.timeout(900)
def test_the_routes_of_its_history_answer_soon_and_read_nothing_else(received: Received) -> None:
    kernel = received.server.start_kernel(STUB)
    honest = run(look(received, next(iter(received.folders.values()))[0].parent / "999-honest", kernel))
    assert all(status == 200 for _, status, _ in honest), honest
    assert len(honest) > 4
    for folder in [
        one for folders in received.folders.values() for one in folders if not PIPE.search(one.name)
    ]:
        answers = run(look(received, folder, kernel), timeout=SOON * 4)
        assert SECRET.decode() not in str(answers)
        assert not [one for one in answers if one[1] >= 500 and one[1] != 507], (folder.name, answers)
    assert received.state() == received.before


@pytest.mark.timeout(600)
def test_opening_in_the_file_browser_answers_soon(received: Received) -> None:
    """The routes that Lab opens a file and a folder with are Jupyter's own; links are followed there, as anywhere."""
    for folders in received.folders.values():
        for folder in folders:
            place = folder.relative_to(received.server.root).as_posix()
            if "pipe" not in folder.name and "device" not in folder.name and "socket" not in folder.name:
                continue
            assert received.ask(f"api/contents/{place}")[0] == 200
            for name in ("journal.jsonl", "trajectory.json", "files/result.txt"):
                regular = (folder / name).is_file()
                for route in (f"api/contents/{place}/{name}?type=file", f"files/{place}/{name}"):
                    assert (received.ask(route)[0] == 200) <= regular, (folder.name, name)


@pytest.mark.timeout(300)
def test_uploads_go_on(received: Received) -> None:
    body = {"type": "file", "format": "text", "content": "x" * 100_000}
    for number in range(10):
        assert received.ask(f"api/contents/up{number}.txt", "PUT", body)[0] == 201
    assert (received.server.root / "up9.txt").stat().st_size == 100_000


@pytest.mark.timeout(300)
def test_zz_it_ends_when_it_is_told_to(received: Received) -> None:
    """The last one of this module: nothing that was asked for before still waits in a thread."""
    for notebook in received.folders:
        received.ask(f"{API}/notebook-runs?path={notebook}.ipynb")
    process = received.server.process
    assert process is not None
    process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(SOON)
    assert process.poll() is not None, received.server.log[-3000:]
    assert received.state() == received.before
