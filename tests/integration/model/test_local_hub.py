"""Files of Hugging Face, from a hub of the test's own: fetched, continued, checked, and refused in one sentence."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import ClassVar

import pytest
from gguf_files import VALUES, gguf_bytes
from huggingface_hub import constants
from loopback_http import LoopbackServer

from llm_sandbox_nb.model.contract import ModelError
from llm_sandbox_nb.model.local import machine
from llm_sandbox_nb.model.local.loading_progress import shown_by
from llm_sandbox_nb.model.local.source import HubSource, find_source
from llm_sandbox_nb.model.local.store import FOLDER_VARIABLE, FetchStoppedError, Stop

DATA = gguf_bytes() + bytes(24_000_000)
SUM = hashlib.sha256(DATA).hexdigest()
COMMIT = "a" * 40
NAME = "hf:owner/repo/model.gguf"
PARTS = [f"big-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
FILES = [f"/owner/repo/resolve/main/{file}" for file in ("model.gguf", *PARTS)]


class Hub(BaseHTTPRequestHandler):
    """Has one file; answers with other bytes, or breaks off, as a test wants it."""

    whole: ClassVar[bytes] = DATA
    """The file, whose size and sum the headers name."""
    content: ClassVar[bytes] = DATA
    break_after: ClassVar[int] = 0
    """Bytes after which the next download breaks off; 0: it does not."""
    refusal: ClassVar[tuple[int, str]] = (0, "")
    ranges: ClassVar[list[str]] = []
    paths: ClassVar[list[str]] = []
    """Paths of the downloads."""

    @classmethod
    def serve(cls, whole: bytes) -> None:
        cls.whole = cls.content = whole

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        type(self).paths.append(self.path)
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        hub = type(self)
        if self.path not in FILES or hub.refusal[0]:
            status, code = hub.refusal if hub.refusal[0] else (404, "EntryNotFound")
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        begin = 0
        if body and (asked := self.headers.get("Range")):
            hub.ranges.append(asked)
            begin = int(asked.removeprefix("bytes=").partition("-")[0])
        rest = hub.content[begin:]
        self.send_response(206 if begin else 200)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha256(hub.whole).hexdigest()}"')
        self.send_header("X-Linked-Etag", f'"{hashlib.sha256(hub.whole).hexdigest()}"')
        self.send_header("X-Linked-Size", str(len(hub.whole)))
        self.send_header("Content-Length", str(len(rest)))
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(hub.whole) - 1}/{len(hub.whole)}")
        self.end_headers()
        if body:
            if hub.break_after:
                rest, hub.break_after = rest[: hub.break_after], 0
                self.close_connection = True
            self.wfile.write(rest)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    class ThisHub(Hub):
        ranges: ClassVar[list[str]] = []
        paths: ClassVar[list[str]] = []

    with LoopbackServer(ThisHub) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.root)
        monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "store"))
        monkeypatch.setattr(time, "sleep", lambda seconds: None)  # between the attempts of huggingface_hub
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        yield ThisHub


def fetched() -> Path:
    return find_source(NAME).fetch(Stop())


def refusal() -> str:
    with pytest.raises(ModelError) as refused:
        fetched()
    said = str(refused.value)
    assert "\n" not in said
    assert said.endswith(".")
    return said


def test_a_file_is_fetched_with_progress_and_then_comes_from_the_cache(hub: type[Hub]) -> None:
    shown: list[str] = []
    token = shown_by.set(shown.append)
    try:
        assert fetched().read_bytes() == DATA
    finally:
        shown_by.reset(token)
    assert "Fetching model.gguf: 100 %" in shown
    hub.content = b""
    assert fetched().read_bytes() == DATA
    hub.refusal = (503, "")
    assert fetched().read_bytes() == DATA, "a hub that is down does not matter then"


def test_all_files_of_a_split_model_are_fetched_into_one_folder(hub: type[Hub]) -> None:
    hub.serve(gguf_bytes({**VALUES, "split.count": 3}, tensors=0))
    first = find_source(f"hf:owner/repo/{PARTS[0]}").fetch(Stop())
    assert (first.name, sorted(path.name for path in first.parent.iterdir())) == (PARTS[0], PARTS)


def test_a_first_file_that_names_another_number_of_files_is_refused_before_the_others_are_fetched(
    hub: type[Hub],
) -> None:
    hub.serve(gguf_bytes({**VALUES, "split.count": 2}, tensors=0))
    with pytest.raises(ModelError, match=f"{PARTS[0]} says in its header that the model has 2 files"):
        find_source(f"hf:owner/repo/{PARTS[0]}").fetch(Stop())
    assert hub.paths == [FILES[1]]


@pytest.mark.parametrize("numbers", ["00003-of-00002", "00000-of-00002"])
def test_impossible_numbers_in_a_name_are_refused(numbers: str) -> None:
    with pytest.raises(ModelError, match="are impossible: correct the name"):
        find_source(f"hf:owner/repo/big-{numbers}.gguf").check()


def test_a_file_of_a_split_model_that_is_not_the_first_is_refused_before_it_is_fetched() -> None:
    with pytest.raises(ModelError, match=f"is file 2 of 3 files of a model: name the first, {PARTS[0]}"):
        find_source(f"hf:owner/repo/{PARTS[1]}").check()


def test_a_download_that_broke_off_continues_where_it_was(hub: type[Hub]) -> None:
    hub.break_after = 15_000_000  # huggingface_hub writes ten million at a time
    path = None
    with contextlib.suppress(ModelError):  # huggingface_hub may continue by itself
        path = fetched()
    path = path or fetched()
    assert path.read_bytes() == DATA
    assert any(int(asked.removeprefix("bytes=").partition("-")[0]) > 9_000_000 for asked in hub.ranges), (
        hub.ranges
    )


def test_another_file_than_the_hub_promises_is_removed(hub: type[Hub]) -> None:
    hub.content = DATA[:-1] + b"x"
    assert "is another file" in refusal()
    hub.content = DATA
    assert fetched().read_bytes() == DATA


def test_a_file_that_repositories_share_in_the_cache_is_checked_by_its_own_sum(hub: type[Hub]) -> None:
    """huggingface_hub names a file of Xet after another sum, and links the name with the SHA-256 to it."""
    blob = fetched().resolve()
    shared = blob.parents[2] / "blobs" / "ab" / ("ab" * 32)
    shared.parent.mkdir(parents=True)
    blob.rename(shared)
    blob.symlink_to(shared)
    assert fetched().read_bytes() == DATA
    shared.write_bytes(DATA[:-1] + b"x")
    assert "is another file" in refusal()
    assert not shared.exists(), "no repository gets the damaged file"
    assert fetched().read_bytes() == DATA


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((404, "RepoNotFound"), "has no repository owner/repo"),
        ((401, "RepoNotFound"), "has no repository owner/repo"),
        ((403, "GatedRepo"), "accepted its terms"),
        ((404, "EntryNotFound"), "has no file model.gguf"),
        ((500, ""), "could not be fetched"),
    ],
)
def test_what_a_hub_refuses_is_one_sentence(answer: tuple[int, str], said: str, hub: type[Hub]) -> None:
    hub.refusal = answer
    assert said in refusal()


def test_a_hub_that_does_not_answer_is_one_sentence(hub: type[Hub], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert "could not be fetched" in refusal()


def test_a_full_disk_names_the_setting_of_the_cache(hub: type[Hub], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 1})())
    assert "name a folder on another disk in HF_HOME." in refusal()


def test_whoever_waits_no_more_ends_the_download(hub: type[Hub]) -> None:
    stop = Stop()
    stop.set()
    with pytest.raises(FetchStoppedError):
        find_source(NAME).fetch(stop)


@pytest.mark.parametrize(
    "name",
    ["hf:a", "hf:a/b", "hf:a/b/c.bin", "hf:a/../c.gguf", "hf:a/b/../../c.gguf", "hf:https://x/y/z.gguf"],
)
def test_a_name_that_no_hub_has_is_refused_before_it_is_asked(name: str) -> None:
    with pytest.raises(ModelError, match=r"hf:OWNER/REPOSITORY/FILE\.gguf"):
        find_source(name)


def test_a_file_in_a_folder_of_a_repository_has_its_name() -> None:
    assert find_source("hf:Qwen/Qwen2.5-GGUF/q4/m-q4_k_m.gguf") == HubSource(
        "Qwen/Qwen2.5-GGUF", "q4/m-q4_k_m.gguf"
    )
