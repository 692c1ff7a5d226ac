"""The files of earlier steps over REST: read from a real sandbox's history, whatever was done to names and contents."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pytest_jupyter.jupyter_server import *  # noqa: F403 - fixtures, for this module alone
from served import Answer, Served

from llm_sandbox_nb import open_sandbox
from llm_sandbox_nb.server.handlers import API
from llm_sandbox_nb.server.run_handlers import run_folder

RUN = "20260101-120000-abcdef"
Get = Callable[..., Answer]
HOSTILE = '<img src=x onerror="alert(1)">\u202e\n"\u00e9.html'
PAGE = b"<script>alert(document.cookie)</script>"


@pytest.fixture
def jp_server_config() -> dict[str, Any]:
    return {"ServerApp": {"jpserver_extensions": {"llm_sandbox_nb": True}}}


@pytest.fixture
def get(served: Served) -> Get:
    def go(rest: str, /, raw: bool = False, **params: str) -> Answer:
        path = f"{API}/runs/{RUN}/history{rest}"
        if raw:
            answer = served.fetch(path, params=params)
            return answer.code, answer
        return served.call("get", path, params=params)

    return go


class Kept:
    """A run's folder with the history of two steps."""

    def __init__(self, folder: Path, root: str, first: str, second: str) -> None:
        self.folder, self.root, self.first, self.second = folder, root, first, second


@pytest.fixture
def kept(tmp_path: Path, served: Served) -> Iterator[Kept]:
    """What a run whose sandbox is still open has kept; the server knows the run."""
    folder = tmp_path / RUN
    folder.mkdir()

    async def begin() -> tuple[Any, Kept]:
        box = await open_sandbox("process")
        await box.keep_history(folder / "history")
        root = box.directories.root
        await box.write_file("notes.txt", b"one\ntwo\n")
        await box.write_file(f"deep/{HOSTILE}", PAGE)
        await box.run("ln -s /etc/passwd link; mkfifo pipe; printf 'a\\0b' > binary; echo gone > gone.txt")
        first = await box.checkpoint()
        await box.run("printf 'one\\nTWO\\n' > notes.txt; rm gone.txt; chmod 700 binary; echo x > new.txt")
        return box, Kept(folder, root, first, await box.checkpoint())

    box, made = served.run(begin())
    run = served.settings["llm_sandbox_runs"].publish(RUN, "k", "o", None)
    run.folder = run_folder(str(folder), RUN)
    yield made
    served.run(box.close())


def test_folders_and_files_are_as_they_were(get: Get, kept: Kept) -> None:
    status, told = get("")
    assert status == 200
    assert [one["id"] for one in told["checkpoints"]][-2:] == [kept.first, kept.second]
    status, top = get(f"/{kept.first}/files")
    assert (status, top["path"], top["base"]) == (200, kept.root, False)
    names = {Path(one["path"]).name: one for one in top["files"]}
    assert names["notes.txt"]["kind"] == "file"
    assert names["link"]["kind"] == "link"
    assert names["link"]["target"] == "/etc/passwd"
    assert names["pipe"]["kind"] == "other"
    assert "new.txt" not in names
    for checkpoint, content in ((kept.first, b"one\ntwo\n"), (kept.second, b"one\nTWO\n")):
        status, answer = get(f"/{checkpoint}/files/content", raw=True, path=f"{kept.root}/notes.txt")
        assert (status, answer.body) == (200, content)


def test_a_hostile_file_is_only_ever_downloaded_and_a_link_not_followed(get: Get, kept: Kept) -> None:
    _, deep = get(f"/{kept.second}/files", path=f"{kept.root}/deep")
    (entry,) = deep["files"]
    assert Path(entry["path"]).name == HOSTILE
    status, answer = get(f"/{kept.second}/files/content", raw=True, path=entry["path"])
    assert (status, answer.body) == (200, PAGE)
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Content-Disposition"].startswith("attachment; filename*=UTF-8''%3Cimg%20src")
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    # The canary: what `link` leads to exists on this machine and is never read.
    assert b"root:" in Path("/etc/passwd").read_bytes()
    status, told = get(f"/{kept.first}/files/content", path=f"{kept.root}/link")
    assert (status, told["error"]) == (403, "PermissionError")
    assert "root:" not in json.dumps(told)


def test_changes_and_diffs(get: Get, kept: Kept) -> None:
    status, told = get(f"/{kept.second}/changes", since=kept.first)
    assert status == 200
    found = {Path(one["path"]).name: one["kind"] for one in told["changes"]}
    expected = {"notes.txt": "modified", "gone.txt": "deleted", "binary": "modified", "new.txt": "added"}
    assert (found, told["total"]) == (expected, 4)
    back = get(f"/{kept.first}/changes", since=kept.second)[1]["changes"]
    assert {Path(one["path"]).name for one in back if one["kind"] == "added"} == {"gone.txt"}
    assert get(f"/{kept.first}/changes", since=kept.first)[1]["total"] == 0
    status, diff = get(f"/{kept.second}/diff", since=kept.first, path=f"{kept.root}/notes.txt")
    assert (status, diff["note"]) == (200, "")
    assert "-two\n+TWO\n" in diff["diff"]
    status, diff = get(f"/{kept.second}/diff", since=kept.first, path=f"{kept.root}/binary")
    assert (status, diff["diff"], diff["note"]) == (200, None, "binary")


NOWHERE = {
    "/../../../../etc/passwd": 400, "etc/passwd": 400, "": 400, "/a\0b": 400, "/" + "x" * 5000: 400,
    "/etc/passwd": 404, "/nothing": 404, "{root}/nothing": 404, "{root}/deep": 409, "{root}/pipe": 403,
    "{root}/notes.txt/x": 404, "{root}/' OR 1=1 --": 404,
}  # fmt: skip


def test_what_is_not_told(get: Get, kept: Kept, served: Served) -> None:
    """A path that leads nowhere, a checkpoint that is none, a file that is too large."""
    for path, status in NOWHERE.items():
        answered, told = get(f"/{kept.first}/files/content", path=path.format(root=kept.root))
        assert answered == status, path
        assert "root:" not in json.dumps(told), path
        assert str(kept.folder) not in json.dumps(told), path
    for checkpoint in ("none", "0" * 64, "__proto__"):
        for rest, params in (
            ("files", {}),
            ("changes", {"since": kept.first}),
            ("diff", {"since": "x", "path": "/a"}),
        ):
            status, told = get(f"/{checkpoint}/{rest}", **params)
            assert (status, told["error"]) == (404, "HistoryError"), (checkpoint, rest)
    served.settings["llm_sandbox_runs"].max_file_bytes = 3
    status, told = get(f"/{kept.first}/files/content", path=f"{kept.root}/notes.txt")
    assert (status, told["error"]) == (413, "OutputLimitExceededError")


def test_the_journal_is_told_as_it_is_now(get: Get, kept: Kept, served: Served) -> None:
    assert get("/journal")[0] == 404
    for text in (b'{"kind": "note"}\n', b'{"kind": "note"}\n{"kind": "rewound"}\n'):
        (kept.folder / "journal.jsonl").write_bytes(text)
        status, answer = get("/journal", raw=True)
        assert (status, answer.body) == (200, text)
        assert answer.headers["Content-Type"] == "application/octet-stream"
    served.settings["llm_sandbox_runs"].max_file_bytes = 20
    assert get("/journal")[0] == 413


def test_a_run_without_a_history_says_so(get: Get, kept: Kept, served: Served) -> None:
    run = served.settings["llm_sandbox_runs"].get(RUN)
    (kept.folder / "history").rename(kept.folder / "elsewhere")
    status, told = get("")
    assert (status, told["error"]) == (404, "HistoryError")
    run.folder = None
    assert get("")[0] == 404


def test_only_a_folder_of_the_runs_own_name_is_its_folder(tmp_path: Path) -> None:
    (tmp_path / RUN).mkdir()
    assert run_folder(str(tmp_path / RUN), RUN) == tmp_path / RUN
    for told in (
        str(tmp_path),
        f"{tmp_path}/../{RUN}",
        RUN,
        "",
        None,
        3,
        f"{tmp_path}/{RUN}\0",
        "/" + RUN,
        "/" + "x" * 10_000 + "/" + RUN,
    ):
        assert run_folder(told, RUN) is None


def test_the_journal_route_reads_only_the_run(get: Get, kept: Kept, tmp_path: Path) -> None:
    """A link led to any file of this machine; a FIFO held a thread for ever."""
    (tmp_path / "secret").write_text("canary")
    journal = kept.folder / "journal.jsonl"
    plants = (
        lambda: journal.symlink_to(tmp_path / "secret"),
        lambda: os.mkfifo(journal),
        lambda: None,
        journal.mkdir,
    )
    for plant in plants:
        plant()
        status, answer = get("/journal")
        assert (status, answer["message"]) == (404, "The run's folder holds no file journal.jsonl.")
        journal.unlink(missing_ok=True) if not journal.is_dir() else journal.rmdir()


def test_a_history_that_is_a_link_is_not_read(get: Get, kept: Kept, tmp_path: Path) -> None:
    assert get("")[0] == 200
    (kept.folder / "history").rename(tmp_path / "elsewhere")
    (kept.folder / "history").symlink_to(tmp_path / "elsewhere")
    status, answer = get("")
    assert (status, answer["error"]) == (404, "HistoryError")
