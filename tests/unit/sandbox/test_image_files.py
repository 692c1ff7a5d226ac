"""Image files whose reading fails leave no open file and no partial pack."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from history_help import ROOT, record

from llm_sandbox_nb.sandbox.errors import SandboxLostError
from llm_sandbox_nb.sandbox.history.image_files import ImageFiles
from llm_sandbox_nb.sandbox.history.manifest import FOLDER, Entry
from llm_sandbox_nb.sandbox.history.pack_store import PackStore
from llm_sandbox_nb.sandbox.protocol.frames import Kind


class Lost:
    """A new sandbox that is lost after the first piece of content."""

    async def request_files(self, params: Any, sink: Any, timeout: float) -> dict[str, Any]:
        assert params["content"]
        sink(Kind.STDOUT, record("C", b"content"))
        raise SandboxLostError("It is lost.")


@pytest.mark.parametrize("below", [False, True])
def test_an_unfinished_read_leaves_no_file(tmp_path: Path, below: bool) -> None:
    async def connect() -> Any:
        return Lost()

    store = PackStore(tmp_path / "h")
    image = ImageFiles(store, connect)
    folder = {**ROOT, "/d": Entry(FOLDER, base=True)}
    reading: Any = image.expand(folder, ROOT, content=True) if below else image.entry("/f")
    with pytest.raises(SandboxLostError):
        asyncio.run(reading)
    assert [*(tmp_path / "h" / "packs").iterdir()] == []
    store.close()
