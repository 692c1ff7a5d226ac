"""Ray's part without a cluster: what is missing is said, and records that come back stay in their folder."""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pytest
from support import run

from llm_sandbox_nb.benchmark import ray_backend, ray_hosts
from llm_sandbox_nb.benchmark.results import Result
from llm_sandbox_nb.cli import main
from llm_sandbox_nb.sandbox.leftover_folders import make_owned_folder


def command(*more: str) -> list[str]:
    return ["benchmark", "run", "demo", "--model", "scripted/strawberry", "--isolation", "process", *more]


def test_missing_ray_is_reported_with_the_install_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ray_hosts, "find_spec", lambda name: None)
    assert main(command("--ray", "auto")) == 2
    assert capsys.readouterr().err == "--ray needs Ray: run `pip install 'llm-sandbox-nb[ray]'`.\n"
    assert not (tmp_path / "results").exists()


def test_an_unsupported_address_is_refused_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(command("--ray", "ray://head:10001")) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "not 'ray://head:10001'" in line


def test_a_packed_record_is_unpacked_unchanged(tmp_path: Path) -> None:
    run = tmp_path / "node" / "demo" / "sandbox" / "runs" / "1-0" / "x"
    run.mkdir(parents=True)
    (run / "journal.jsonl").write_bytes(b"{}\n")
    (run / "answer \udce9").write_bytes(b"\0\xff")
    ray_hosts.unpack(ray_hosts.packed(tmp_path / "node"), tmp_path / "out")
    back = tmp_path / "out" / run.relative_to(tmp_path / "node")
    assert {path.name: path.read_bytes() for path in back.iterdir()} == {
        "journal.jsonl": b"{}\n",
        "answer \udce9": b"\0\xff",
    }
    assert ray_hosts.packed(tmp_path / "nowhere") == b""
    ray_hosts.unpack(b"", tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("name", ["../../up", "link/../../up"])
def test_a_record_leads_nowhere_else(name: str, tmp_path: Path) -> None:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        member = tarfile.TarInfo(name)
        member.size = 1
        archive.addfile(member, io.BytesIO(b"x"))
    with pytest.raises(tarfile.TarError):
        ray_hosts.unpack(data.getvalue(), tmp_path / "a" / "out")
    assert not (tmp_path / "up").exists()


def test_folders_of_dead_hosts_are_removed_and_those_of_living_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(ray_hosts, "_EXIT_SECONDS", 0.1)
    living, lock = make_owned_folder(ray_hosts._PREFIX, ray_hosts._LOCK)
    dead, released = make_owned_folder(ray_hosts._PREFIX, ray_hosts._LOCK)
    os.close(released)
    (tmp_path / "llm-sandbox-nb-host-of-somebody").mkdir()
    ray_hosts.tidy()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [living.name, "llm-sandbox-nb-host-of-somebody"]
    )
    assert not dead.exists()
    os.close(lock)


class SlowBackend:
    """In place of a backend with sandboxes: makes a file, and never ends."""

    def __init__(self, *_: object) -> None:
        self.begun = asyncio.Event()

    async def attempt(self, item: object, folder: Path) -> tuple[Result, None]:
        folder.mkdir()
        self.begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def __aexit__(self) -> None:
        pass


def test_a_closing_host_begins_nothing_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray may bring an item after the order to close that was sent later."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    backend = SlowBackend()
    monkeypatch.setattr(ray_backend, "LocalBackend", lambda *_, **__: backend)
    for name in ("how_of", "opener_of"):
        monkeypatch.setattr(ray_backend, name, lambda values: None)
    item: Any = None

    async def scenario() -> None:
        host = ray_backend.Host({}, 1)
        under_way = asyncio.create_task(host.attempt(item))
        await backend.begun.wait()
        closing = asyncio.create_task(host.close())
        await asyncio.sleep(0)
        assert (await host.attempt(item)).fatal
        await closing
        assert (await host.attempt(item)).fatal
        with pytest.raises(asyncio.CancelledError):
            await under_way

    run(scenario())
    assert not list(tmp_path.iterdir())
