"""Package managers and HTTP clients as they are, through the network `allow`: nothing is set for them by hand."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from network_attacks import SECRET, SECRETS, Outside
from registries import ALLOW, Registries, registries
from shared_sandboxes import isolated
from support import eventually, run

from llm_sandbox_nb.sandbox.open import open_sandbox

pytestmark = pytest.mark.campaign
BOTH = {
    "pip": "pip install -q --target there six && grep 42 there/six.py",
    "git over https": "git clone -q https://github.com/one.git cloned && git -C cloned log --oneline | grep first",
    "curl": "curl -sSf https://github.com/hello.txt | grep hello",
    "curl, plain": "curl -sSf http://deb.debian.org/debian/dists/here/Release | grep here",
    "urllib": "python3 -c 'import urllib.request as r; print(r.urlopen(\"https://github.com/hello.txt\").read())' "
    "| grep hello",
}
JAVA = """
import java.io.*; import java.net.*;
public class Fetch { public static void main(String[] a) throws Exception {
  var in = new URL("http://deb.debian.org/debian/dists/here/Release").openStream();
  System.out.println(new String(in.readAllBytes())); } }
"""
AIOHTTP = """
import aiohttp, asyncio, ssl, os
async def main():
    async with aiohttp.ClientSession(trust_env=True) as session:
        async with session.get("https://github.com/hello.txt") as reply: print(await reply.text())
asyncio.run(main())
"""
ONLY: dict[str, dict[str, str]] = {
    "docker": {
        "apt-get": "echo 'deb [trusted=yes] http://deb.debian.org/debian here main' > /etc/apt/sources.list && "
        "apt-get -qq update && apt-get -qq install -y hello-proxy >&2 && grep hello /usr/share/hello-proxy",
    },
    # Programs of this machine, as CI installs them; our image has no node and no Java.
    "bubblewrap": {
        "npm": "npm install left-pad 2>&1 && node -p 'require(\"left-pad\")' | grep 42",
        "wget, plain": "wget -qO- http://deb.debian.org/debian/dists/here/Release | grep here",
        "requests": "python3 -c 'import requests as r; print(r.get(\"https://github.com/hello.txt\").text)' "
        "| grep hello",
        "aiohttp": f"python3 -c '{AIOHTTP}' | grep hello",
        "Java": f"cat > Fetch.java <<'E'\n{JAVA}\nE\njava Fetch.java | grep here",
    },
}
CLOSED = {
    "curl without its variables": "env -u https_proxy -u HTTPS_PROXY curl -sSf -m 20 https://github.com/hello.txt",
    "aiohttp without trust_env": "python3 -c 'import socket; socket.create_connection((\"github.com\", 443), 20)'",
    "another host": "curl -sSf https://example.org/",
}


@contextlib.asynccontextmanager
async def opened(isolation: str, folder: Path) -> AsyncIterator[tuple[Any, Registries]]:
    with registries(folder) as here:
        bundle = folder / "authority.pem"
        bundle.write_text(here.pem)
        async with open_sandbox(isolation, network="allow", allow=ALLOW, ca_bundle=bundle) as box:
            assert box.network is not None
            box.network.internet = here  # type: ignore[attr-defined]
            yield box, here


@isolated
def test_clients_work_as_they_are(isolation: str, tmp_path: Path) -> None:
    async def whole() -> None:
        async with opened(isolation, tmp_path) as (box, _):
            wrong = {}
            for name, command in (BOTH | ONLY[isolation]).items():
                done = await box.run(command, timeout=200)
                if done.exit_code:
                    wrong[name] = done.text[-1500:]
            assert wrong == {}
            assert {one.decision for one in box.network.connections} == {"allowed"}
            for name, command in CLOSED.items():
                assert (await box.run(command)).exit_code, name
            ssh = await box.run("git ls-remote ssh://git@github.com/one.git")
            assert ssh.exit_code, ssh.text
            await eventually(
                lambda: any(one.port == 22 and one.sent for one in box.network.connections), ssh.text
            )
            node = await box.run(
                'command -v node >/dev/null || exit 7; node -e \'fetch("https://github.com/hello.txt")'
                ".then(r => r.text()).then(console.log)' && node -p process.version"
            )
            assert node.exit_code or "hello" in node.text, (
                node.text
            )  # older ones ignore proxies: nothing leaves

    run(whole(), 600)


JAVA_WITH_KEY = """
import java.net.*;
public class Key { public static void main(String[] a) throws Exception {
  var link = new URL("https://api.example/").openConnection();
  link.setRequestProperty("Authorization", "Bearer " + System.getenv("API_TOKEN"));
  System.out.println(new String(link.getInputStream().readAllBytes())); } }
"""


@pytest.mark.isolations("bubblewrap")
def test_java_reaches_a_host_of_a_secret(isolation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only with the authority of the sandbox among the certificates that Java trusts."""
    monkeypatch.setenv("API_TOKEN", SECRET)

    async def whole() -> None:
        async with Outside() as outside, open_sandbox(isolation, network="allow", secrets=SECRETS) as box:
            assert box.network is not None
            box.network.internet = outside  # type: ignore[attr-defined]
            run_it = f"cat > Key.java <<'E'\n{JAVA_WITH_KEY}\nE\njava Key.java"
            done = await box.run(run_it, timeout=200)
            assert "ECHO" in done.text, done.text
            assert any(SECRET.encode() in head for head in outside.arrived)
            refused = await box.run("rm /tmp/llm-sandbox/authority.p12; java Key.java", timeout=200)
            assert refused.exit_code

    run(whole(), 600)
