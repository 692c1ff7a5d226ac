"""A list of allowed hosts where the Jupyter server keeps the sandbox: the kernel has the proxy and the secrets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from jupyter_process import STUB, JupyterProcess
from network_attacks import SECRET, SECRETS, Outside
from secret_search import in_processes
from support import run

from llm_sandbox_nb.notebook.server_client.address import ServerAddress
from llm_sandbox_nb.notebook.server_client.keeper import ServerKeeper
from llm_sandbox_nb.sandbox.network import attach
from llm_sandbox_nb.sandbox.network.authority import Authority
from llm_sandbox_nb.sandbox.options import SandboxOptions

pytestmark = [pytest.mark.bubblewrap, pytest.mark.usefixtures("bubblewrap_engine")]
ASKED = SandboxOptions("bubblewrap", network="allow", allow=("allowed.example",), secrets=SECRETS)
FETCH = 'curl -sS -m 20 http://allowed.example/; curl -sS -m 20 -H "X-Key: $API_TOKEN" https://api.example/'


def test_the_kernel_serves_the_network(
    server: JupyterProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Through the server's WebSocket; in a fork too; by the next kernel; closed while there is none."""
    site, trusted = tmp_path / "site.pem", list[Path | None]()
    site.write_text(Authority(["site.example"]).pem)
    monkeypatch.setenv("API_TOKEN", SECRET)
    before = in_processes(SECRET)

    async def body() -> None:
        async with Outside() as outside:
            monkeypatch.setattr(attach, "Internet", lambda bundle: trusted.append(bundle) or outside)
            kernel = server.start_kernel(STUB)
            first = ServerKeeper(ServerAddress(server.url, server.token), kernel)
            box = await first.acquire(ASKED)
            assert box.protection.network == "allow"
            assert (await box.run(FETCH)).text.count("ECHO") == 2
            assert SECRET.encode() in b"".join(outside.arrived)
            fork = await box.fork(await box.checkpoint())
            assert (await fork.run(FETCH)).text.count("ECHO") == 2
            await fork.close()
            asked = "seq 100 | xargs -P 100 -I{} curl -sS -o /dev/null -w '%{http_code} ' http://allowed.example/{}"
            assert (await box.run(asked)).text.split() == [
                "200"
            ] * 100  # more than a client's requests at one time
            assert [one["requests"] for one in server.sandboxes()] == [
                0
            ]  # what waits for a connection is no work
            assert box.network is not None
            await box.network.close()
            assert "ECHO" not in (await box.run(FETCH)).text
            await first.close()
            second = ServerKeeper(ServerAddress(server.url, server.token), kernel)
            again = await second.current()
            assert again is not None
            assert (await again.run(FETCH)).text.count("ECHO") == 2
            assert trusted[-1] is None
            box = await second.acquire(replace(ASKED, ca_bundle=site))  # as a cell does, after `current`
            assert trusted[-1] == site
            assert (await box.run(FETCH)).text.count("ECHO") == 2
            await second.close()
            monkeypatch.delenv("API_TOKEN")
            third = ServerKeeper(ServerAddress(server.url, server.token), kernel)
            files = await third.current()
            assert files is not None
            assert await files.list_files("/") != []
            await third.stop()

    run(body(), timeout=120)
    assert in_processes(SECRET) == before


def test_the_kernel_serves_public_where_no_packets_are_filtered(
    server: JupyterProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        async with Outside() as outside:
            monkeypatch.setattr(attach, "Internet", lambda *_: outside)
            keeper = ServerKeeper(ServerAddress(server.url, server.token), server.start_kernel(STUB))
            box = await keeper.acquire(SandboxOptions("bubblewrap", network="public"))
            assert box.protection.network == "public"
            assert "ECHO" in (await box.run("curl -sS -m 60 http://any.where.example/")).text
            assert "private address" in (await box.run("curl -sS -m 60 http://10.0.0.5/")).text
            await keeper.stop()

    run(body(), timeout=120)
